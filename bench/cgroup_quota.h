#pragma once
// Half a core: a control group that lets the calling process, all its threads together, compute for
// half of each period. Thread rule: one thread.

#include <sys/types.h>

#include <string>

#include "bench/throttle.h"

namespace distca::bench {

class CgroupQuota final : public Throttle {
 public:
  /// Moves this process to a group of its own, without a limit so far. Throws Error(kIo) where none
  /// can be made: no cpu controller (cgroup v1 or v2), or no right to write there.
  CgroupQuota();
  /// Moves it back and removes the group. A process of its own removes it if this one is killed.
  ~CgroupQuota() override;
  CgroupQuota(const CgroupQuota&) = delete;
  CgroupQuota& operator=(const CgroupQuota&) = delete;

  void run(bool on) override;
  /// In which the process stood still for it had used up its half.
  double taken_seconds() const override;

  const std::string& folder() const { return folder_; }

  static constexpr int kPeriodUs = 10'000;
  static constexpr int kQuotaUs = 5'000;

 private:
  void start_keeper();
  void remove();
  bool unified_ = false;  // cgroup v2
  std::string home_;      // the folder of the group that the process came from
  std::string folder_;
  int lifeline_ = -1;  // to the keeper: breaks when this process ends
  pid_t keeper_ = -1;
};

}  // namespace distca::bench
