#pragma once
// What tests tell the stand-in for NCCL, and what it tells them (test_nccl/). One thread at a time;
// it holds for all groups of the process.

#include <cstdint>
#include <functional>
#include <string>

namespace distca {

/// What goes wrong while this lives, as test_nccl/faults.cc reads it: "delay,rank=1,us=100".
struct StandinFaults {
  explicit StandinFaults(const std::string& text);
  ~StandinFaults();
  StandinFaults(const StandinFaults&) = delete;
  StandinFaults& operator=(const StandinFaults&) = delete;
};

/// Calls `seen` for every group of sends and receives that any rank issues while this lives.
class StandinGroups {
 public:
  explicit StandinGroups(std::function<void(int rank, int sends, int receives)> seen);
  ~StandinGroups();
  StandinGroups(const StandinGroups&) = delete;
  StandinGroups& operator=(const StandinGroups&) = delete;

 private:
  const std::function<void(int, int, int)> seen_;
};

}  // namespace distca
