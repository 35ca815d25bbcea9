#include "distca/sim/prices.h"

#include <cmath>
#include <utility>

#include "distca/base/error.h"
#include "distca/program/op_events.h"
#include "distca/sim/wire.h"

namespace distca {
namespace {

int64_t picoseconds(double seconds) {
  DISTCA_CHECK(seconds >= 0 && seconds < 1e6, "an operation of {} s", seconds);
  return std::llround(seconds * 1e12);
}

}  // namespace

RatePrices::RatePrices(Seconds seconds, const ThreadRates& rates)
    : seconds_(std::move(seconds)), rates_(rates) {}

int64_t RatePrices::compute_ps(int rank, const Op& op) const {
  return picoseconds(seconds_(rank, op));
}

CommunicationPrice RatePrices::communication(int, const Op& op, const MessageList& sends,
                                             const MessageList& receives) const {
  const Port copies{.bytes_per_s = rates_.copy_bytes_per_s};
  const Port core{.bytes_per_s = rates_.core_bytes_per_s};
  return {.pack_ps = copies.time_ps(packed_bytes(op, sends)),
          .issue_ps = rates_.issue_ps,
          .core_ps = core.time_ps(sends.bytes + receives.bytes),
          .land_ps = copies.time_ps(landed_bytes(op, receives))};
}

int64_t packed_bytes(const Op& op, const MessageList& sends) {
  if (is_of_weights(op.kind) || op.kind == OpKind::kSumRows || sends.empty()) return 0;
  return op.kind == OpKind::kGatherRows ? sends.messages[0].bytes : sends.bytes;
}

int64_t landed_bytes(const Op& op, const MessageList& receives) {
  return lands(op.kind) ? receives.bytes : 0;
}

}  // namespace distca
