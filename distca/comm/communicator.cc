#include "distca/comm/communicator.h"

#include <numeric>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/tags.h"

namespace distca {
namespace {

/// A rank of the whole group, and what is added to the tags of messages to and from it.
struct Member {
  int rank = 0;
  uint32_t first_tag = 0;
};

class SplitGroup final : public Communicator {
 public:
  SplitGroup(Communicator& whole, std::vector<Member> members, int rank)
      : whole_(whole), members_(std::move(members)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  int cuda_device() const override { return whole_.cuda_device(); }
  bool ends_in_order() const override { return whole_.ends_in_order(); }
  void set_step(int64_t step) override { whole_.set_step(step); }
  void throw_if_failed() const override { whole_.throw_if_failed(); }

  std::unique_ptr<PendingExchange> exchange(std::span<const Message> sends,
                                            std::span<const Message> receives,
                                            std::string_view operation) override {
    return whole_.exchange(in_whole(sends), in_whole(receives), operation);
  }

  /// Splits the whole group, so that a tag belongs to one group.
  std::unique_ptr<Communicator> split(std::span<const int> ranks) override {
    std::vector<int> of_whole;
    for (const int rank : ranks) of_whole.push_back(member(rank).rank);
    return whole_.split(of_whole);
  }

 private:
  const Member& member(int rank) const {
    DISTCA_CHECK(rank >= 0 && rank < size(), "rank {} of a group of {}", rank, size());
    return members_[rank];
  }

  std::vector<Message> in_whole(std::span<const Message> messages) const {
    std::vector<Message> result(messages.begin(), messages.end());
    for (Message& message : result) {
      const Member& peer = member(message.peer);
      DISTCA_CHECK_LT(message.tag, kGroupTags);
      message.peer = peer.rank;
      message.tag += peer.first_tag;
    }
    return result;
  }

  Communicator& whole_;
  const std::vector<Member> members_;
  const int rank_;
};

}  // namespace

void PendingExchange::wait_at_last() {
  // A rank that fails does not wait for the others: they are about to learn of it.
  if (std::uncaught_exceptions() > exceptions_) return;
  try {
    wait();
  } catch (const std::exception&) {
    // Whoever cares has called wait().
  }
}

std::unique_ptr<Communicator> Communicator::split_first(int count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return split(ranks);
}

std::unique_ptr<Communicator> Communicator::split(std::span<const int> ranks) {
  std::vector<Member> members;
  std::vector<bool> listed(size());
  int mine = -1;
  for (const int rank : ranks) {
    DISTCA_CHECK(rank >= 0 && rank < size() && !listed[rank], "rank {} of {}, or twice", rank,
                 size());
    listed[rank] = true;
    if (rank == this->rank()) mine = static_cast<int>(members.size());
    members.push_back({.rank = rank});
  }
  DISTCA_CHECK(mine >= 0, "rank {} is not in the group that it splits off", rank());
  groups_with_.resize(size());
  for (Member& member : members) {
    if (member.rank == rank()) continue;
    const uint32_t number = ++groups_with_[member.rank];
    DISTCA_CHECK_LT(number, kMostGroups);
    member.first_tag = number * kGroupTags;
  }
  return std::make_unique<SplitGroup>(*this, std::move(members), mine);
}

}  // namespace distca
