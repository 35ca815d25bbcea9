#include "distca/kernels/cpu/scratch.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdint>
#include <new>

#include "distca/base/integers.h"

namespace distca::kernels {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

std::byte* Scratch::reserve(size_t bytes) {
  if (bytes <= size_) return data_;
  std::free(data_);
  data_ = nullptr, size_ = 0;
  // Huge pages save misses of the address cache. Less than one is rounded up to small pages.
  const size_t alignment = bytes < kHugePage / 2 ? 4096 : kHugePage;
  const size_t size =
      static_cast<size_t>(round_up(static_cast<int64_t>(bytes), static_cast<int64_t>(alignment)));
  data_ = static_cast<std::byte*>(std::aligned_alloc(alignment, size));
  if (data_ == nullptr) throw std::bad_alloc();
  size_ = size;
#if defined(__linux__)
  if (alignment == kHugePage) madvise(data_, size_, MADV_HUGEPAGE);  // a wish, no need
#endif
  return data_;
}

}  // namespace distca::kernels
