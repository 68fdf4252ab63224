// A copy of one of a scan's arrays that lies the other way round: contiguous channels, or states, instead of contiguous
// tokens, or the reverse. Kernels whose lanes share tokens want all arrays alike. It also copies what a Mamba block
// convolves and scans.
//
// Layout: rows (outer, row, column) with contiguous columns; turned (outer, column, row) with contiguous rows. A block
// turns a tile of 128 bytes each way in shared memory: a thread loads 16 bytes of two neighbouring rows, and stores 16
// bytes of a column.
//
// input_t  rows and turned    kVec  elements per load    kTurnedVec  elements per store
#include "common/fastdiv.cuh"
#include "common/tokens.cuh"
#include "common/vec.cuh"

struct SelectiveScanTurnParams {
    const void* rows;
    void* turned;
    index_t rows_stride[3];    // two outer axes, row
    index_t turned_stride[3];  // two outer axes, column
    FastDiv tiles;             // of one matrix
    FastDiv row_tiles;         // that share a matrix's columns
    FastDiv inner;             // the second outer axis
    int row_count;
    int column_count;
};

template <typename input_t, int kVec, int kTurnedVec>
struct SelectiveScanTurnTraits {
    static constexpr int kThreads = 128;
    static constexpr int kWide = 16 / static_cast<int>(sizeof(input_t));  // elements of a thread's part of a row
    static constexpr int kLanes = 8;                                      // threads that share a row
    static constexpr int kSide = kLanes * kWide;
    static_assert(kVec <= kWide && kTurnedVec <= kWide && kSide / 2 * kLanes % kThreads == 0 &&
                  kSide * kLanes % kThreads == 0);
};

// A vector of the first `count` elements at p, the others zero.
template <int kWide, int kVec, typename T>
__device__ __forceinline__ Vec<T, kWide> load_first(const T* p, int count) {
    Vec<T, kWide> v = Vec<T, kWide>::zero();
#pragma unroll
    for (int i = 0; i < kWide; i += kVec) {
        if (i + kVec <= count) {
            const auto part = load<kVec>(p + i);
            if constexpr (kVec < Vec<T, kVec>::kPerWord) {
                v.put(i, part.element(0));
            } else {
#pragma unroll
                for (int w = 0; w < Vec<T, kVec>::kWords; ++w) v.words[i / Vec<T, kVec>::kPerWord + w] = part.words[w];
            }
        } else {
#pragma unroll
            for (int j = 0; j < kVec; ++j) {
                if (i + j < count) v.put(i + j, p[i + j]);
            }
        }
    }
    return v;
}

// Stores the first `count` elements of a vector.
template <int kTurnedVec, typename T, int kWide>
__device__ __forceinline__ void store_first(T* p, const Vec<T, kWide>& v, int count) {
#pragma unroll
    for (int i = 0; i < kWide; i += kTurnedVec) {
        if constexpr (kTurnedVec >= Vec<T, kTurnedVec>::kPerWord) {
            if (i + kTurnedVec <= count) {
                Vec<T, kTurnedVec> part;
#pragma unroll
                for (int w = 0; w < Vec<T, kTurnedVec>::kWords; ++w) {
                    part.words[w] = v.words[i / Vec<T, kTurnedVec>::kPerWord + w];
                }
                store(p + i, part);
                continue;
            }
        }
#pragma unroll
        for (int j = 0; j < kTurnedVec; ++j) {
            if (i + j < count) p[i + j] = v.element(i + j);
        }
    }
}

template <typename input_t, int kVec, int kTurnedVec,
          typename Traits = SelectiveScanTurnTraits<input_t, kVec, kTurnedVec>>
__global__ void __launch_bounds__(Traits::kThreads) selective_scan_turn_kernel(const SelectiveScanTurnParams params) {
    constexpr int kWide = Traits::kWide, kLanes = Traits::kLanes, kSide = Traits::kSide;
    const SelectiveScanTurnParams& p = params;
    // Columns of rows. The vectors of a column change places by the column, so that neither side waits for a bank.
    __shared__ alignas(16) input_t tile[kSide][kSide];
    const QuotientRemainder matrix_tile = divide(blockIdx.x, p.tiles);
    const QuotientRemainder outer = divide(matrix_tile.quotient, p.inner);
    const QuotientRemainder column_row = divide(matrix_tile.remainder, p.row_tiles);
    const int first_row = static_cast<int>(column_row.remainder) * kSide;
    const int first_column = static_cast<int>(column_row.quotient) * kSide;
    const input_t* const from = static_cast<const input_t*>(p.rows) + outer.quotient * p.rows_stride[0] +
                                outer.remainder * p.rows_stride[1] + first_column;
    input_t* const to = static_cast<input_t*>(p.turned) + outer.quotient * p.turned_stride[0] +
                        outer.remainder * p.turned_stride[1] + first_column * p.turned_stride[2] + first_row;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
    const int columns = p.column_count - first_column;
    constexpr int kPairs = kSide / 2 * kLanes / Traits::kThreads;  // of rows that a thread loads
    Vec<input_t, kWide> loaded[kPairs][2];
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
        const int row = first_row + 2 * ((thread + k * Traits::kThreads) / kLanes);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            loaded[k][j] = Vec<input_t, kWide>::zero();
            if (row + j < p.row_count) {
                loaded[k][j] =
                    load_first<kWide, kVec>(from + (row + j) * p.rows_stride[2] + lane * kWide, columns - lane * kWide);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
        const int row = 2 * ((thread + k * Traits::kThreads) / kLanes);
        const int place = (row / kWide ^ lane) * kWide + row % kWide;
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
            store(tile[lane * kWide + i] + place, column_of(loaded[k][0], loaded[k][1], i));
        }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kSide * kLanes / Traits::kThreads; ++k) {
        const int column = (thread + k * Traits::kThreads) / kLanes;
        const int count = p.row_count - first_row - lane * kWide;
        if (column < columns && count > 0) {
            const auto part = load<kWide, Memory::kMutable>(tile[column] + (lane ^ column / kWide) * kWide);
            store_first<kTurnedVec>(to + column * p.turned_stride[2] + lane * kWide, part, count);
        }
    }
}
