// Toolkit headers, and the only #if and inline assembly of the tree, for what those headers do not offer.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#if !defined(__CUDA_ARCH__)
#include <math.h>
#endif

// Strides and offsets across a tensor, in elements.
using index_t = long long;

template <bool kCondition, typename A, typename B>
struct Selected {
    using Type = A;
};
template <typename A, typename B>
struct Selected<false, A, B> {
    using Type = B;
};
// A where a condition holds, else B.
template <bool kCondition, typename A, typename B>
using Select = typename Selected<kCondition, A, B>::Type;

// Ten times the compute capability that the code is compiled for; 0 on a CPU.
#if defined(__CUDA_ARCH__)
inline constexpr int kArch = __CUDA_ARCH__ / 10;
#else
inline constexpr int kArch = 0;
#endif
// Whether code is that for compute capability 9.0, which the emulator runs, too.
inline constexpr bool kIsHopper = kArch == 90 || kArch == 0;

// 2**x by one special-function operation, results below 2**-126 flushed to zero; relative error below 2**-22 (PTX ISA,
// ex2.approx.ftz.f32).
__device__ __forceinline__ float exp2_approx(float x) {
#if defined(__CUDA_ARCH__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

// The same pointer, without anything that the compiler has derived about it.
template <typename T>
__device__ __forceinline__ T* opaque(T* pointer) {
#if defined(__CUDA_ARCH__)
    asm("" : "+l"(pointer));
#endif
    return pointer;
}

// The same number, without anything that the compiler has derived about it: a loop computes every time what depends on
// it, instead of keeping it in registers around the loop.
__device__ __forceinline__ int opaque(int number) {
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+r"(number));
#endif
    return number;
}

// The same number, which the compiler takes to differ from lane to lane: what follows from it stays out of the
// registers that a warp has only one of, whose instructions take longer.
__device__ __forceinline__ int of_own_lane(int number) {
#if defined(__CUDA_ARCH__)
    int zero;  // no block has more than 1024 threads
    asm("shr.u32 %0, %1, 10;" : "=r"(zero) : "r"(threadIdx.x));
    return number + zero;
#else
    return number;
#endif
}

// The same pointer, which the compiler may assume to point to global memory.
template <typename T>
__device__ __forceinline__ T* as_global(T* pointer) {
#if defined(__CUDA_ARCH__)
    __builtin_assume(__isGlobal(pointer));
#endif
    return pointer;
}

// The same pointer to shared memory, without anything else that the compiler has derived about it. It is computed once,
// where an opaque() pointer may be computed again in every turn of a loop.
template <typename T>
__device__ __forceinline__ T* opaque_shared(T* pointer) {
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+l"(pointer));
    __builtin_assume(__isShared(pointer));
#endif
    return pointer;
}

// Brings memory that is read soon into the L2 cache.
__device__ __forceinline__ void prefetch(const void* pointer) {
#if defined(__CUDA_ARCH__)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer));
#endif
}

// Brings contiguous bytes, a multiple of 16 at an address that is a multiple of 16, into the L2 cache by one
// instruction of one thread. Below compute capability 9.0 it does nothing. All of them have to be there: a CPU reads
// them.
__device__ __forceinline__ void prefetch_bulk(const void* global, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
#elif !defined(__CUDA_ARCH__)
    for (int i = 0; i < bytes; i += static_cast<int>(sizeof(uint4))) {
        const uint4 part = *reinterpret_cast<const uint4*>(static_cast<const char*>(global) + i);
        const volatile unsigned read = part.x | part.y | part.z | part.w;
        static_cast<void>(read);
    }
#endif
}

// Starts to copy kBytes, 4, 8 or 16, from global to shared memory, both aligned to that. Before compute capability 8.0
// they are copied when it returns. The copy goes through the L1 cache: past it, blocks that read the same memory wait
// for each other. kLines: the rest of a line of 128 bytes comes to the L2 cache, where it is read soon. kOnce: of 16
// bytes that no other block reads, and past the L1 cache.
template <int kBytes = 16, bool kLines = false, bool kOnce = false>
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
    static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "one asynchronous copy is 4, 8 or 16 bytes");
    static_assert(!kOnce || kBytes == 16 && !kLines, "a copy past the L1 cache is 16 bytes");
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    if constexpr (kOnce) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(kBytes) : "memory");
    } else if constexpr (kLines) {
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(kBytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(kBytes) : "memory");
    }
#elif defined(__CUDA_ARCH__)
    using Words = Select<kBytes == 16, uint4, Select<kBytes == 8, uint2, unsigned>>;
    *static_cast<Words*>(shared) = *static_cast<const Words*>(global);
#else
    __pipeline_memcpy_async(shared, global, kBytes);
#endif
}

// The same where a condition holds. There is no branch, so that what lies in front of it and behind can be mixed.
template <int kBytes>
__device__ __forceinline__ void copy_async_if(bool condition, void* shared, const void* global) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile(
        "{ .reg .pred given; setp.ne.b32 given, %3, 0; @given cp.async.ca.shared.global [%0], [%1], %2; }" ::"r"(to),
        "l"(global), "n"(kBytes), "r"(static_cast<int>(condition))
        : "memory");
#else
    if (condition) copy_async<kBytes>(shared, global);
#endif
}

// A copy of kBytes of which only the first `bytes`, an even number of them, are read; the others become zero.
template <int kBytes = 16>
__device__ __forceinline__ void copy_front_async(void* shared, const void* global, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(kBytes), "r"(bytes)
                 : "memory");
#elif defined(__CUDA_ARCH__)
    unsigned short* const to = static_cast<unsigned short*>(shared);
    const unsigned short* const from = static_cast<const unsigned short*>(global);
#pragma unroll
    for (int i = 0; i < kBytes / 2; ++i) to[i] = 2 * i < bytes ? from[i] : 0;
#else
    __pipeline_memcpy_async(shared, global, kBytes, kBytes - bytes);
#endif
}

// Ends a group of copies that this thread has started.
__device__ __forceinline__ void end_copy_group() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#elif !defined(__CUDA_ARCH__)
    __pipeline_commit();
#endif
}

// Waits for all groups of copies but the last kPending that this thread has ended; other threads see them after a
// barrier.
template <int kPending>
__device__ __forceinline__ void wait_for_copy_groups() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#elif !defined(__CUDA_ARCH__)
    __pipeline_wait_prior(kPending);
#endif
}

// Waits for all copies that this thread has started, the same as ending a group and waiting for all of them.
__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#else
    end_copy_group();
    wait_for_copy_groups<0>();
#endif
}

// The barrier of bulk copies, of which a phase ends when the bytes that were expected of it have come. Bulk copies are
// instructions of compute capability 9.0 and above; elsewhere these functions do nothing, and nothing calls them.
__device__ __forceinline__ void init_barrier(unsigned long long* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void expect_bytes(unsigned long long* barrier, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
#endif
}

// Starts to copy contiguous bytes, a multiple of 16 at addresses that are multiples of 16.
__device__ __forceinline__ void copy_bulk(void* shared, const void* global, int bytes, unsigned long long* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(global), "r"(bytes), "r"(at)
                 : "memory");
#endif
}

// Waits for the end of a phase: phases have the parities 0, 1, 0 and so on.
__device__ __forceinline__ void wait_for_bytes(unsigned long long* barrier, unsigned parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    unsigned is_over;
    do {
        asm volatile(
            "{\n.reg .pred over;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
            "selp.u32 %0, 1, 0, over;\n}"
            : "=r"(is_over)
            : "r"(at), "r"(parity)
            : "memory");
    } while (is_over == 0);
#endif
}

// Orders this thread's stores to shared memory before bulk copies to the same place that follow a synchronisation.
__device__ __forceinline__ void order_before_copy_bulk() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Starts to copy the other way, what stores to shared memory have written that are ordered before it
// (order_before_copy_bulk()). The copies that this thread has started have read it when wait_for_bulk_reads() returns.
__device__ __forceinline__ void copy_bulk_out(void* global, const void* shared, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(from), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_bulk_reads() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

// Whether the kernel starts before the preceding one on its stream has ended (cuconv/runtime/dependent.py). The host
// compiles it twice: on an H200 the order of loads that this takes makes other steps up to 17 % slower.
#if defined(CUCONV_STARTS_EARLY) || !defined(__CUDA_ARCH__)
inline constexpr bool kStartsEarly = true;
#else
inline constexpr bool kStartsEarly = false;
#endif

// Whether it reads what no preceding kernel writes before it waits: slower where blocks run one after the other, of
// which most meet no preceding kernel.
#if defined(CUCONV_WAITS_FIRST)
inline constexpr bool kReadsFirst = false;
#else
inline constexpr bool kReadsFirst = kStartsEarly;
#endif

// Lets the next kernel start before this one has waited, where the kernel's class says so in LETS_GO_FIRST.
__device__ __forceinline__ void let_next_start() {
#if defined(CUCONV_STARTS_EARLY) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the preceding kernel has ended and all that it wrote can be read, then lets the next kernel start; does
// nothing in a kernel that does not start early. Every thread calls it once, those that leave early too: else a kernel
// could end before an earlier one, and those behind it would read what is not yet written. Before it a thread stores
// nothing and reads only the pointers that the kernel's class names in EARLY.
__device__ __forceinline__ void wait_for_preceding() {
#if !defined(__CUDA_ARCH__)
    cudaGridDependencySynchronize();
#elif defined(CUCONV_STARTS_EARLY) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    let_next_start();
}

// Lets the next launch of the same call start, a kernel with FOLLOWS that waits for this one (wait_for_leader). Only
// kernels that such a launch follows call it. It starts when all blocks of this kernel have called it or ended.
__device__ __forceinline__ void let_follower_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the launch before this one in the same call has ended and all that it wrote can be read. Every thread
// calls it once, before it reads or writes global memory. Where the launch was an ordinary one, that has ended already.
__device__ __forceinline__ void wait_for_leader() {
#if !defined(__CUDA_ARCH__)
    cudaGridDependencySynchronize();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// 1 / x by one special-function operation, results below 2**-126 flushed to zero; within one unit in the last place
// (PTX ISA, rcp.approx.ftz.f32).
__device__ __forceinline__ float reciprocal_approx(float x) {
#if defined(__CUDA_ARCH__)
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return fabsf(x) > 8.507059173023462e37f ? copysignf(0.0f, x) : 1.0f / x;
#endif
}

// a / b, correctly rounded as division is, without its branches: for quotients and divisors between 2**-126 and 2**126.
// A divisor that is larger gives 0, and one that is not finite NaN.
__device__ __forceinline__ float quotient(float a, float b) {
    const float approximate = reciprocal_approx(b);
    const float inverse = fmaf(approximate, fmaf(-b, approximate, 1.0f), approximate);
    const float first = a * inverse;
    const float second = fmaf(fmaf(-b, first, a), inverse, first);
    return fmaf(fmaf(-b, second, a), inverse, second);
}

// Whether there are tensor cores with products of 16-bit floats that are added in float32.
inline constexpr bool kHasTensorCores = kArch >= 80;

// sum += a * b of a warp, by the layout of common/mma.cuh: of __half, or of __nv_bfloat16.
template <bool kIsHalf>
__device__ __forceinline__ void multiply_add_tile(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (kIsHalf) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#endif
}

// sum += a * b of a warp, of signed integers of 8 bits, by the layout of common/mma.cuh.
__device__ __forceinline__ void multiply_add_tile_codes(int (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// The greater of two numbers; NaN if one of them is, where fmaxf gives the other.
__device__ __forceinline__ float max_or_nan(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    float greater;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
    return greater;
#else
    return b != b || a < b ? b : a;
#endif
}

// The greatest of three integers, by one instruction from compute capability 9.0 on.
__device__ __forceinline__ unsigned max_of_three(unsigned a, unsigned b, unsigned c) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return __vimax3_u32(a, b, c);
#else
    return max(max(a, b), c);
#endif
}

// Bytes 2 i and 2 i + 1 of a word, 8-bit floats e4m3, as a pair of __half; byte i as a float.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
__device__ __forceinline__ unsigned e4m3_to_halves(unsigned word, int i) {
    unsigned halves;
    asm("{ .reg .b16 pair; cvt.u16.u32 pair, %1; cvt.rn.f16x2.e4m3x2 %0, pair; }"
        : "=r"(halves)
        : "r"(word >> (16 * i) & 0xffffu));
    return halves;
}

__device__ __forceinline__ float e4m3_to_float(unsigned word, int i) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(e4m3_to_halves(word, i / 2) >> (16 * (i % 2)))));
}
#else
__device__ __forceinline__ float e4m3_to_float(unsigned word, int i) {
    const unsigned bits = word >> (8 * i) & 0xffu, size = bits & 0x7fu;
    // The same bits of exponent and mantissa are a __half that is 2**8 too small.
    const unsigned half = size == 0x7fu ? 0x7fffu : size << 7 | (bits & 0x80u) << 8;
    return __half2float(__ushort_as_half(static_cast<unsigned short>(half))) * 256.0f;
}

__device__ __forceinline__ unsigned e4m3_to_halves(unsigned word, int i) {
    const __half low = __float2half_rn(e4m3_to_float(word, 2 * i)),
                 high = __float2half_rn(e4m3_to_float(word, 2 * i + 1));
    return __half_as_ushort(low) | static_cast<unsigned>(__half_as_ushort(high)) << 16;
}
#endif

// Two floats as 8-bit floats e4m3, the first in the lower byte: the nearest ones, even ones between two, 448 where a
// number is larger.
__device__ __forceinline__ unsigned floats_to_e4m3(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned pair;
    asm("{ .reg .b16 pair; cvt.rn.satfinite.e4m3x2.f32 pair, %2, %1; cvt.u32.u16 %0, pair; }"
        : "=r"(pair)
        : "f"(low), "f"(high));
    return pair;
#else
    unsigned pair = 0;
    for (int i = 0; i < 2; ++i) {
        const unsigned all = __float_as_uint(i == 0 ? low : high), size = all & 0x7fffffffu;
        const float least = __uint_as_float(size < 0x43e00000u ? size : 0x43e00000u);
        // A float has 20 bits of mantissa more, and an exponent 120 larger. Below 2**-6 the bits are those of the
        // multiple of 2**-9, which a sum with 2**14 rounds to.
        const unsigned normal =
            ((__float_as_uint(least) + 0x7ffffu + (__float_as_uint(least) >> 20 & 1u)) >> 20) - 960u;
        const unsigned small = __float_as_uint(least + 16384.0f) - 0x46800000u;
        const unsigned bits = size > 0x7f800000u ? 0x7fu : least < 0.015625f ? small : normal;
        pair |= (bits | (all >> 24 & 0x80u)) << (8 * i);
    }
    return pair;
#endif
}

// tanh by one special-function operation; relative error below 2^-10.9 (PTX ISA, tanh.approx.f32).
__device__ __forceinline__ float tanh_approx(float x) {
#if defined(__CUDA_ARCH__)
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return tanhf(x);
#endif
}

// One more than what the counter held, as one indivisible step; a counter begins with all bits set.
__device__ __forceinline__ unsigned next_number(float* counter) {
    return atomicAdd(reinterpret_cast<unsigned*>(counter), 1u) + 1u;
}

// The same for a counter that says what has been done: what the thread did before it, or saw to be done, comes before
// what a thread does that draws a later number.
__device__ __forceinline__ unsigned next_number_in_order(float* counter) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
    unsigned number;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(number) : "l"(counter) : "memory");
    return number + 1u;
#else
    __threadfence();
    const unsigned number = next_number(counter);
    __threadfence();
    return number;
#endif
}

// A word that other blocks read and write at the same time: it is there as a whole, and says nothing of other memory.
__device__ __forceinline__ unsigned load_relaxed(const float* place) {
    unsigned bits;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(place) : "memory");
#else
    bits = *reinterpret_cast<const volatile unsigned*>(place);
#endif
    return bits;
}

// The same for a counter of next_number_in_order, whose last number it takes without drawing one.
__device__ __forceinline__ unsigned load_in_order(const float* counter) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
    unsigned bits;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(counter) : "memory");
    return bits;
#else
    const unsigned bits = load_relaxed(counter);
    __threadfence();
    return bits;
#endif
}

__device__ __forceinline__ void store_relaxed(float* place, unsigned bits) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(place), "r"(bits) : "memory");
#else
    *reinterpret_cast<volatile unsigned*>(place) = bits;
#endif
}
