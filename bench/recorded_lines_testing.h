#pragma once
// Parts that recorded_paced_testing.cc and recorded_computed_testing.cc share: lines of a
// benchmark, and figures that no record has. Any thread may call the functions.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/paced_step_testing.h"
#include "bench/recorded_testing.h"
#include "distca/base/json.h"
#include "distca/sim/player.h"

namespace distca::bench {

/// A measurement: the lines that follow a "setting" or the like.
struct RecordedBlock {
  Json head;
  std::vector<Json> before;  // since the measurement before
  std::vector<Json> lines;

  /// The rounds that have an arm.
  std::vector<Json> rounds_of(const std::string& arm) const;
  double median_of(const std::string& arm, const char* figure) const;
};
std::vector<RecordedBlock> recorded_blocks(const std::filesystem::path& path,
                                           const std::string& head);

/// Assumed of ranks that are processes of one machine and use Gloo: a communication takes 60 us to
/// issue, copies 4 GB/s, and the kernel's and Gloo's part of a core 3 GB/s.
ThreadRates assumed_rates();
/// A rank that waits for a message has to wake up first: 75 us, assumed.
Wire assumed_wire(int64_t bytes_per_s, int64_t burst_bytes = 0);
Wire loopback();  // 4 GB/s, assumed

/// Bytes that passed at once through the token bucket that limited a wire to `mb_per_s`.
int64_t recorded_burst(double mb_per_s);

double seconds_of(const std::vector<Program>& programs, const OpPrices& prices, const Wire& wire);
/// A step whose operations sleep their prices, and whose communications take assumed_rates() to
/// issue. `late_s`: how much longer than its prices the latest rank slept, all together.
double paced_seconds(const PacedStep& step, const Wire& wire, double late_s = 0);

}  // namespace distca::bench
