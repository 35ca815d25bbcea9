#pragma once
// A communicator that records when its exchanges were issued and how long they were waited for: for
// sums and gathers, whose exchanges no program lists. Exchanges are numbered from `first_tag` in
// the order of their issuing, the same on all ranks, so that traces find the other side.
// Thread rule: as Communicator.

#include <vector>

#include "distca/comm/communicator.h"
#include "distca/trace/recorder.h"

namespace distca {

class TracedCommunicator final : public Communicator {
 public:
  /// Both stay the caller's. `first_tag`: kTracedTags plus a multiple of kTracedTagsEach of its
  /// own. `ranks` are the numbers of the group's members in the trace, in their order. If it is
  /// empty, each has the number there that it has in the group.
  TracedCommunicator(Communicator& group, uint32_t first_tag, std::vector<int> ranks = {});

  /// All ranks call it at the same place; numbers begin again. Null records nothing, at the cost of
  /// a comparison an exchange. Exchanges under way go on with the recorder they were issued with.
  void set_recorder(TraceRecorder* recorder);

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  int cuda_device() const override { return group_.cuda_device(); }
  bool ends_in_order() const override { return group_.ends_in_order(); }
  std::unique_ptr<PendingExchange> exchange(std::span<const Message> sends,
                                            std::span<const Message> receives,
                                            std::string_view operation) override;
  /// Splits the group itself: what the new one does is not recorded here.
  std::unique_ptr<Communicator> split(std::span<const int> ranks) override {
    return group_.split(ranks);
  }
  void set_step(int64_t step) override { group_.set_step(step); }
  void throw_if_failed() const override { group_.throw_if_failed(); }

 private:
  Communicator& group_;
  uint32_t first_tag_;
  std::vector<int> ranks_;
  uint32_t issued_ = 0;
  TraceRecorder* recorder_ = nullptr;
};

}  // namespace distca
