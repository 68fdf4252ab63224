// Copies of rows between arrays that are aligned otherwise. Kernels whose lanes share tokens access vectors of 16
// bytes, and of rows of contiguous tokens every one begins elsewhere in a vector, unless their length is a multiple of
// one.
//
// Layout: up to four arrays of (outer, inner, row) with contiguous elements of a row. A thread owns a vector of 16
// bytes of the copy, aligned there, and loads the one or two aligned vectors that have its elements. The grid's second
// axis is the array, and its third one the copy of it: there may be several, which begin elsewhere in a vector.
//
// input_t  rows and their copies
#include "common/fastdiv.cuh"
#include "common/vec.cuh"

inline constexpr int kMostAligned = 4;

struct SelectiveScanAlignParams {
    const void* rows[kMostAligned];
    void* aligned[kMostAligned];
    index_t rows_stride[3 * kMostAligned];  // two outer axes, and rows
    index_t aligned_stride[3 * kMostAligned];
    index_t next_copy;  // from a copy's first element to that of the next
    FastDiv vectors;    // of a row
    FastDiv row_count;
    FastDiv inner;   // the second outer axis
    unsigned count;  // vectors of all rows
    int length;      // elements of a row
    int offset;      // of the first copy
};

template <typename input_t>
struct SelectiveScanAlignTraits {
    static constexpr int kThreads = 256;
};

// The vector that begins `distance` elements behind the beginning of the first one, and ends in the second.
template <typename T, int kVec>
__device__ __forceinline__ Vec<T, kVec> behind(const Vec<T, kVec>& first, const Vec<T, kVec>& second, int distance) {
    constexpr int kWords = Vec<T, kVec>::kWords, kPerWord = Vec<T, kVec>::kPerWord;
    static_assert(kWords == 4);
    unsigned words[2 * kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
        words[i] = first.words[i];
        words[kWords + i] = second.words[i];
    }
    const int whole = distance / kPerWord;
#pragma unroll
    for (int i = 0; i < kWords + 2; ++i) words[i] = (whole & 2) != 0 ? words[i + 2] : words[i];
#pragma unroll
    for (int i = 0; i < kWords + 1; ++i) words[i] = (whole & 1) != 0 ? words[i + 1] : words[i];
    Vec<T, kVec> v;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
        v.words[i] = distance % kPerWord != 0 ? __byte_perm(words[i], words[i + 1], 0x5432u) : words[i];
    }
    return v;
}

template <typename input_t, typename Traits = SelectiveScanAlignTraits<input_t>>
__global__ void __launch_bounds__(Traits::kThreads) selective_scan_align_kernel(const SelectiveScanAlignParams params) {
    using T = input_t;
    constexpr int kVec = 16 / static_cast<int>(sizeof(T));
    const SelectiveScanAlignParams& p = params;
    const unsigned number = blockIdx.x * Traits::kThreads + threadIdx.x;
    if (number >= p.count) return;
    const int array = static_cast<int>(blockIdx.y);
    const QuotientRemainder row_vector = divide(number, p.vectors);
    const QuotientRemainder matrix_row = divide(row_vector.quotient, p.row_count);
    const QuotientRemainder outer = divide(matrix_row.quotient, p.inner);
    const auto place = [&](const index_t* stride) {
        stride += 3 * array;
        return outer.quotient * stride[0] + outer.remainder * stride[1] + matrix_row.remainder * stride[2];
    };
    const T* const from = static_cast<const T*>(p.rows[array]) + place(p.rows_stride);
    T* const to = static_cast<T*>(p.aligned[array]) + p.offset + blockIdx.z * p.next_copy + place(p.aligned_stride);
    const auto misalignment = [](const void* at) {
        return static_cast<int>(reinterpret_cast<size_t>(at) / sizeof(T) % kVec);
    };
    // The vector's first element, counted from the row's; some of its elements may not be the row's.
    const int first = static_cast<int>(row_vector.remainder) * kVec - misalignment(to);
    const int distance = (first + misalignment(from) + kVec) % kVec;
    const int loaded = first - distance, behind_loaded = loaded + (distance == 0 ? 1 : 2) * kVec;
    Vec<T, kVec> v = Vec<T, kVec>::zero();
    if (loaded >= 0 && behind_loaded <= p.length) {
        v = load<kVec>(from + loaded);
        if (distance != 0) v = behind(v, load<kVec>(from + loaded + kVec), distance);
    } else {
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            if (first + i >= 0 && first + i < p.length) v.put(i, from[first + i]);
        }
    }
    if (first >= 0 && first + kVec <= p.length) {
        // Otherwise the compiler splits this vector.
        store<Keep::kWhole>(to + first, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
        if (first + i >= 0 && first + i < p.length) to[first + i] = v.element(i);
    }
}
