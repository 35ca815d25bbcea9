#include "distca/cost/link_price.h"

#include <algorithm>

namespace distca {

// 128 bits: a plan file may ask for any bandwidth and latency.
__extension__ using Wide = __int128;

int64_t transfer_ns(const Link& link, int64_t messages, int64_t bytes) {
  const Wide wire = (Wide{bytes} * 1000 + link.bytes_per_us - 1) / link.bytes_per_us;
  const Wide ns = Wide{messages} * link.latency_ns + wire;
  return static_cast<int64_t>(std::min(ns, Wide{kMostTransferNs}));
}

int64_t byte_price(const Link& link) { return std::max<int64_t>(1, 1'000'000 / link.bytes_per_us); }

}  // namespace distca
