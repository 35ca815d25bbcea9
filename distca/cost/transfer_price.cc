#include "distca/cost/transfer_price.h"

#include "distca/base/integers.h"

namespace distca {

int64_t transfer_ns(const Link& link, int64_t messages, int64_t bytes) {
  return messages * link.latency_ns + ceil_div(bytes * 1000, link.bytes_per_us);
}

}  // namespace distca
