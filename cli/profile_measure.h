#pragma once
// Measures what `distca profile --attention` reports: tasks of one document, computed just as the
// runtime computes them, or on a CUDA device equal tasks (profile_device.cc). Thread rule: one
// thread.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "distca/base/integers.h"
#include "distca/base/scalar_type.h"
#include "distca/cost/attention_profile.h"
#include "distca/runtime/attention_kernel.h"

namespace distca::cli {

constexpr size_t kRounds = 5;  // calls wanted of each task

/// The options of `distca profile --attention`, with their defaults. `distca profile --help`
/// explains each.
struct ProfileArguments {
  bool attention = false;
  int64_t heads = 4;
  int64_t kv_heads = 1;
  int64_t head_dim = 128;
  std::string dtype = "bfloat16";
  std::string kernel = "auto";  // a name of kKernelNames
  int64_t max_tokens = 4096;    // length of the longest measured document
  std::string device = "cpu";   // or "cuda", the first one
  int threads = 1;
  double seconds = 60;        // about how long to measure
  std::filesystem::path out;  // the profile's file

  bool on_cuda() const { return device == "cuda"; }
};

/// The type that --dtype names.
ScalarType type_of(const ProfileArguments& arguments);
/// The heads of the measured attention, and what to ask AttentionKernel for.
AttentionShape shape_of(const ProfileArguments& arguments);
KernelRequest request_of(const ProfileArguments& arguments);

/// A task (queries q against keys kv of one document of max_tokens tokens) and its measured times.
struct MeasuredTask {
  Range q, kv;
  std::vector<int64_t> forward_ns = {}, backward_ns = {};  // one time a call
};

/// The fastest call, because all other work of the machine only adds time.
int64_t fastest(const std::vector<int64_t>& calls);

/// Doubled from the least to the most: the lengths of a profile's queries and of its keys.
std::vector<int64_t> grid_tokens(int64_t least_tokens, int64_t max_tokens);
/// The tasks of a profile's entries, in their order, without unused entries.
std::vector<MeasuredTask> grid_tasks(int64_t max_tokens);
/// Tasks such as plans make them, which are not on the grid. Cuts lie at multiples of 128, but
/// every other task ends at the end of a document, which is no such multiple. Every third task has
/// only the first of its keys.
std::vector<MeasuredTask> tasks_to_check(int64_t max_tokens);

/// Measures in rounds: one call of every task, then the next round, so that a slow moment of the
/// machine affects all tasks. Ends when the time is up or all tasks have enough calls. Returns how
/// many calls each task has, at least one.
size_t measure_rounds(const ProfileArguments& arguments, AttentionKernel& kernel,
                      std::vector<MeasuredTask>& tasks);

/// GFLOP/s of multiply-adds without memory access, of all threads together.
double measured_peak(const ProfileArguments& arguments);

/// Makes a profile of grid_tasks, measured. `kernel` is AttentionKernel::name.
AttentionProfile to_profile(const ProfileArguments& arguments, const std::string& kernel,
                            double peak_gflops, std::span<const MeasuredTask> measured);

/// The profile of the kernel that is asked for on a CUDA device; for auto, of the fastest of each
/// class of launches (runtime/cuda/kernel_profiles.h). Prints what it measures. Throws
/// Error(kUsage) without a device.
AttentionProfile profile_on_device(const ProfileArguments& arguments);

}  // namespace distca::cli
