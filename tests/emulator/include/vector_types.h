// The toolkit's vector types with their alignment, by which the sanitizer finds misaligned accesses.
#pragma once

#define EMULATOR_VECTORS(name, type)                                   \
    struct name##1 {                                                   \
        type x;                                                        \
    };                                                                 \
    struct alignas(2 * sizeof(type)) name##2 {                         \
        type x, y;                                                     \
    };                                                                 \
    struct name##3 {                                                   \
        type x, y, z;                                                  \
    };                                                                 \
    struct alignas(sizeof(type) < 4 ? 4 * sizeof(type) : 16) name##4 { \
        type x, y, z, w;                                               \
    };                                                                 \
    inline name##1 make_##name##1(type x) {                            \
        return {x};                                                    \
    }                                                                  \
    inline name##2 make_##name##2(type x, type y) {                    \
        return {x, y};                                                 \
    }                                                                  \
    inline name##3 make_##name##3(type x, type y, type z) {            \
        return {x, y, z};                                              \
    }                                                                  \
    inline name##4 make_##name##4(type x, type y, type z, type w) {    \
        return {x, y, z, w};                                           \
    }

EMULATOR_VECTORS(char, signed char)
EMULATOR_VECTORS(uchar, unsigned char)
EMULATOR_VECTORS(short, short)
EMULATOR_VECTORS(ushort, unsigned short)
EMULATOR_VECTORS(int, int)
EMULATOR_VECTORS(uint, unsigned)
EMULATOR_VECTORS(longlong, long long)
EMULATOR_VECTORS(ulonglong, unsigned long long)
EMULATOR_VECTORS(float, float)
EMULATOR_VECTORS(double, double)

#undef EMULATOR_VECTORS

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
