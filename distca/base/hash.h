#pragma once
// Hashes of 64 bits, FNV-1a and a faster one for much data: they tell values apart (plans,
// configurations, weights) and protect against nothing. The same bytes give the same hash on every
// machine. Values, one thread.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace distca {

class Fnv1a64 {
 public:
  void add(std::string_view bytes) {
    for (const char c : bytes) {
      value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    }
  }
  uint64_t value() const { return value_; }
  /// 16 hex digits.
  std::string hex() const { return fmt::format("{:016x}", value_); }

 private:
  uint64_t value_ = 0xcbf29ce484222325ull;
};

inline std::string hash_hex(std::string_view bytes) {
  Fnv1a64 hash;
  hash.add(bytes);
  return hash.hex();
}

/// Of much data: some 10 bytes a nanosecond.
uint64_t hash_words(std::span<const std::byte> bytes);

}  // namespace distca
