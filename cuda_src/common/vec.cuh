// Vectors of kVec consecutive elements: one memory access of up to 16 bytes, or element by element at an edge.
#pragma once

#include "common/dtype.cuh"

// kVec elements of T in 32-bit registers, in memory order.
template <typename T, int kVec>
struct Vec {
    static constexpr int kPerWord = Dtype<T>::kPerWord;
    static constexpr int kBytes = kVec * static_cast<int>(sizeof(T));
    static constexpr int kWords = (kBytes + 3) / 4;
    static constexpr int kBits = 32 / kPerWord;  // per element
    static_assert(kBytes <= 16 && (kBytes & (kBytes - 1)) == 0, "one memory access is 1 to 16 bytes");

    unsigned words[kWords];

    __device__ __forceinline__ static Vec zero() {
        Vec v;
#pragma unroll
        for (int i = 0; i < kWords; ++i) v.words[i] = 0;
        return v;
    }

    __device__ __forceinline__ static Vec from_floats(const float (&values)[kVec]) {
        Vec v = zero();
        if constexpr (kVec < kPerWord) {
            v.put(0, Dtype<T>::from_float(values[0]));
        } else {
#pragma unroll
            for (int i = 0; i < kWords; ++i) v.words[i] = Dtype<T>::pack(values + i * kPerWord);
        }
        return v;
    }

    // The codes of these values: their products with a factor, rounded to nearest.
    __device__ __forceinline__ static Vec codes(const float (&values)[kVec], float factor) {
        Vec v;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            float part[kPerWord];
#pragma unroll
            for (int j = 0; j < kPerWord; ++j) part[j] = i * kPerWord + j < kVec ? values[i * kPerWord + j] : 0.0f;
            v.words[i] = Dtype<T>::pack(part, factor);
        }
        return v;
    }

    __device__ __forceinline__ float to_float(int i) const {
        return Dtype<T>::unpack(words[i / kPerWord], i % kPerWord);
    }

    __device__ __forceinline__ T element(int i) const { return Dtype<T>::element(words[i / kPerWord], i % kPerWord); }

    // Sets an element that is still zero.
    __device__ __forceinline__ void put(int i, T value) {
        words[i / kPerWord] |= Dtype<T>::bits(value) << (kBits * (i % kPerWord));
    }
};

// a where a condition holds, else b: selected word by word, so that neither is put in memory.
template <typename T, int kVec>
__device__ __forceinline__ Vec<T, kVec> select(bool condition, const Vec<T, kVec>& a, const Vec<T, kVec>& b) {
    Vec<T, kVec> v;
#pragma unroll
    for (int i = 0; i < Vec<T, kVec>::kWords; ++i) v.words[i] = condition ? a.words[i] : b.words[i];
    return v;
}

// Two vectors as the rows of a matrix: its i-th column.
template <typename T, int kVec>
__device__ __forceinline__ Vec<T, 2> column_of(const Vec<T, kVec>& first, const Vec<T, kVec>& second, int i) {
    Vec<T, 2> column;
    if constexpr (sizeof(T) == 2) {
        column.words[0] = __byte_perm(first.words[i / 2], second.words[i / 2], i % 2 == 0 ? 0x5410u : 0x7632u);
    } else {
        column.words[0] = first.words[i];
        column.words[1] = second.words[i];
    }
    return column;
}

// The other way: one of the two rows out of all columns.
template <typename T, int kVec>
__device__ __forceinline__ Vec<T, kVec> row_of(const Vec<T, 2> (&columns)[kVec], int row) {
    Vec<T, kVec> v;
#pragma unroll
    for (int i = 0; i < Vec<T, kVec>::kWords; ++i) {
        if constexpr (sizeof(T) == 2) {
            const unsigned low = columns[2 * i].words[0], high = columns[2 * i + 1].words[0];
            v.words[i] = __byte_perm(low, high, row == 0 ? 0x5410u : 0x7632u);
        } else {
            v.words[i] = columns[i].words[row];
        }
    }
    return v;
}

// Element i, for an i that is not known when the kernel is compiled.
template <typename T, int kVec>
__device__ __forceinline__ float any_element(const Vec<T, kVec>& v, int i) {
    constexpr int kWords = Vec<T, kVec>::kWords;
    const int number = i / Vec<T, kVec>::kPerWord;
    unsigned word = v.words[0];
#pragma unroll
    for (int w = 1; w < kWords; ++w) word = number == w ? v.words[w] : word;
    const int half = i % Vec<T, kVec>::kPerWord;
    return Dtype<T>::unpack(half == 0 ? word : word >> 16, 0);
}

// Whether a kernel may itself write the memory that it reads. kOnce is as kMutable, but marks its lines in the L2 cache
// to be evicted first, for nothing is read from them again or written to them soon.
enum class Memory { kConstant, kMutable, kOnce };

// What no kernel writes while this one runs. Of a kernel that starts early that is not true before it has waited, and
// the compiler would not keep constants behind the wait.
template <typename T>
__device__ __forceinline__ T load_constant(const T* p) {
    if constexpr (kStartsEarly) {
        return *p;
    } else {
        return __ldg(p);
    }
}

template <Memory kMemory, typename Word>
__device__ __forceinline__ Word load_word(const void* p) {
    if constexpr (kMemory == Memory::kConstant) {
        return load_constant(static_cast<const Word*>(p));
    } else if constexpr (kMemory == Memory::kOnce) {
        return __ldcs(static_cast<const Word*>(p));
    } else {
        return *static_cast<const Word*>(p);
    }
}

// Loads a vector by one access: p is aligned to the whole vector.
template <int kVec, Memory kMemory = Memory::kConstant, typename T>
__device__ __forceinline__ Vec<T, kVec> load(const T* p) {
    Vec<T, kVec> v;
    if constexpr (Vec<T, kVec>::kBytes == 16) {
        const uint4 word = load_word<kMemory, uint4>(p);
        v.words[0] = word.x;
        v.words[1] = word.y;
        v.words[2] = word.z;
        v.words[3] = word.w;
    } else if constexpr (Vec<T, kVec>::kBytes == 8) {
        const uint2 word = load_word<kMemory, uint2>(p);
        v.words[0] = word.x;
        v.words[1] = word.y;
    } else if constexpr (Vec<T, kVec>::kBytes == 4) {
        v.words[0] = load_word<kMemory, unsigned>(p);
    } else if constexpr (Vec<T, kVec>::kBytes == 2) {
        v.words[0] = load_word<kMemory, unsigned short>(p);
    } else {
        v.words[0] = load_word<kMemory, unsigned char>(p);
    }
    return v;
}

// Loads four integers by one access.
__device__ __forceinline__ int4 load4(const int* p) {
    return load_word<Memory::kConstant, int4>(p);
}

// An index out of an array of int or index_t.
__device__ __forceinline__ index_t load_index(const void* p, index_t at, int is_int64) {
    return is_int64 ? load_constant(static_cast<const index_t*>(p) + at)
                    : load_constant(static_cast<const int*>(p) + at);
}

// An index brought into -2**40 to 2**40, so that sums do not overflow. What was outside of everything stays outside.
__device__ __forceinline__ index_t bounded(index_t number) {
    constexpr index_t kMost = index_t{1} << 40;
    return min(max(number, -kMost), kMost);
}

// An index as it was loaded. Making a number of it waits for the load.
struct RawIndex {
    int low = 0;
    int high = 0;

    template <Memory kMemory = Memory::kConstant, typename Int>
    __device__ __forceinline__ void load(const void* p, Int at, int is_int64) {
        const int* const words = static_cast<const int*>(p) + (is_int64 ? 2 * at : at);
        low = load_word<kMemory, int>(words);
        if (is_int64) high = load_word<kMemory, int>(words + 1);
    }

    // The number brought into 0 to `most`.
    __device__ __forceinline__ int clamped(int is_int64, int most) const {
        const int sign = low >> 31;
        const int number = is_int64 && high != sign ? (high < 0 ? 0 : most) : low;
        return min(max(number, 0), most);
    }

    // The number where it is 0 to `count` - 1 and not `excluded`, else -1.
    __device__ __forceinline__ int below(int count, int excluded) const {
        const bool is_taken = high == 0 && low != excluded && static_cast<unsigned>(low) < static_cast<unsigned>(count);
        return is_taken ? low : -1;
    }

    __device__ __forceinline__ index_t value(int is_int64) const {
        return is_int64 ? high * (index_t{1} << 32) + static_cast<unsigned>(low) : low;
    }
};

// How a store uses the L2 cache: kStream marks its lines to be evicted first. kWhole is as kNormal, but stays one
// store: among shuffles the compiler splits an ordinary one into four.
enum class Keep { kNormal, kStream, kWhole };

template <Keep kKeep, typename Word>
__device__ __forceinline__ void store_word(void* p, Word word) {
    if constexpr (kKeep == Keep::kStream) {
        __stcs(static_cast<Word*>(p), word);
    } else if constexpr (kKeep == Keep::kWhole) {
        __stwb(static_cast<Word*>(p), word);
    } else {
        *static_cast<Word*>(p) = word;
    }
}

template <Keep kKeep = Keep::kNormal, typename T, int kVec>
__device__ __forceinline__ void store(T* p, const Vec<T, kVec>& v) {
    if constexpr (Vec<T, kVec>::kBytes == 16) {
        store_word<kKeep>(p, make_uint4(v.words[0], v.words[1], v.words[2], v.words[3]));
    } else if constexpr (Vec<T, kVec>::kBytes == 8) {
        store_word<kKeep>(p, make_uint2(v.words[0], v.words[1]));
    } else if constexpr (Vec<T, kVec>::kBytes == 4) {
        store_word<kKeep>(p, v.words[0]);
    } else if constexpr (Vec<T, kVec>::kBytes == 2) {
        store_word<kKeep>(p, static_cast<unsigned short>(v.words[0]));
    } else {
        store_word<kKeep>(p, static_cast<unsigned char>(v.words[0]));
    }
}

// Elements of the widest access to T that divides kCount elements, a power of two.
template <typename T, int kCount>
__device__ constexpr int widest_access() {
    int elements = 16 / static_cast<int>(sizeof(T));
    while (kCount % elements != 0) elements /= 2;
    return elements;
}

// kCount consecutive elements by as few accesses as possible. Their address is aligned to the widest access that
// divides them.
template <typename T, int kCount>
struct PackedVec {
    static constexpr int kVec = widest_access<T, kCount>();
    static constexpr int kPartWords = Vec<T, kVec>::kWords;
    static constexpr int kWords = kCount / kVec * kPartWords;

    Vec<T, kVec> parts[kCount / kVec];

    __device__ __forceinline__ static PackedVec zero() {
        PackedVec v;
#pragma unroll
        for (int i = 0; i < kCount / kVec; ++i) v.parts[i] = Vec<T, kVec>::zero();
        return v;
    }

    template <Memory kMemory>
    __device__ __forceinline__ void load(const T* p) {
#pragma unroll
        for (int i = 0; i < kCount / kVec; ++i) parts[i] = ::load<kVec, kMemory>(p + i * kVec);
    }

    __device__ __forceinline__ void store(T* p) const {
#pragma unroll
        for (int i = 0; i < kCount / kVec; ++i) ::store(p + i * kVec, parts[i]);
    }

    __device__ __forceinline__ float to_float(int i) const { return parts[i / kVec].to_float(i % kVec); }
    __device__ __forceinline__ T element(int i) const { return parts[i / kVec].element(i % kVec); }
    __device__ __forceinline__ unsigned word(int i) const { return parts[i / kPartWords].words[i % kPartWords]; }

    // Sets an element that is still zero.
    __device__ __forceinline__ void put(int i, T value) { parts[i / kVec].put(i % kVec, value); }
};

template <int kCount, Keep kKeep = Keep::kNormal, typename T>
__device__ __forceinline__ void store_packed(T* p, const float (&values)[kCount]) {
    constexpr int kVec = PackedVec<T, kCount>::kVec;
#pragma unroll
    for (int i = 0; i < kCount; i += kVec) {
        float part[kVec];
#pragma unroll
        for (int j = 0; j < kVec; ++j) part[j] = values[i + j];
        store<kKeep>(p + i, Vec<T, kVec>::from_floats(part));
    }
}

// Elements begin to end - 1 of the vector at p; the others are zero, and their memory is not touched.
template <int kVec, typename T>
__device__ __forceinline__ Vec<T, kVec> load_part(const T* p, int begin, int end) {
    Vec<T, kVec> v = Vec<T, kVec>::zero();
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
        if (i >= begin && i < end) v.put(i, p[i]);
    }
    return v;
}

template <typename T, int kVec>
__device__ __forceinline__ void store_part(T* p, const Vec<T, kVec>& v, int begin, int end) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
        if (i >= begin && i < end) p[i] = v.element(i);
    }
}

// Elements begin to end - 1 of a vector; the rest are zero.
template <typename T, int kVec>
__device__ __forceinline__ Vec<T, kVec> keep_part(const Vec<T, kVec>& v, int begin, int end) {
    Vec<T, kVec> part = Vec<T, kVec>::zero();
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
        if (i >= begin && i < end) part.put(i, v.element(i));
    }
    return part;
}

// Brings the vector at p to shared memory, where it is after the copy group is waited for at the latest. kLines: the
// rest of its line comes to the L2 cache.
template <bool kLines = false, typename T, int kVec>
__device__ __forceinline__ void copy_vector_async(Vec<T, kVec>* shared, const T* p) {
    if constexpr (Vec<T, kVec>::kBytes >= 4) {
        copy_async<Vec<T, kVec>::kBytes, kLines>(shared, p);
    } else {
        *shared = load<kVec>(p);
    }
}
