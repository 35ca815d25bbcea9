#pragma once
// A group whose messages can be cut to one byte each: everything of an exchange but its bytes. What
// is received keeps what a whole message left there before. Thread rule: as the group's.

#include <vector>

#include "distca/comm/communicator.h"

namespace distca::bench {

class OneByteMessages : public Communicator {
 public:
  explicit OneByteMessages(Communicator& whole) : whole_(whole) {}
  /// On all ranks alike, with no exchange under way.
  void cut(bool cut) { cut_ = cut; }

  int rank() const override { return whole_.rank(); }
  int size() const override { return whole_.size(); }
  int cuda_device() const override { return whole_.cuda_device(); }
  bool ends_in_order() const override { return whole_.ends_in_order(); }
  void set_step(int64_t step) override { whole_.set_step(step); }
  std::unique_ptr<PendingExchange> exchange(std::span<const Message> sends,
                                            std::span<const Message> receives,
                                            std::string_view operation) override {
    if (!cut_) return whole_.exchange(sends, receives, operation);
    return whole_.exchange(one_byte(sends), one_byte(receives), operation);
  }

 private:
  static std::vector<Message> one_byte(std::span<const Message> messages) {
    std::vector<Message> result(messages.begin(), messages.end());
    for (Message& message : result) message.bytes = 1;
    return result;
  }

  Communicator& whole_;
  bool cut_ = false;
};

}  // namespace distca::bench
