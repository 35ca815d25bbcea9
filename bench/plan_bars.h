#pragma once
// The bars that plans must reach, and whether they do. Plain values, any thread.

#include <string>
#include <vector>

#include "bench/plan_measure.h"

namespace distca::bench {

/// One figure of one plan (or the median of several) against its bar.
struct Verdict {
  std::string where;   // the workload, or the sample
  std::string figure;  // "share of bytes", "plan ms", ...
  std::string variant;
  double reached = 0;
  double bar = 0;                                            // at most
  double aim = 0;                                            // 0: none
  bool pass() const { return reached <= bar * (1 + 1e-9); }  // a bound met exactly is met
};

/// One plan's figures as shares of the original's.
struct Shares {
  double bytes = 0;
  double send = 0;     // largest send of any server, of the original's largest send
  double receive = 0;  // largest receive of any server, of the original's largest SEND
};
Shares shares(const Measured& measured, const Measured& original);

/// Bars on bytes at so many servers; those on the largest send and receive too, from 64 servers on.
/// `reached`: of one plan, or medians. `variant`: its place in balanced_variants().
std::vector<Verdict> judge_shares(const std::string& where, size_t variant, const std::string& name,
                                  int servers, const Shares& reached);

/// Bars on one plan: that there is one, its evenness, its validity, its times at 64 and 512
/// servers.
std::vector<Verdict> judge_plan(const std::string& where, size_t variant, const std::string& name,
                                int servers, const Measured& measured);

}  // namespace distca::bench
