#pragma once
// What `distca profile --attention` measures: tasks of one document, run as the runtime runs them.
// Thread rule: one thread.

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

constexpr size_t kRounds = 5;  // wanted of each point

struct ProfileArguments {
  bool attention = false;
  int64_t heads = 4;
  int64_t kv_heads = 1;
  int64_t head_dim = 128;
  std::string dtype = "bf16";
  std::string kernel = "auto";  // a name of kKernelNames
  int64_t max_tokens = 4096;
  int threads = 1;
  double seconds = 60;
  std::filesystem::path out;
};

/// One of those that --dtype allows.
ScalarType type_of(const ProfileArguments& arguments);
AttentionShape shape_of(const ProfileArguments& arguments);
KernelRequest request_of(const ProfileArguments& arguments);

/// Queries x keys of a document of `max_tokens` tokens.
struct MeasuredTask {
  Range q, kv;
  std::vector<int64_t> forward_ns = {}, backward_ns = {};  // a call each
};

/// Whatever else the machine does only adds time.
int64_t fastest(const std::vector<int64_t>& calls);

/// In the order of a profile's entries, without the unused ones.
std::vector<MeasuredTask> grid_tasks(int64_t max_tokens);
/// As plans cut them: at multiples of 128, every other one up to a document's end that is none;
/// every third with only the first of its keys.
std::vector<MeasuredTask> tasks_to_check(int64_t max_tokens);

/// One call of every task after another, so that a slow moment of the machine hits them all; until
/// the time is up or all have enough. Returns how many calls each task has, at least one.
size_t measure_rounds(const ProfileArguments& arguments, AttentionKernel& kernel,
                      std::vector<MeasuredTask>& tasks);

/// GFLOP/s of multiply-adds without memory, of all threads together.
double measured_peak(const ProfileArguments& arguments);

/// `measured`: grid_tasks, measured. `kernel`: AttentionKernel::name.
AttentionProfile to_profile(const ProfileArguments& arguments, const std::string& kernel,
                            double peak_gflops, std::span<const MeasuredTask> measured);

}  // namespace distca::cli
