// The entry of libFuzzer for the target that the macro names (tests/CMakeLists.txt).

#include <cstddef>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  distca::fuzz::DISTCA_FUZZ_TARGET({data, size});
  return 0;
}
