#pragma once
// SHA-256 (FIPS 180-4), by which files are recognised that others have hashed, too. Any thread.

#include <string>
#include <string_view>

namespace distca {

/// The hash of `bytes` as 64 hexadecimal digits.
std::string sha256_hex(std::string_view bytes);

}  // namespace distca
