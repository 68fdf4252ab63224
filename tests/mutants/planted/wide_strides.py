"""Offsets that are forced to 32 bits, in every family."""

from __future__ import annotations

from tests.mutants import Mutant

MUTANTS = (
    Mutant(
        "A row's offset is forced to 32 bits.",
        "causal_conv1d/conv_row.cuh",
        "static_cast<const input_t*>(p.x) + batch * p.x_stride[0] + channel * p.x_stride[1];",
        "static_cast<const input_t*>(p.x) + static_cast<int>(batch * p.x_stride[0] + channel * p.x_stride[1]);",
        ("families/test_wide_strides.py::test_entries_gigabytes_apart[causal_conv1d_fn-2-3-1029-x_out]",),
    ),
    Mutant(
        "The offset of a row's results is forced to 32 bits.",
        "causal_conv1d/conv_row.cuh",
        "static_cast<input_t*>(p.out) + batch * p.out_stride[0] + channel * p.out_stride[1];",
        "static_cast<input_t*>(p.out) + static_cast<int>(batch * p.out_stride[0] + channel * p.out_stride[1]);",
        ("families/test_wide_strides.py::test_entries_gigabytes_apart[causal_conv1d_fn-1-3-40-x_out]",),
    ),
    Mutant(
        "The offset of contiguous channels is forced to 32 bits.",
        "causal_conv1d/causal_conv1d_channellast_fwd.cu",
        "static_cast<const input_t*>(p.x) + batch * p.x_stride[0] +",
        "static_cast<const input_t*>(p.x) + static_cast<int>(batch * p.x_stride[0]) +",
        (
            (
                "families/test_wide_strides.py::test_entries_gigabytes_apart"
                "[causal_conv1d_fn-2-6-35-layout_channel_last-final-x_final_states_out]"
            ),
        ),
    ),
    Mutant(
        "The slot of a packed sequence's state is found in 32 bits.",
        "causal_conv1d/conv_state.cuh",
        "slot * p.conv_states_stride[0] + channel * p.conv_states_stride[1];",
        "static_cast<int>(slot * p.conv_states_stride[0] + channel * p.conv_states_stride[1]);",
        (("families/test_wide_strides.py::test_entries_gigabytes_apart[causal_conv1d_varlen_fn-8-9+2-conv_states]"),),
    ),
    Mutant(
        "A sequence's own state is written by an offset of 32 bits.",
        "causal_conv1d/causal_conv1d_varlen_states.cu",
        "static_cast<input_t*>(p.out) + sequence * p.out_stride[0]",
        "static_cast<input_t*>(p.out) + static_cast<int>(sequence * p.out_stride[0])",
        (("families/test_wide_strides.py::test_entries_gigabytes_apart[causal_conv1d_varlen_states-8-8+1-4-out]"),),
    ),
    Mutant(
        "A decode step finds its slot in 32 bits.",
        "causal_conv1d/conv_token_states.cuh",
        "static_cast<state_t*>(p->conv_state) + slot * stride[0] +",
        "static_cast<state_t*>(p->conv_state) + static_cast<int>(slot * stride[0]) +",
        ("families/test_wide_strides.py::test_entries_gigabytes_apart[causal_conv1d_update-8-2-conv_state]",),
    ),
    Mutant(
        "A short state's slot is found in 32 bits.",
        "causal_conv1d/causal_conv1d_update_rows.cu",
        "channel * kStateLen + slot * p.conv_state_stride[0];",
        "channel * kStateLen + static_cast<int>(slot * p.conv_state_stride[0]);",
        (
            (
                "families/test_wide_strides.py::test_entries_gigabytes_apart"
                "[causal_conv1d_update-8-2-pool_columns-conv_state]"
            ),
        ),
    ),
    Mutant(
        "A plain scan's row is found in 32 bits.",
        "selective_scan/scan.cuh",
        "static_cast<Pointee*>(base) + batch * stride[0] + channel * stride[1]",
        "static_cast<Pointee*>(base) + static_cast<int>(batch * stride[0]) + channel * stride[1]",
        (
            "families/test_wide_strides.py::test_entries_gigabytes_apart[selective_scan_fn-2-60-43-processors_1-u_delta_out]",
        ),
    ),
    Mutant(
        "A short row is found in 32 bits.",
        "selective_scan/scan_parts.cuh",
        "static_cast<const T*>(p.u) + batch * p.u_stride[0] + first_token",
        "static_cast<const T*>(p.u) + static_cast<int>(batch * p.u_stride[0]) + first_token",
        ("families/test_wide_strides.py::test_entries_gigabytes_apart[selective_scan_fn-2-3-43-u_delta_out]",),
    ),
    Mutant(
        "A short row of one state is found in 32 bits.",
        "selective_scan/selective_scan_short_fwd.cu",
        "return batch * stride[0] + number * stride[1]; };",
        "return static_cast<int>(batch * stride[0]) + number * stride[1]; };",
        (
            "families/test_wide_strides.py::test_entries_gigabytes_apart[selective_scan_fn-2-3-43-d_state_1-u_delta_out]",
        ),
    ),
    Mutant(
        "A tile's matrices are found in 32 bits.",
        "selective_scan/tile_block.cuh",
        "static_cast<const T*>(base) + batch * stride[0] + group * stride[1];",
        "static_cast<const T*>(base) + static_cast<int>(batch * stride[0]) + group * stride[1];",
        ("families/test_wide_strides.py::test_entries_gigabytes_apart[selective_scan_fn-2-35-72-processors_1-B_C]",),
    ),
    Mutant(
        "A scan finds its sequence's slot in 32 bits.",
        "selective_scan/scan_few_windows.cuh",
        "pool.states + slot * pool.stride[0];",
        "pool.states + static_cast<int>(slot * pool.stride[0]);",
        (
            (
                "families/test_wide_strides.py::test_entries_gigabytes_apart"
                "[selective_scan_varlen_fn-3-16+8-spare_0-initial_all-ssm_states]"
            ),
        ),
    ),
    Mutant(
        "All offsets of a state update are in 32 bits.",
        "selective_state_update/steps.cuh",
        "using Offset = Select<kIndex32, int, index_t>;",
        "using Offset = int;",
        ("families/test_wide_strides.py::test_entries_gigabytes_apart[selective_state_update-3-0-9-16-x_out]",),
    ),
    Mutant(
        "A state update finds its slot in 32 bits.",
        "selective_state_update/steps.cuh",
        "const StateRows<Traits> from_rows = rows + max(slot, 0) * slot_stride;",
        "const StateRows<Traits> from_rows = rows + static_cast<int>(max(slot, 0) * slot_stride);",
        (
            (
                "families/test_wide_strides.py::test_entries_gigabytes_apart"
                "[selective_state_update-2-0-9-16-spare_0-state]"
            ),
        ),
    ),
    Mutant(
        "The scale of a slot is found in 32 bits.",
        "selective_state_update/steps.cuh",
        "const index_t at = slot * static_cast<index_t>(stride[0]);",
        "const index_t at = slot * static_cast<int>(stride[0]);",
        (
            (
                "families/test_wide_strides.py::test_entries_gigabytes_apart"
                "[selective_state_update-2-0-9-16-state_dtype_int8-spare_0-state_state_scale]"
            ),
        ),
    ),
)
