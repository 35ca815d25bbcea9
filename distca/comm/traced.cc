#include "distca/comm/traced.h"

#include <algorithm>
#include <utility>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/comm/tags.h"

namespace distca {
namespace {

/// Notes the peers, returns the bytes.
int64_t note(std::span<const Message> messages, const std::vector<int>& ranks,
             std::vector<int>& peers) {
  int64_t bytes = 0;
  for (const Message& message : messages) {
    peers.push_back(ranks.empty() ? message.peer : ranks.at(message.peer));
    bytes += message.bytes;
  }
  return bytes;
}

class TracedExchange final : public PendingExchange {
 public:
  TracedExchange(std::unique_ptr<PendingExchange> exchange, TraceEvent event,
                 TraceRecorder& recorder)
      : exchange_(std::move(exchange)), event_(std::move(event)), recorder_(recorder) {}

  void wait_received() override {
    record([this] { exchange_->wait_received(); });
  }
  void wait() override {
    record([this] { exchange_->wait(); });
  }

 private:
  template <typename Wait>
  void record(const Wait& wait) {
    TraceEvent waited = event_;
    waited.kind = TraceKind::kWait;
    waited.begin_s = steady_seconds();
    wait();
    waited.end_s = steady_seconds();
    TraceEvent flight = waited;
    flight.kind = TraceKind::kFlight;
    flight.begin_s = event_.begin_s;
    recorder_.add(std::move(waited));
    recorder_.add(std::move(flight));
  }

  std::unique_ptr<PendingExchange> exchange_;
  TraceEvent event_;  // the event of the issue
  TraceRecorder& recorder_;
};

}  // namespace

TracedCommunicator::TracedCommunicator(Communicator& group, uint32_t first_tag,
                                       std::vector<int> ranks)
    : group_(group), first_tag_(first_tag), ranks_(std::move(ranks)) {
  DISTCA_CHECK(ranks_.empty() || ranks_.size() == static_cast<size_t>(group.size()),
               "{} ranks of a group of {}", ranks_.size(), group.size());
}

void TracedCommunicator::set_recorder(TraceRecorder* recorder) {
  recorder_ = recorder;
  issued_ = 0;
}

std::unique_ptr<PendingExchange> TracedCommunicator::exchange(std::span<const Message> sends,
                                                              std::span<const Message> receives,
                                                              std::string_view operation) {
  if (recorder_ == nullptr) return group_.exchange(sends, receives, operation);
  TraceEvent event{.kind = TraceKind::kLaunch,
                   .name = std::string(operation),
                   .begin_s = steady_seconds(),
                   .tag = first_tag_ + issued_++ % kTracedTagsEach};
  event.bytes = note(sends, ranks_, event.to);
  event.received_bytes = note(receives, ranks_, event.from);
  auto exchange = group_.exchange(sends, receives, operation);
  event.end_s = steady_seconds();
  recorder_->add(event);
  return std::make_unique<TracedExchange>(std::move(exchange), std::move(event), *recorder_);
}

}  // namespace distca
