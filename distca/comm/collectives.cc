#include "distca/comm/collectives.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/host_read.h"
#include "distca/comm/tags.h"

namespace distca {
namespace {

constexpr uint64_t kPieceBytes = 1 << 20;

/// Host bytes where the group's messages lie: themselves, or a copy on the device.
class Staged {
 public:
  Staged(const Communicator& group, std::span<std::byte> host)
      : group_(group),
        host_(at::from_blob(host.data(), {static_cast<int64_t>(host.size())}, at::kByte)),
        there_(upload(host_, aten_device(group.cuda_device()))) {}
  std::byte* data() { return static_cast<std::byte*>(there_.data_ptr()); }
  void to_host() {
    read_to(host_, there_);
    group_.throw_if_failed();
  }

 private:
  const Communicator& group_;
  const at::Tensor host_, there_;
};

}  // namespace

void barrier(Communicator& group, std::string_view operation) {
  // Dissemination: after the step of distance d, a rank knows of the 2 d - 1 before it.
  for (int distance = 1; distance < group.size(); distance *= 2) {
    std::byte bytes[2] = {};
    Staged staged(group, bytes);
    const Message out{.peer = (group.rank() + distance) % group.size(),
                      .tag = kBarrierTag,
                      .data = staged.data(),
                      .bytes = 1};
    const Message in{.peer = (group.rank() + group.size() - distance) % group.size(),
                     .tag = kBarrierTag,
                     .data = staged.data() + 1,
                     .bytes = 1};
    group.exchange({&out, 1}, {&in, 1}, operation)->wait();
    if (2 * distance >= group.size())
      staged.to_host();  // a device has waited by then, not the host
  }
}

std::vector<std::byte> all_gather_bytes(Communicator& group, std::span<const std::byte> mine,
                                        std::string_view operation) {
  const size_t bytes = mine.size();
  std::vector<std::byte> all(bytes * group.size());
  std::copy(mine.begin(), mine.end(), all.begin() + bytes * group.rank());
  if (bytes == 0 || group.size() == 1) return all;
  Staged staged(group, all);
  std::vector<Message> sends, receives;
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == group.rank()) continue;
    auto record = [&](int rank) {
      return Message{.peer = peer,
                     .tag = kAllGatherTag,
                     .data = staged.data() + bytes * rank,
                     .bytes = static_cast<int64_t>(bytes)};
    };
    sends.push_back(record(group.rank()));
    receives.push_back(record(peer));
  }
  group.exchange(sends, receives, operation)->wait();
  staged.to_host();
  return all;
}

void swap_bytes(Communicator& group, int peer, uint32_t tag, std::span<const std::byte> send,
                std::span<std::byte> receive, std::string_view operation) {
  std::vector<std::byte> out(send.begin(), send.end());
  Staged staged_out(group, out), staged_in(group, receive);
  const auto message = [&](std::byte* data, size_t bytes) -> std::vector<Message> {
    if (bytes == 0) return {};
    return {{.peer = peer, .tag = tag, .data = data, .bytes = static_cast<int64_t>(bytes)}};
  };
  const auto sends = message(staged_out.data(), send.size());
  const auto receives = message(staged_in.data(), receive.size());
  group.exchange(sends, receives, operation)->wait();
  staged_in.to_host();
}

std::vector<std::string> all_gather_texts(Communicator& group, std::string mine,
                                          std::string_view operation) {
  const std::vector<uint64_t> size = all_gather(group, uint64_t{mine.size()}, operation);
  const uint64_t longest = *std::ranges::max_element(size);
  mine.resize(longest);
  const std::vector<std::byte> all =
      all_gather_bytes(group, std::as_bytes(std::span(mine)), operation);
  std::vector<std::string> texts;
  for (int rank = 0; rank < group.size(); ++rank)
    texts.emplace_back(reinterpret_cast<const char*>(all.data()) + rank * longest, size[rank]);
  return texts;
}

std::vector<std::string> gather_texts(Communicator& group, std::string mine,
                                      std::string_view operation) {
  const uint64_t my_size = mine.size();
  const std::vector<uint64_t> sizes = all_gather(group, my_size, operation);
  const auto piece = [&](std::string& text, uint64_t begin) {
    const uint64_t bytes = std::min<uint64_t>(kPieceBytes, text.size() - begin);
    return std::as_writable_bytes(std::span(text)).subspan(begin, bytes);
  };
  if (group.rank() != 0) {
    for (uint64_t begin = 0; begin < my_size; begin += kPieceBytes)
      swap_bytes(group, 0, kGatherToTag, piece(mine, begin), {}, operation);
    return {};
  }
  std::vector<std::string> texts(group.size());
  texts[0] = std::move(mine);
  for (int rank = 1; rank < group.size(); ++rank) texts[rank].resize(sizes[rank]);
  const uint64_t longest = *std::ranges::max_element(sizes);
  for (uint64_t begin = 0; begin < longest; begin += kPieceBytes) {
    for (int rank = 1; rank < group.size(); ++rank) {
      if (begin >= sizes[rank]) continue;
      swap_bytes(group, rank, kGatherToTag, {}, piece(texts[rank], begin), operation);
    }
  }
  return texts;
}

}  // namespace distca
