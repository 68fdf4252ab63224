// Moves the cursors of sequences' slots (replay.cuh) over what the step has done: the live tokens that it has put in
// the state leave the ring, and of those that it has put behind them the accepted ones stay. Or makes rings empty.
//
// Layout: a thread has a sequence.
//
// kEmpty  the rings are made empty
#include "common/vec.cuh"

struct SelectiveStateUpdateCommitParams {
    void* cursors;
    const void* accepted;
    const void* state_batch_indices;
    index_t cursors_stride;
    index_t accepted_stride;
    index_t state_batch_indices_stride;
    index_t slots;
    index_t pad_slot_id;
    int batch;
    int ring_rows;
    int window;
    int accepted_is_int64;
    int state_batch_indices_is_int64;
};

template <bool kEmpty>
struct SelectiveStateUpdateCommitTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 1;
};

template <bool kEmpty, typename Traits = SelectiveStateUpdateCommitTraits<kEmpty>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_commit_kernel(const SelectiveStateUpdateCommitParams p) {
    const int batch = blockIdx.x * Traits::kThreads + threadIdx.x;
    index_t slot = batch < p.batch ? batch : -1;
    if (slot >= 0 && p.state_batch_indices != nullptr) {
        slot = load_index(p.state_batch_indices, batch * p.state_batch_indices_stride, p.state_batch_indices_is_int64);
        if (slot == p.pad_slot_id) slot = -1;
    }
    wait_for_preceding();
    if (slot < 0 || slot >= p.slots) return;
    int* cursor = static_cast<int*>(p.cursors) + slot * p.cursors_stride;
    int start = 0, live = 0;
    if constexpr (!kEmpty) {
        const int appended = cursor[2], folded = cursor[3];
        start = (cursor[0] + folded) % p.ring_rows;
        index_t accepted = appended;
        if (p.accepted != nullptr) {
            accepted = load_index(p.accepted, batch * p.accepted_stride, p.accepted_is_int64);
            accepted = min(max(accepted, static_cast<index_t>(0)), static_cast<index_t>(appended));
        }
        live = min(cursor[1] - folded + static_cast<int>(accepted), p.window);
    }
    cursor[0] = start;
    cursor[1] = live;
    cursor[2] = 0;
    cursor[3] = 0;
}
