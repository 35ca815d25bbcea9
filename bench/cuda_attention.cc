// Core attention on a CUDA device: fused calls of equal shards with random contexts beside one long
// sequence of the same work, forward and backward, as shares of the device's bf16 peak (a large
// matrix product in the same rounds); what deterministic sums cost; and the grid that plans read.
//   bench/report.py build/release/bench/cuda_attention

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>

#include "bench/main.h"
#include "bench/rounds.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/integers.h"
#include "distca/base/random.h"
#include "distca/cost/attention_profile.h"
#include "distca/runtime/aten_attention.h"
#include "distca/runtime/attention_tensors.h"

namespace distca::bench {
namespace {

constexpr int kDevice = 0;
constexpr ScalarType kType = ScalarType::kBFloat16;
constexpr int64_t kPeakSize = 8192;      // of the matrix product
constexpr int64_t kMostContext = 16384;  // the paper's, figure 5
constexpr int64_t kLeastContext = 128;
constexpr int64_t kContextStep = 8;
constexpr double kLeastSeconds = 0.02;  // of a contender's turn in a round
constexpr int64_t kForwardFlops = 4;    // a pair, head and element of head_dim
constexpr int64_t kBackwardFlops = 10;

struct Arguments {
  int rounds = 15;
  int64_t heads = 4;
  int64_t kv_heads = 1;
  int64_t head_dim = 128;
  int64_t query_tokens = 32768;     // of a call
  int64_t key_tokens = 4 << 20;     // of a call, at most
  int64_t profile_tokens = 131072;  // the largest of the grid
  uint64_t seed = 1;
  std::string profile;
};

at::Device device() { return {at::kCUDA, static_cast<c10::DeviceIndex>(kDevice)}; }

void wait_for_device() {
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  guard.synchronizeStream(guard.getStream(device()));
}

/// The device's name as its driver says it.
std::string device_name() {
  const std::filesystem::path drivers = "/proc/driver/nvidia/gpus";
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(drivers, none)) {
    std::ifstream facts(entry.path() / "information");
    for (std::string line; std::getline(facts, line);) {
      const size_t name = line.find_first_not_of(" \t", line.find(':') + 1);
      if (line.starts_with("Model:") && name != std::string::npos) return line.substr(name);
    }
  }
  return "unknown CUDA device";
}

/// Seconds of a call, the device idle before and after it.
template <typename Work>
std::function<double()> on_device(Work work) {
  return timed(Clock::kWall, [work = std::move(work)] {
    work();
    wait_for_device();
  });
}

/// Causal tasks, each with queries and keys of its own: the queries are the last of the keys.
struct TaskSize {
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t pairs() const { return queries * keys - queries * (queries - 1) / 2; }
};

/// One fused call on the device.
class Problem {
 public:
  Problem(const Arguments& arguments, const std::vector<TaskSize>& sizes)
      : shape_{.num_heads = arguments.heads,
               .num_kv_heads = arguments.kv_heads,
               .head_dim_qk = arguments.head_dim,
               .head_dim_v = arguments.head_dim,
               .softmax_scale = 1 / std::sqrt(static_cast<double>(arguments.head_dim))} {
    std::vector<kernels::Task> tasks;
    int64_t queries = 0, keys = 0;
    for (const TaskSize& size : sizes) {
      tasks.push_back({.q_row = queries,
                       .q_tokens = size.queries,
                       .q_position = size.keys - size.queries,
                       .keys = {{.row = keys, .tokens = size.keys}}});
      queries += size.queries, keys += size.keys;
      pairs_ += size.pairs();
    }
    tensors_.emplace(shape_, kType, queries, keys, device());
    tensors_->list.tasks = std::move(tasks);
    forward();  // LSE, for backward
  }
  void forward() const { aten_forward(shape_, kType, tensors_->list, kDevice); }
  void backward() const { aten_backward(shape_, kType, tensors_->list, kDevice); }
  void deterministic_backward() const {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    backward();
    at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
  }
  double flops(int64_t a_pair) const {
    return static_cast<double>(a_pair * pairs_ * shape_.num_heads * shape_.head_dim_qk);
  }
  int64_t pairs() const { return pairs_; }

 private:
  kernels::Shape shape_;
  int64_t pairs_ = 0;
  std::optional<AttentionTensors> tensors_;
};

Contender forward_of(const Problem& problem) {
  return {problem.flops(kForwardFlops), on_device([&problem] { problem.forward(); })};
}
Contender backward_of(const Problem& problem) {
  return {problem.flops(kBackwardFlops), on_device([&problem] { problem.backward(); })};
}

/// The device's peak, as a large matrix product reaches it.
Contender peak() {
  const auto options = at::TensorOptions(device()).dtype(at::kBFloat16);
  const at::Tensor a = at::randn({kPeakSize, kPeakSize}, options);
  const at::Tensor b = at::randn({kPeakSize, kPeakSize}, options);
  return {2.0 * kPeakSize * kPeakSize * kPeakSize, on_device([a, b] { at::mm(a, b); })};
}

// --- shards against one long sequence ------------------------------------------------------------

std::vector<TaskSize> random_shards(const Arguments& arguments, int64_t shard) {
  Random random(arguments.seed);
  const int64_t least = std::max(shard, kLeastContext), most = std::max(shard, kMostContext);
  std::vector<TaskSize> sizes;
  int64_t queries = 0, keys = 0;
  while (queries < arguments.query_tokens && keys < arguments.key_tokens) {
    const int64_t context = least + static_cast<int64_t>(random.below(most - least + 1));
    sizes.push_back({shard, round_up(context, kContextStep)});
    queries += shard, keys += sizes.back().keys;
  }
  return sizes;
}

/// A line of GFLOP/s, round by round.
void measure_shard(const Arguments& arguments, int64_t shard) {
  const std::vector<TaskSize> sizes = random_shards(arguments, shard);
  const Problem shards(arguments, sizes);
  const auto tokens = static_cast<int64_t>(std::sqrt(2.0 * static_cast<double>(shards.pairs())));
  const int64_t length = round_up(tokens, 128);
  const Problem whole(arguments, {{length, length}});
  const Contender deterministic{shards.flops(kBackwardFlops),
                                on_device([&] { shards.deterministic_backward(); })};
  const std::vector<Rates> rates =
      interleaved_rates({peak(), forward_of(shards), forward_of(whole), forward_of(whole),
                         backward_of(shards), backward_of(whole), deterministic},
                        arguments.rounds, kLeastSeconds);
  write_line("shards", {{"shard", shard},
                        {"shards", sizes.size()},
                        {"long_sequence", length},
                        {"peak", rates[0]},
                        {"forward", rates[1]},
                        {"forward_long", rates[2]},
                        {"forward_long_again", rates[3]},
                        {"backward", rates[4]},
                        {"backward_long", rates[5]},
                        {"backward_deterministic", rates[6]}});
}

// --- the grid that plans read --------------------------------------------------------------------

/// The best of some calls of as many equal tasks as a call may have, a task's part of it: what a
/// task costs beside others.
void measure_entry(const Arguments& arguments, const TaskSize& size, AttentionProfile& profile) {
  const int64_t copies = std::max<int64_t>(
      1, std::min(arguments.query_tokens / size.queries, arguments.key_tokens / size.keys));
  const Problem problem(arguments, std::vector<TaskSize>(copies, size));
  const auto part = [&](const std::function<double()>& seconds) {
    double best = seconds();
    for (int round = 0; round < arguments.rounds; ++round) best = std::min(best, seconds());
    return std::max<int64_t>(1, std::llround(best * 1e9 / static_cast<double>(copies)));
  };
  profile.forward_ns.push_back(part(forward_of(problem).seconds));
  profile.backward_ns.push_back(part(backward_of(problem).seconds));
}

void measure_profile(const Arguments& arguments) {
  AttentionProfile profile{.machine = device_name(),
                           .path = "aten-cuda",
                           .shape = {.num_heads = arguments.heads,
                                     .num_kv_heads = arguments.kv_heads,
                                     .head_dim_qk = arguments.head_dim,
                                     .head_dim_v = arguments.head_dim,
                                     .element_bytes = element_bytes(kType)}};
  for (int64_t tokens = 128; tokens <= arguments.profile_tokens; tokens *= 2) {
    profile.q_tokens.push_back(tokens);
    profile.kv_tokens.push_back(tokens);
  }
  for (const int64_t q : profile.q_tokens) {
    for (const int64_t kv : profile.kv_tokens) {
      if (q <= kv) {
        measure_entry(arguments, {q, kv}, profile);
      } else {
        profile.forward_ns.push_back(0), profile.backward_ns.push_back(0);
      }
    }
  }
  write_file_atomically(arguments.profile, profile_to_json(profile));
  fmt::print(stderr, "{}: {}\n", arguments.profile, profile_name(profile));
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"Core attention on a CUDA device: shards against one long sequence.",
               "cuda_attention"};
  app.option_defaults()->always_capture_default();
  const auto count = [&](const char* name, int64_t& value, const char* what) {
    app.add_option(name, value, what)->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  };
  app.add_option("--rounds", arguments.rounds, "Of every measurement")->check(CLI::Range(1, 1000));
  count("--heads", arguments.heads, "Query heads");
  count("--kv-heads", arguments.kv_heads, "Key heads");
  count("--head-dim", arguments.head_dim, "Elements of a head");
  count("--query-tokens", arguments.query_tokens, "Queries of a fused call");
  count("--key-tokens", arguments.key_tokens, "Keys of a fused call, at most");
  count("--profile-tokens", arguments.profile_tokens, "The largest entry of the grid");
  app.add_option("--seed", arguments.seed, "Of the contexts");
  app.add_option("--profile", arguments.profile, "Measures the grid of a profile into this file");
  app.footer(
      "Exit code 2 without a CUDA device.\n"
      "Example:  bench/report.py build/release/bench/cuda_attention --profile h200.json");
  if (!parse_options(app, argc, argv)) return 0;
  if (!at::hasCUDA()) {
    throw Error(ErrorKind::kUsage,
                "no CUDA device: this PyTorch or this machine has none; run it on a machine with a "
                "GPU and a PyTorch for CUDA");
  }
  // Else every buffer is filled before use while sums are deterministic.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  write_header("cuda_attention", {{"device", device_name()},
                                  {"rounds", arguments.rounds},
                                  {"heads", arguments.heads},
                                  {"kv_heads", arguments.kv_heads},
                                  {"head_dim", arguments.head_dim}});
  for (int64_t shard = 16; shard <= 2048; shard *= 2) measure_shard(arguments, shard);
  if (!arguments.profile.empty()) measure_profile(arguments);
  return 0;
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/cuda_attention",
                                      [&] { return distca::bench::run(argc, argv); });
}
