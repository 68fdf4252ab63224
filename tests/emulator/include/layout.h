// Types and offsets of a kernel's argument struct, for assertions that it is the record that the host packs.
#pragma once

#include <cstddef>
#include <type_traits>

namespace emulator {

template <typename Params>
Params params_of(void (*kernel)(Params));

template <typename T>
inline constexpr bool is_pointer = std::is_pointer_v<T>;

template <typename T>
inline constexpr bool is_pointer_array = std::rank_v<T> == 1 && std::is_pointer_v<std::remove_extent_t<T>>;

template <typename Params>
using Operands = decltype(Params::operands);

}  // namespace emulator

// EMULATOR_FIELD(x) defines Field_x<Params>: where the field x is. It is a member of Params, or else of its member
// `operands`, which kernels of one family share and the host's flat record does not know, or of `operands` in that.
#define EMULATOR_FIELD(name)                                                                          \
    template <typename Params, typename = void>                                                       \
    struct Field_##name {                                                                             \
        using Operands = emulator::Operands<Params>;                                                  \
        using Step = decltype(Operands::operands);                                                    \
        using Type = decltype(Step::name);                                                            \
        static constexpr std::size_t kOffset =                                                        \
            offsetof(Params, operands) + offsetof(Operands, operands) + offsetof(Step, name);         \
    };                                                                                                \
    template <typename Params>                                                                        \
    struct Field_##name<Params, std::void_t<decltype(emulator::Operands<Params>::name)>> {            \
        using Operands = emulator::Operands<Params>;                                                  \
        using Type = decltype(Operands::name);                                                        \
        static constexpr std::size_t kOffset = offsetof(Params, operands) + offsetof(Operands, name); \
    };                                                                                                \
    template <typename Params>                                                                        \
    struct Field_##name<Params, std::void_t<decltype(Params::name)>> {                                \
        using Type = decltype(Params::name);                                                          \
        static constexpr std::size_t kOffset = offsetof(Params, name);                                \
    };
