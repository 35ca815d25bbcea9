#pragma once
// Half a core: a control group that lets the calling process, all its threads together, compute for
// half of each period. Thread rule: one thread.

#include <string>

namespace distca::bench {

class CgroupQuota {
 public:
  /// Moves this process to a group of its own, without a limit so far, and removes those that
  /// processes left that were killed. Throws Error(kIo) where none can be made: no cpu controller
  /// (cgroup v1 or v2), or no right to write there.
  CgroupQuota();
  /// Moves it back and removes the group.
  ~CgroupQuota();
  CgroupQuota(const CgroupQuota&) = delete;
  CgroupQuota& operator=(const CgroupQuota&) = delete;

  /// Takes effect within a few milliseconds.
  void run(bool on);
  /// In which the process stood still for it had used up its half, so far.
  double taken_seconds() const;

  const std::string& folder() const { return folder_; }

 private:
  bool unified_ = false;  // cgroup v2
  std::string home_;      // the folder of the group that the process came from
  std::string folder_;
};

}  // namespace distca::bench
