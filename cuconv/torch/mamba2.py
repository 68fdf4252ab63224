"""The block of Mamba-2: cuconv's convolution and decode steps, and a scan of torch's matrix products."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cuconv.causal_conv1d.dense import causal_conv1d_fn
from cuconv.causal_conv1d.states import causal_conv1d_varlen_states
from cuconv.causal_conv1d.update import causal_conv1d_update
from cuconv.runtime.errors import message
from cuconv.torch.blocks import GatedRMSNorm
from cuconv.torch.mamba_ssm import selective_state_update
from cuconv.torch.modules import bias_of_steps, is_only_weights, keep_last
from cuconv.torch.ssd import mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined


class Mamba2(nn.Module):
    """The block of Dao and Gu, "Transformers are SSMs", 2024, figure 6. Its parameters are named as in mamba_ssm."""

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        d_conv: int = 4,
        conv_init: float | None = None,
        expand: int = 2,
        headdim: int = 64,
        d_ssm: int | None = None,
        ngroups: int = 1,
        A_init_range: tuple[float, float] = (1, 16),
        D_has_hdim: bool = False,
        rmsnorm: bool = True,
        norm_before_gate: bool = False,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        dt_limit: tuple[float, float] = (0.0, math.inf),
        bias: bool = False,
        conv_bias: bool = True,
        chunk_size: int = 256,
        use_mem_eff_path: bool = True,
        layer_idx: int | None = None,
        process_group: Any = None,
        sequence_parallel: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """The block.

        Args:
            d_model: channels of input and result.
            d_state: states per inner channel.
            d_conv: taps of the convolution.
            conv_init: the largest weight of the convolution at initialisation; that of nn.Conv1d when None.
            expand: inner channels as a multiple of d_model.
            headdim: channels of a head.
            d_ssm: inner channels of heads; the others are gated only. All of them when None.
            ngroups: groups of heads that share B and C.
            A_init_range: the range of the rates of decay at initialisation.
            D_has_hdim: whether D has a value per channel instead of per head.
            rmsnorm: whether there is a norm beside the gate.
            norm_before_gate: whether the norm comes before the gate.
            dt_min, dt_max, dt_init_floor: the range and the least of the steps at initialisation, uniform in their
                logarithm.
            dt_limit: the range that steps are clamped to, except in `step`.
            bias, conv_bias: whether the outer projections and the convolution have biases.
            chunk_size: most tokens of a chunk of the scan.
            use_mem_eff_path: ignored.
            layer_idx: the block's place in a model, under which its states are kept in inference parameters.
            process_group, sequence_parallel: must be None, and is ignored: the block is not divided among GPUs.
            device, dtype: of the parameters.
        """
        super().__init__()
        if process_group is not None:
            raise ValueError(message("process_group", f"a {type(process_group).__name__}", "None"))
        self.d_model, self.d_state, self.d_conv, self.expand, self.headdim = d_model, d_state, d_conv, expand, headdim
        self.d_inner = expand * d_model
        self.d_ssm, self.ngroups = self.d_inner if d_ssm is None else d_ssm, ngroups
        self.nheads, rest = divmod(self.d_ssm, headdim)
        if rest:
            raise ValueError(message("headdim", headdim, f"a divisor of the {self.d_ssm} channels of heads"))
        if self.nheads % ngroups:
            raise ValueError(message("ngroups", ngroups, f"a divisor of the {self.nheads} heads"))
        self.D_has_hdim, self.rmsnorm, self.norm_before_gate = D_has_hdim, rmsnorm, norm_before_gate
        self.dt_limit, self.chunk_size, self.layer_idx = dt_limit, chunk_size, layer_idx
        self.conv_init, self.use_mem_eff_path, self.activation = conv_init, use_mem_eff_path, "silu"
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        channels = self.d_ssm + 2 * ngroups * d_state
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner - self.d_ssm + channels + self.nheads, bias=bias, **made)
        self.conv1d = nn.Conv1d(channels, channels, d_conv, groups=channels, padding=d_conv - 1, bias=conv_bias, **made)
        if conv_init is not None:
            nn.init.uniform_(self.conv1d.weight, -conv_init, conv_init)
        # Programs that compute a part of the block for themselves look for this beside the weights.
        self.act = nn.SiLU()
        wide = torch.float64 if (dtype or torch.get_default_dtype()) == torch.float64 else torch.float32
        kind = dtype or torch.get_default_dtype()
        first, rates = (torch.empty(self.nheads, dtype=wide, device=device) for _ in range(2))
        self.dt_bias = nn.Parameter(bias_of_steps(first, dt_min, dt_max, dt_init_floor).to(kind))
        rates.uniform_(*A_init_range)
        self.A_log = nn.Parameter(rates.log().to(kind))
        self.D = nn.Parameter(torch.ones(self.d_ssm if D_has_hdim else self.nheads, device=device))
        for parameter in (self.dt_bias, self.A_log, self.D):
            parameter._no_weight_decay = True  # type: ignore[attr-defined]
        if rmsnorm:
            self.norm = GatedRMSNorm(self.d_ssm, 1e-5, self.d_ssm // ngroups, norm_before_gate, **made)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias, **made)

    def forward(
        self,
        u: Tensor,
        seqlen: int | None = None,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        inference_params: Any = None,
    ) -> Tensor:
        """The block's result.

        Args:
            u: (batch, seqlen, d_model), or (batch * seqlen, d_model) with seqlen.
            seqlen: tokens of a row of the batch.
            seq_idx: (batch, seqlen), int32: the number of each token's sequence in a row of packed ones.
            cu_seqlens: (sequences + 1,): the borders of packed sequences; a state is kept for each.
            inference_params: of mamba_ssm's kind: the states of its key_value_memory_dict are filled by the prompt and
                used by the single tokens that follow it, as seqlen_offset says.

        Returns:
            u's shape.
        """
        rows = u if seqlen is None else u.unflatten(0, (-1, seqlen))
        if inference_params is None:
            out = self._whole(rows, seq_idx)
        else:
            count = rows.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
            states = inference_params.key_value_memory_dict
            if self.layer_idx not in states:
                states[self.layer_idx] = self.allocate_inference_cache(count)
            conv_state, ssm_state = states[self.layer_idx]
            if inference_params.seqlen_offset > 0:
                return self.step(u, conv_state, ssm_state)[0]
            out = self.prefill(rows, conv_state, ssm_state, seq_idx, cu_seqlens)
        return out if seqlen is None else out.flatten(0, 1)

    def _whole(self, rows: Tensor, seq_idx: Tensor | None) -> Tensor:
        is_plain = is_only_weights(self.out_proj)
        A, D, _ = self._scan_parameters()
        out: Tensor = mamba_split_conv1d_scan_combined(
            *(self.in_proj(rows), self.conv1d.weight.squeeze(1), self.conv1d.bias, self.dt_bias, A, D),
            *(self.chunk_size, None, seq_idx, self.dt_limit, False, self.activation),
            rmsnorm_weight=self.norm.weight if self.rmsnorm else None,
            rmsnorm_eps=self.norm.eps if self.rmsnorm else 0.0,
            outproj_weight=self.out_proj.weight if is_plain else None,
            outproj_bias=self.out_proj.bias if is_plain else None,
            headdim=self.headdim,
            ngroups=self.ngroups,
            norm_before_gate=self.norm_before_gate,
        )
        return out if is_plain else self.out_proj(out)

    @torch.no_grad()
    def prefill(
        self,
        rows: Tensor,
        conv_state: Tensor,
        ssm_state: Tensor,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """The result for whole prompts; their final states overwrite conv_state and ssm_state."""
        z0, x0, z, xBC, dt = self._divided(self.in_proj(rows))
        inputs = xBC.mT
        if cu_seqlens is None:
            keep_last(inputs, conv_state)
        else:
            conv_state.copy_(causal_conv1d_varlen_states(xBC[0], cu_seqlens, conv_state.shape[2]))
        weight = self.conv1d.weight.squeeze(1)
        filtered = causal_conv1d_fn(inputs, weight, self.conv1d.bias, seq_idx, activation=self.activation).mT
        x, B, C = self._parts(filtered)
        A, D, dt_bias = self._scan_parameters()
        y, *states = mamba_chunk_scan_combined(
            *(x, dt, A, B, C, self.chunk_size, D, None if self.rmsnorm else z.unflatten(-1, (self.nheads, -1))),
            *(dt_bias, None, seq_idx, cu_seqlens, True, self.dt_limit),
            return_final_states=True,
            return_varlen_states=cu_seqlens is not None,
        )
        ssm_state.copy_(states[-1])
        return self._finished(y.flatten(2), z0, x0, z)

    @torch.no_grad()
    def step(self, hidden_states: Tensor, conv_state: Tensor, ssm_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The result for one token per sequence, (batch, 1, d_model), and the states, updated in place."""
        if hidden_states.shape[1] != 1:
            raise ValueError(message("tokens of hidden_states", hidden_states.shape[1], "1"))
        z0, x0, z, xBC, dt = self._divided(self.in_proj(hidden_states[:, 0]))
        weight = self.conv1d.weight.squeeze(1)
        x, B, C = self._parts(causal_conv1d_update(xBC, conv_state, weight, self.conv1d.bias, self.activation))
        A, D, dt_bias = self._scan_parameters()
        heads, of_states = x.shape[1:], (*x.shape[1:], self.d_state)
        y = selective_state_update(
            *(ssm_state, x, dt[..., None].expand(x.shape), A[:, None, None].expand(of_states), B, C),
            D=D if D.dim() == 2 else D[:, None].expand(heads),
            z=None if self.rmsnorm else z.unflatten(-1, heads),
            dt_bias=dt_bias[:, None].expand(heads),
            dt_softplus=True,
        )
        return self._finished(y.flatten(1), z0, x0, z)[:, None], conv_state, ssm_state

    def _divided(self, projected: Tensor) -> tuple[Tensor, ...]:
        """The gates and inputs of other channels, the gate, what the convolution takes, and the steps."""
        others = self.d_inner - self.d_ssm
        sizes = [others, others, self.d_ssm, self.conv1d.weight.shape[0], self.nheads]
        return projected.split(sizes, dim=-1)

    def _parts(self, filtered: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x by heads, and B and C by groups."""
        matrix = self.ngroups * self.d_state
        x, B, C = filtered.split([self.d_ssm, matrix, matrix], dim=-1)
        groups = self.ngroups, self.d_state
        return x.unflatten(-1, (self.nheads, self.headdim)), B.unflatten(-1, groups), C.unflatten(-1, groups)

    def _scan_parameters(self) -> tuple[Tensor, Tensor, Tensor]:
        """A, D and the bias of steps, in float32 even where the block was converted to a dtype of fewer bits."""
        wide = torch.float64 if self.A_log.dtype == torch.float64 else torch.float32
        D = self.D.to(wide)
        D = D.unflatten(0, (self.nheads, self.headdim)) if self.D_has_hdim else D
        return -torch.exp(self.A_log.to(wide)), D, self.dt_bias.to(wide)

    def _finished(self, y: Tensor, z0: Tensor, x0: Tensor, z: Tensor) -> Tensor:
        """The norm, the other channels, and the projection behind the scan."""
        y = self.norm(y, z) if self.rmsnorm else y
        y = torch.cat((F.silu(z0) * x0, y), dim=-1) if z0.shape[-1] else y
        result: Tensor = self.out_proj(y)
        return result

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int = 0, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """conv_state, (batch_size, channels, d_conv) with contiguous channels, and ssm_state, (batch_size, nheads,
        headdim, d_state), of zeros.
        """
        weight = self.conv1d.weight
        made: dict[str, Any] = {"device": weight.device, "dtype": dtype or weight.dtype}
        conv_state = torch.zeros(batch_size, self.d_conv, weight.shape[0], **made).mT
        return conv_state, torch.zeros(batch_size, self.nheads, self.headdim, self.d_state, **made)
