#pragma once
// distca profile --machine: what all that the steps of a run do takes on this machine, by which
// `distca simulate` predicts the run with other settings. The ranks of the run measure it together.

#include <filesystem>
#include <string>
#include <vector>

namespace distca::cli {

struct MachineArguments {
  bool asked = false;
  std::string config;
  std::vector<std::string> overrides;
  int workers = 1;
  double seconds = 60;        // most time for core attention, and for steps
  std::filesystem::path out;  // the machine's file
};

/// Starts the ranks, or is one of them. Returns the exit code.
int profile_machine(const MachineArguments& arguments);

}  // namespace distca::cli
