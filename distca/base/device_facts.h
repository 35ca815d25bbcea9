#pragma once
// Facts of a CUDA device that are known before anything runs on it. A plain value;
// comm/device_facts.h asks the driver.

#include <cstdint>

namespace distca {

struct DeviceFacts {
  int64_t bytes = 0;  // the size of its memory, free or in use
  int64_t multiprocessors = 0;
};

}  // namespace distca
