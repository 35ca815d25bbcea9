#pragma once
// The two passes of a step. Operations, ticks and prices name theirs. A plain value.

#include <cstdint>

namespace distca {

enum class Pass : uint8_t { kForward, kBackward };

constexpr const char* pass_name(Pass pass) {
  return pass == Pass::kForward ? "forward" : "backward";
}

}  // namespace distca
