#pragma once
// What bench/overlap measures of a setting, and the bars (issue 6): where each exchange is shorter
// than what it runs under, ping-pong takes what it would take with exchanges of one byte, plus the
// processor time of the exchange on the shared core; where each is longer, what the exchanges take
// on the wire. Plain values, any thread.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/exchange_windows.h"
#include "bench/figure.h"
#include "bench/swapped_plan.h"

namespace distca::bench {

/// How long each exchange is meant to be beside the operations it runs under.
enum class ExchangeLength { kShorter, kBetween, kLonger };

struct OverlapSetting {
  double mb_per_s = 0;  // that each direction of the wire is limited to; 0: no limit
  ExchangeLength length = ExchangeLength::kShorter;
  bool judged = false;
  std::string name() const;  // "25 MB/s shorter"
};
/// Every setting of a run: shorter and longer at each of `rates`, in between at the first, and
/// shorter at `fast` rates.
std::vector<OverlapSetting> overlap_settings(const std::vector<double>& rates,
                                             const std::vector<double>& fast);

/// Ways to play a step.
enum Arm : size_t { kBlockingArm, kOverlapArm, kPingPongArm, kAgainArm, kOneByteArm, kArms };
constexpr std::array<std::string_view, kArms> kArmNames{"blocking", "overlap", "ping-pong",
                                                        "ping-pong again", "ping-pong, one byte"};

struct OverlapFigures {
  OverlapSetting setting;
  SwappedBatch batch;
  double wire_bytes_per_s = 0;  // measured, each direction, both busy
  int64_t step_bytes = 0;       // that a rank sends in a step
  std::array<Rates, kArms> step_s;
  Rates alone_s;  // the exchanges of a step without compute, one after another
  // Of a core, mean of the ranks (core_time.h).
  Rates idle_shares;  // of an idle one's time, taken by timers and whoever else is there
  Rates used_s;       // taken while the exchanges were played alone
  Rates charged_s;    // meanwhile, to the threads of a rank's process
  std::vector<ExchangeWindow> windows;

  /// The processor time of a step's exchanges: used_s beyond what is taken of an idle core.
  double processor_s() const;
  double processor_share() const;  // of the step with exchanges of one byte
  /// The steps with exchanges of one byte, each plus processor_s.
  Rates ideal_s() const;
  double exchange_s() const;  // step_bytes at the measured rate
  /// What ping-pong is judged by, round by round: ideal_s or exchange_s over `ping_pong`. 1: equal;
  /// less: slower.
  Rates reached(Arm ping_pong) const;
};

constexpr double kOverlapBar = 1 / 1.05;      // ping-pong takes at most 5 % more
constexpr double kMostProcessorShare = 0.02;  // of compute
constexpr double kShorterShare = 0.8;         // of the operation that it runs under

struct OverlapVerdict {
  Figure figure;
  std::string why_not_judged;  // empty: judged
  Decision decision() const { return figure.verdict(); }
};
/// A rate is judged if the processor time is low enough where exchanges are shorter, for there it
/// counts; `all` may hold that setting.
OverlapVerdict verdict_of(const OverlapFigures& figures, const std::vector<OverlapFigures>& all);

}  // namespace distca::bench
