"""Short convolutions and state-space operators for NVIDIA GPUs, compiled on demand."""

try:
    from cuconv.causal_conv1d.backward import causal_conv1d_bwd, causal_conv1d_varlen_bwd
    from cuconv.causal_conv1d.dense import causal_conv1d_fn
    from cuconv.causal_conv1d.states import causal_conv1d_varlen_states
    from cuconv.causal_conv1d.update import (
        causal_conv1d_update,
        causal_conv1d_update_qkv_split,
        causal_conv1d_update_split,
    )
    from cuconv.causal_conv1d.varlen import causal_conv1d_qkv_split, causal_conv1d_split, causal_conv1d_varlen_fn
    from cuconv.runtime import operation as _operation
    from cuconv.runtime.bind import bind
    from cuconv.runtime.dependent import dependent_launch
    from cuconv.selective_scan.backward import selective_scan_bwd, selective_scan_varlen_bwd
    from cuconv.selective_scan.dense import selective_scan_fn
    from cuconv.selective_scan.varlen import selective_scan_varlen_fn
    from cuconv.selective_state_update.replay import selective_state_update_replay
    from cuconv.selective_state_update.rings import (
        ReplayRings,
        selective_state_update_commit,
        selective_state_update_materialise,
    )
    from cuconv.selective_state_update.update import selective_state_update

    def _through_torch(operation, given, options, outputs, late):  # type: ignore[no-untyped-def]
        from cuconv.torch import operators

        return operators.call(operation, given, options, outputs, late)

    # The runtime may not import cuconv.torch, and only programs that use torch import it.
    _operation.through_torch = _through_torch
except ModuleNotFoundError as _error:
    # The command line has to start without them, to say what is missing.
    if _error.name not in ("numpy", "ml_dtypes"):
        raise
    _missing = _error.name

    def __getattr__(name: str) -> object:
        """What every public function is without the packages that it needs."""
        if name not in __all__:
            raise AttributeError(f"module 'cuconv' has no attribute {name!r}")
        raise ModuleNotFoundError(f"cuconv.{name} needs {_missing}: run pip install {_missing}", name=_missing)


__all__ = [
    "causal_conv1d_bwd",
    "causal_conv1d_fn",
    "causal_conv1d_qkv_split",
    "causal_conv1d_split",
    "causal_conv1d_update",
    "causal_conv1d_update_qkv_split",
    "causal_conv1d_update_split",
    "causal_conv1d_varlen_bwd",
    "causal_conv1d_varlen_fn",
    "causal_conv1d_varlen_states",
    "selective_scan_bwd",
    "selective_scan_fn",
    "selective_scan_varlen_bwd",
    "selective_scan_varlen_fn",
    "selective_state_update",
    "selective_state_update_commit",
    "selective_state_update_materialise",
    "selective_state_update_replay",
]

OPERATORS = tuple(__all__)
"""The functions that compute."""

__all__ += ["ReplayRings", "bind", "dependent_launch"]
