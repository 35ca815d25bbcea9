#include "distca/base/heap.h"

#include <malloc.h>

namespace distca {

void keep_freed_memory() {
  constexpr int kGrown = 64 << 20;  // at a time
  mallopt(M_MMAP_MAX, 0);           // a block of its own would be given back when it is freed
  mallopt(M_TRIM_THRESHOLD, -1);    // never
  mallopt(M_TOP_PAD, kGrown);
}

}  // namespace distca
