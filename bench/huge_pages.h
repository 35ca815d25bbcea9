#pragma once
// Memory in huge pages where the system grants them, as `distca train` has it: figures then hold
// for a run. Thread rule: one Arena, one thread at a time.

#include <cstddef>
#include <cstdint>

namespace distca::bench {

/// Hands out pieces of one mapping, one behind the other as a heap does: pieces that all begin a
/// huge page would share their places in the caches.
class Arena {
 public:
  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Zeros, on a cache line of their own. Lives as long as the arena.
  std::byte* take(int64_t bytes);

 private:
  std::byte* mapped_ = nullptr;
  int64_t taken_ = 0;
};

/// The share of memory in huge pages of the mapping where `address` lies; 0 where the system does
/// not say.
double huge_page_share(const void* address);

}  // namespace distca::bench
