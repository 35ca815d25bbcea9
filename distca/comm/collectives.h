#pragma once
// Small collectives over point-to-point, for control data in host memory (plans' hashes, measured
// speeds, traces). P = ranks, n = bytes. All ranks call them in the same order with the same sizes.
// On a CUDA group the bytes are staged through the device. Errors: as Communicator.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "distca/comm/communicator.h"

namespace distca {

/// Returns after every rank has entered. ceil(log2 P) steps of one byte each way.
void barrier(Communicator& group, std::string_view operation);

/// [P * mine.size()] every rank's record, in rank order. One step; each sends (P - 1) n bytes.
std::vector<std::byte> all_gather_bytes(Communicator& group, std::span<const std::byte> mine,
                                        std::string_view operation);
/// [P] every rank's value, in rank order; likewise.
template <typename T>
std::vector<T> all_gather(Communicator& group, const T& mine, std::string_view operation) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::vector<std::byte> bytes =
      all_gather_bytes(group, std::as_bytes(std::span(&mine, 1)), operation);
  std::vector<T> all(bytes.size() / sizeof(T));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

/// [P] every rank's text, in rank order. The longest is sent by all.
std::vector<std::string> all_gather_texts(Communicator& group, std::string mine,
                                          std::string_view operation);

/// Rank 0 gets every rank's text, in rank order; the others nothing. Pieces of a mebibyte, one rank
/// after another, so that no single wait is long.
std::vector<std::string> gather_texts(Communicator& group, std::string mine,
                                      std::string_view operation);

/// One message of `bytes` to a peer, and one from it; either may be empty, and both sides agree on
/// sizes and tag. Returns when both have arrived.
void swap_bytes(Communicator& group, int peer, uint32_t tag, std::span<const std::byte> send,
                std::span<std::byte> receive, std::string_view operation);

}  // namespace distca
