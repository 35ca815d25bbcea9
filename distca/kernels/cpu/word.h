#pragma once
// The unit of packed operands: 32 bits, which are one fp32 number or a pair of bf16 numbers.

#include <cstdint>

namespace distca::kernels {

using Word [[gnu::may_alias]] = uint32_t;

}  // namespace distca::kernels
