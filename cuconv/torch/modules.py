"""Layers: a short convolution with the options of flash-linear-attention's, and the block of Mamba."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cuconv.causal_conv1d.dense import causal_conv1d_fn
from cuconv.causal_conv1d.update import causal_conv1d_update
from cuconv.runtime import checks
from cuconv.runtime.errors import message
from cuconv.torch.functional import causal_conv1d_packed, mamba_inner_fn, tensors
from cuconv.torch.inner import as_channels, as_rows
from cuconv.torch.mamba_ssm import selective_scan_fn, selective_state_update


class ShortConvolution(nn.Conv1d):
    """A depthwise causal convolution with the parameters and options of fla.modules.ShortConvolution.

    Its states are (sequences, hidden_size, kernel_size): the last kernel_size inputs. The first column is never needed;
    it is 0 in states that `forward` returns, unless it updates them in place.
    """

    def __init__(
        self,
        hidden_size: int,
        kernel_size: int,
        bias: bool = False,
        activation: str | None = "silu",
        backend: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> None:
        """The layer.

        Args:
            hidden_size: channels.
            kernel_size: taps of the filter, 1 to 16.
            bias: whether channels have a bias.
            activation: None, "silu" or "swish".
            backend: ignored, as are further arguments; they choose kernels in flash-linear-attention.
            device, dtype: of the parameters.
        """
        checks.activation(activation)
        super().__init__(
            hidden_size,
            hidden_size,
            kernel_size,
            groups=hidden_size,
            bias=bias,
            padding=kernel_size - 1,
            device=device,
            dtype=dtype,
        )
        self.hidden_size = hidden_size
        self.activation = activation

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        residual: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Tensor | None = None,
        output_final_state: bool = False,
        cu_seqlens: Tensor | None = None,
        chunk_indices: Tensor | None = None,
        *,
        cp_context: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Convolve sequences.

        Args:
            x: (batch, tokens, hidden_size); packed sequences have a batch of 1.
            residual: shape of x, added to the result.
            mask: (batch, tokens), multiplies x. x itself stays as it is.
            cache: (sequences, hidden_size, kernel_size): the initial states. It is updated in place where there are as
                many tokens as sequences and autograd does not follow (torch.no_grad(), or neither x, cache nor a
                parameter requires grad); else it is only read, and output_final_state returns new states.
            output_final_state: also return the final states: cache itself where that is updated in place. Without it
                None is returned, also where a cache was updated.
            cu_seqlens: (sequences + 1,): where packed sequences begin and, last, end.
            chunk_indices: ignored, as are further arguments; they prepare or choose kernels in flash-linear-attention.
            cp_context: must be None; with flash-linear-attention's, the tokens before x would come from another device.

        Returns:
            The result, of x's shape, and the final states or None.

        Raises:
            TypeError, ValueError: arguments that do not fit.
        """
        sequences = self._check(x, residual, cache, cu_seqlens)
        batch, tokens, _ = x.shape
        if cp_context is not None:
            got = f"a {type(cp_context).__name__}"
            raise ValueError(message("cp_context", got, "None: no tokens come from other devices"))
        if cu_seqlens is not None:
            if batch != 1:
                raise ValueError(message("batch of x", batch, "1 beside cu_seqlens"))
            if mask is not None:
                raise ValueError(message("mask", "a tensor", "None beside cu_seqlens"))
        if mask is not None:
            x = x * mask.unsqueeze(-1).to(x.dtype)
        is_followed = torch.is_grad_enabled() and any(
            each is not None and each.requires_grad for each in (x, self.weight, self.bias, cache)
        )
        if batch * tokens == sequences and not is_followed:
            return self.step(x, residual, cache, output_final_state, cu_seqlens)
        weight, halo = self.weight.squeeze(1), self.kernel_size[0] - 1
        initial = None if cache is None else cache[:, :, cache.shape[2] - halo :].to(x.dtype)
        if cu_seqlens is None:
            result = causal_conv1d_fn(
                x.transpose(1, 2),
                weight,
                self.bias,
                None,
                initial,
                output_final_state,
                activation=self.activation,
            )
            out, states = result if output_final_state else (result, None)
            out = out.transpose(1, 2)
        else:
            inner = (x[0].t(), weight, self.bias, cu_seqlens, initial)
            result = causal_conv1d_packed(*inner, output_final_state, self.activation)
            out, states = result if output_final_state else (result, None)
            out = out.t()[None]
        return _with(residual, out), None if states is None else F.pad(states, (1, 0))

    def step(
        self,
        x: Tensor,
        residual: Tensor | None = None,
        cache: Tensor | None = None,
        output_final_state: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The next tokens of sequences, one of each without cu_seqlens: as `forward`, but a cache is always updated in
        place.
        """
        # Only the device knows how many tokens each packed sequence has: if one has two, another may have none.
        shape, tokens = x.shape, x.shape[0] * x.shape[1] if len(x.shape) == 3 else 0
        sequences = self._check(x, residual, cache, cu_seqlens, tokens)
        if cache is None:
            cache = x.new_zeros(sequences, self.hidden_size, self.kernel_size[0])
        inner = (x.reshape(tokens, self.hidden_size), cache, self.weight.squeeze(1), self.bias, self.activation)
        out: Tensor = causal_conv1d_update(*inner, query_start_loc=cu_seqlens).view(shape)
        return _with(residual, out), cache if output_final_state else None

    def _check(
        self,
        x: Tensor,
        residual: Tensor | None,
        cache: Tensor | None,
        cu_seqlens: Tensor | None,
        entries: int | None = None,
    ) -> int:
        """Checks what is used before the functions below check it. Returns the number of sequences, which without
        cu_seqlens is `entries` or the batch.
        """
        tensors(x=x)
        tensors(may_lack=True, residual=residual, cache=cache, cu_seqlens=cu_seqlens)
        checks.rank("x", x.shape, "batch, tokens, hidden_size")
        if x.shape[2] != self.hidden_size:
            raise ValueError(message("hidden_size of x", x.shape[2], f"{self.hidden_size}, the layer's"))
        if residual is not None:
            checks.shape("residual", tuple(residual.shape), tuple(x.shape), "the shape of x")
        sequences = x.shape[0] if entries is None else entries
        if cu_seqlens is not None:
            checks.rank("cu_seqlens", cu_seqlens.shape, "sequences + 1")
            sequences = cu_seqlens.shape[0] - 1
        if cache is not None:
            wanted = sequences, self.hidden_size, self.kernel_size[0]
            checks.shape("cache", tuple(cache.shape), wanted, "sequences, hidden_size, kernel_size")
        return sequences

    @property
    def state_size(self) -> int:
        """Numbers in a sequence's state."""
        return self.hidden_size * self.kernel_size[0]

    def extra_repr(self) -> str:
        """What print shows."""
        return f"{self.hidden_size}, kernel_size={self.kernel_size[0]}, bias={self.bias is not None}, " + (
            f"activation={self.activation}"
        )


def _with(residual: Tensor | None, out: Tensor) -> Tensor:
    """out with the residual added to it, of out's dtype."""
    return out if residual is None else (out + residual).to(out.dtype)


def is_only_weights(projection: nn.Module) -> bool:
    """Whether a call of this module is a product with its weights and nothing more.

    Low-rank adapters come as other classes, quantised and distributed weights as other modules or tensors, and hooks
    may replace results, or bring the weights to the GPU in the first place.
    """
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    own = projection.__dict__
    if type(projection) is not nn.Linear or "forward" in own or any(own[each] for each in hooks):
        return False
    return type(projection.weight) in (nn.Parameter, Tensor)


def bias_of_steps(numbers: Tensor, least: float, most: float, floor: float) -> Tensor:
    """A bias of delta, of the shape of `numbers`: its softplus is steps that are uniform in their logarithm."""
    steps = numbers.uniform_(math.log(least), math.log(most)).exp().clamp(min=floor)
    return steps + torch.log(-torch.expm1(-steps))


def keep_last(inputs: Tensor, conv_state: Tensor) -> None:
    """Overwrite conv_state with the last inputs, both (batch, channels, tokens), or with zeros and all inputs."""
    kept = min(inputs.shape[2], conv_state.shape[2])
    conv_state.zero_()
    conv_state[:, :, conv_state.shape[2] - kept :].copy_(inputs[:, :, inputs.shape[2] - kept :])


class Mamba(nn.Module):
    """The block of Gu and Dao, "Mamba", 2023, figure 3. Its parameters are named as in mamba_ssm.

    It is computed as one function where its projections are linear layers without hooks; otherwise these are called one
    after another.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | str = "auto",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init: str = "random",
        dt_scale: float = 1.0,
        dt_init_floor: float = 1e-4,
        conv_bias: bool = True,
        bias: bool = False,
        use_fast_path: bool = True,
        layer_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """The block.

        Args:
            d_model: channels of input and result.
            d_state: states per inner channel.
            d_conv: taps of the convolution.
            expand: inner channels as a multiple of d_model.
            dt_rank: numbers that delta is made from; d_model / 16, rounded up, when "auto".
            dt_min, dt_max, dt_init_floor: the range and the least of delta at initialisation, uniform in its logarithm.
            dt_init: "random" or "constant": delta's projection at initialisation.
            dt_scale: the factor of delta's projection at initialisation.
            conv_bias, bias: whether the convolution and the outer projections have biases.
            use_fast_path: compute u and delta again in the backward pass instead of keeping them, with less memory.
            layer_idx: the block's place in a model, under which its states are kept in inference parameters.
            device, dtype: of the parameters; A_log and D are float32 unless the dtype is float64.
        """
        checks.choice("dt_init", dt_init, ("random", "constant"))
        super().__init__()
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        self.d_inner = int(expand * d_model)
        self.dt_rank = math.ceil(d_model / 16) if isinstance(dt_rank, str) else dt_rank
        self.use_fast_path, self.layer_idx, self.activation = use_fast_path, layer_idx, "silu"
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=bias, **made)
        self.conv1d = nn.Conv1d(
            self.d_inner, self.d_inner, d_conv, groups=self.d_inner, padding=d_conv - 1, bias=conv_bias, **made
        )
        # Programs that compute a part of the block for themselves look for this beside the weights.
        self.act = nn.SiLU()
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False, **made)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner, bias=True, **made)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias, **made)
        wide = torch.float64 if (dtype or torch.get_default_dtype()) == torch.float64 else torch.float32
        rates = torch.arange(1, d_state + 1, dtype=wide, device=device).log()
        self.A_log = nn.Parameter(rates.repeat(self.d_inner, 1))
        self.D = nn.Parameter(torch.ones(self.d_inner, dtype=wide, device=device))
        for parameter in (self.A_log, self.D):
            parameter._no_weight_decay = True  # type: ignore[attr-defined]
        with torch.no_grad():
            spread = self.dt_rank**-0.5 * dt_scale
            if dt_init == "constant":
                self.dt_proj.weight.fill_(spread)
            else:
                self.dt_proj.weight.uniform_(-spread, spread)
            first = torch.empty(self.d_inner, dtype=wide, device=device)
            self.dt_proj.bias.copy_(bias_of_steps(first, dt_min, dt_max, dt_init_floor))
        self.dt_proj.bias._no_reinit = True  # type: ignore[attr-defined]

    def forward(self, hidden_states: Tensor, inference_params: Any = None) -> Tensor:
        """(batch, seqlen, d_model) from (batch, seqlen, d_model).

        With inference_params, of mamba_ssm's kind, the states of its key_value_memory_dict are filled by the prompt and
        used by the single tokens that follow it, as seqlen_offset says.
        """
        if inference_params is None:
            return self._train(hidden_states)
        states = inference_params.key_value_memory_dict
        if self.layer_idx not in states:
            states[self.layer_idx] = self.allocate_inference_cache(hidden_states.shape[0])
        conv_state, ssm_state = states[self.layer_idx]
        if inference_params.seqlen_offset > 0:
            return self.step(hidden_states, conv_state, ssm_state)[0]
        return self.prefill(hidden_states, conv_state, ssm_state)

    def _scan_parameters(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """A, D and the bias of delta, in float32 even where the block was converted to a dtype of fewer bits.

        The bias is None where the projection of steps adds it itself, as a quantised one does.
        """
        wide = torch.float64 if self.A_log.dtype == torch.float64 else torch.float32
        bias = self.dt_proj.bias.to(wide) if is_only_weights(self.dt_proj) else None
        return -torch.exp(self.A_log.to(wide)), self.D.to(wide), bias

    def _train(self, hidden_states: Tensor) -> Tensor:
        if not all(map(is_only_weights, (self.in_proj, self.x_proj, self.dt_proj, self.out_proj))):
            return self._by_steps(hidden_states)
        A, D, delta_bias = self._scan_parameters()
        return mamba_inner_fn(
            self._project_in(hidden_states),
            self.conv1d.weight,
            self.conv1d.bias,
            self.x_proj.weight,
            self.dt_proj.weight,
            self.out_proj.weight,
            self.out_proj.bias,
            A,
            D=D,
            delta_bias=delta_bias,
            checkpoint_lvl=int(self.use_fast_path),
        )

    @torch.no_grad()
    def prefill(self, hidden_states: Tensor, conv_state: Tensor, ssm_state: Tensor) -> Tensor:
        """The result for whole prompts; their final states overwrite conv_state and ssm_state."""
        return self._by_steps(hidden_states, conv_state, ssm_state)

    def _by_steps(
        self, hidden_states: Tensor, conv_state: Tensor | None = None, ssm_state: Tensor | None = None
    ) -> Tensor:
        """The result for whole sequences, by one operation after another; given states are overwritten."""
        x, z = self._project_in(hidden_states).chunk(2, dim=1)
        weight = self.conv1d.weight.squeeze(1)
        u = causal_conv1d_fn(x, weight, self.conv1d.bias, activation="silu")
        if conv_state is not None:
            keep_last(x, conv_state)
        A, D, delta_bias = self._scan_parameters()
        if is_only_weights(self.x_proj) and is_only_weights(self.dt_proj):
            batch, _, seqlen = x.shape
            steps, *others = (self.x_proj.weight @ as_channels(u)).split(self._parts)
            delta, B, C = (as_rows(each, batch, seqlen) for each in (self.dt_proj.weight @ steps, *others))
        else:
            steps, B, C = self.x_proj(u.mT).split(self._parts, dim=-1)
            delta, B, C, delta_bias = self.dt_proj(steps).mT, B.mT, C.mT, None
        out, last_state = selective_scan_fn(u, delta, A, B, C, D, z, delta_bias, True, True)
        if ssm_state is not None:
            ssm_state.copy_(last_state)
        result: Tensor = self.out_proj(out.mT)
        return result

    def _project_in(self, hidden_states: Tensor) -> Tensor:
        """in_proj's result, (batch, 2 * d_inner, seqlen), of its weights with contiguous tokens."""
        if not is_only_weights(self.in_proj):
            projected: Tensor = self.in_proj(hidden_states)
            return projected.mT
        weight, bias, tokens = self.in_proj.weight, self.in_proj.bias, hidden_states.flatten(0, 1).t()
        channels = weight @ tokens if bias is None else torch.addmm(bias[:, None], weight, tokens)
        return as_rows(channels, *hidden_states.shape[:2])

    @torch.no_grad()
    def step(self, hidden_states: Tensor, conv_state: Tensor, ssm_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The result for one token per sequence, (batch, 1, d_model), and the states, updated in place."""
        if hidden_states.shape[1] != 1:
            raise ValueError(message("tokens of hidden_states", hidden_states.shape[1], "1"))
        x, z = self.in_proj(hidden_states[:, 0]).chunk(2, dim=-1)
        u = causal_conv1d_update(x, conv_state, self.conv1d.weight.squeeze(1), self.conv1d.bias, self.activation)
        steps, B, C = self.x_proj(u).split(self._parts, dim=-1)
        A, D, delta_bias = self._scan_parameters()
        delta = self.dt_proj(steps) if delta_bias is None else F.linear(steps, self.dt_proj.weight)
        y = selective_state_update(ssm_state, u, delta, A, B, C, D, z, dt_bias=delta_bias, dt_softplus=True)
        return self.out_proj(y)[:, None], conv_state, ssm_state

    @property
    def _parts(self) -> list[int]:
        """The numbers of x_proj's results for delta, B and C."""
        return [self.dt_rank, self.d_state, self.d_state]

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int = 0, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """conv_state (batch_size, d_inner, d_conv) and ssm_state (batch_size, d_inner, d_state), of zeros."""
        weight = self.conv1d.weight
        made: dict[str, Any] = {"device": weight.device, "dtype": dtype or weight.dtype}
        shape = (batch_size, self.d_inner)
        return torch.zeros(*shape, self.d_conv, **made), torch.zeros(*shape, self.d_state, **made)
