#pragma once
// Hashes of 64 bits that tell values apart, such as plans, configurations and weights: FNV-1a, and
// a faster one for much data. They do not protect against anybody. The same bytes give the same
// hash on every machine. Thread rule: one thread at a time uses an object.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace distca {

/// The FNV-1a hash of all bytes that were added, in order.
class Fnv1a64 {
 public:
  void add(std::string_view bytes) {
    for (const char c : bytes) {
      value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    }
  }
  uint64_t value() const { return value_; }
  /// The value as 16 hexadecimal digits.
  std::string hex() const { return fmt::format("{:016x}", value_); }

 private:
  uint64_t value_ = 0xcbf29ce484222325ull;
};

/// The FNV-1a hash of `bytes` as 16 hexadecimal digits.
inline std::string hash_hex(std::string_view bytes) {
  Fnv1a64 hash;
  hash.add(bytes);
  return hash.hex();
}

/// Another hash, for much data. It hashes about 10 bytes a nanosecond.
uint64_t hash_words(std::span<const std::byte> bytes);

}  // namespace distca
