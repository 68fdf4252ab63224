"""Serving engines' functions, with their names, argument lists and meaning, computed by cuconv; no engine is imported.

A module per engine, `vllm`, `sglang`, `sgl_kernel`, `tensorrt_llm`, `megatron`, `tokenspeed` and `flashinfer`, says
which version it follows; `vllm_0_19` follows older ones of vLLM. Its functions translate an engine's conventions and
call cuconv's public functions; its `install()` puts them in the place of the engine's own, in this process.
"""
