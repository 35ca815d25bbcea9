#pragma once
// The scratch memory of one thread of our own attention kernel. One thread at a time may use it.

#include <cstddef>
#include <cstdlib>

namespace distca::kernels {

/// Memory that grows to the most that was ever asked for. It lies on pages of its own that the
/// thread touches first itself: so they lie in the memory next to its core, and no two threads
/// write one cache line.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }

  /// Returns at least so many bytes, aligned to a page and not cleared. Earlier pointers are void
  /// where it grows. Throws std::bad_alloc.
  std::byte* reserve(size_t bytes);

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace distca::kernels
