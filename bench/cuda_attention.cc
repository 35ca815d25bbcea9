// Core attention on a CUDA device: fused calls of equal shards with random contexts, our copies
// among them, compared with the operator alone on one long sequence of the same work, forward and
// backward, as shares of the device's bf16 peak (a large matrix product in the same rounds); and
// what deterministic sums cost.
//   scripts/gpu_check.sh B

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>

#include "bench/main.h"
#include "bench/operator_calls.h"
#include "bench/rounds.h"
#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/base/machine.h"
#include "distca/base/random.h"
#include "distca/comm/aten_types.h"
#include "distca/runtime/aten_attention.h"
#include "distca/runtime/attention_tensors.h"
#include "distca/runtime/cuda/compiled_kernels.h"
#include "distca/runtime/cuda/cuda_attention.h"
#include "distca/runtime/cuda/task_launches.h"
#include "distca/runtime/cuda/varlen_attention.h"

namespace distca::bench {
namespace {

constexpr ScalarType kType = ScalarType::kBFloat16;
constexpr int64_t kPeakSize = 8192;  // rows and columns of the matrix product on a device
constexpr int64_t kPeakSizeOfCpu = 256;
constexpr int kMostCallsAtOnce = 4;      // so that the device need not wait for the host
constexpr int64_t kShard = 128;          // tokens of a shard of a document
constexpr int64_t kMostContext = 16384;  // the paper's, figure 5
constexpr int64_t kLeastContext = 128;
constexpr int64_t kContextStep = 8;
constexpr double kLeastSeconds = 0.02;  // least time of a contender's turn in a round
constexpr int64_t kForwardFlops = 4;    // a pair, head and element of head_dim
constexpr int64_t kBackwardFlops = 10;

struct Arguments {
  int rounds = 15;
  int64_t heads = 4;
  int64_t kv_heads = 1;
  int64_t head_dim = 128;
  int64_t query_tokens = 32768;     // queries of a call
  int64_t key_tokens = 4 << 20;     // keys of a call, at most
  int64_t document_tokens = 32768;  // length of the one that is cut into shards
  int64_t most_shard = 2048;
  uint64_t seed = 1;
  std::string kernel = "aten";
  std::string device = "cuda";

  int cuda_device() const { return device == "cuda" ? 0 : -1; }
};

std::string device_name(int cuda_device) { return cuda_device < 0 ? cpu_name() : gpu_name(); }

/// Seconds of a call on the device: the mean of some that it is given at once, by events of its
/// stream; the first time, and where a call is long, of one. On a CPU, the seconds of one call.
template <typename Work>
std::function<double()> on_device(int cuda_device, Work work) {
  if (cuda_device < 0) {
    return [work = std::move(work)] {
      const Stopwatch watch;
      work();
      return watch.seconds();
    };
  }
  return [cuda_device, work = std::move(work), calls = 1]() mutable {
    const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
    const c10::Stream stream = cuda.getStream(aten_device(cuda_device));
    c10::Event begin(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    begin.record(stream);
    for (int call = 0; call < calls; ++call) work();
    end.record(stream);
    end.synchronize();
    const double seconds = 1e-3 * begin.elapsedTime(end) / calls;
    calls = static_cast<int>(std::clamp(kLeastSeconds / seconds, 1.0, 1.0 * kMostCallsAtOnce));
    return seconds;
  };
}

/// Causal tasks, each with queries and keys of its own: the queries are the last of the keys.
struct TaskSize {
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t pairs() const { return queries * keys - queries * (queries - 1) / 2; }
};

/// Tasks of these sizes, with rows one behind the other.
std::vector<kernels::Task> tasks_of(const std::vector<TaskSize>& sizes) {
  std::vector<kernels::Task> tasks;
  int64_t queries = 0, keys = 0;
  for (const TaskSize& size : sizes) {
    tasks.push_back({.q_row = queries,
                     .q_tokens = size.queries,
                     .q_position = size.keys - size.queries,
                     .keys = {{.row = keys, .tokens = size.keys}}});
    queries += size.queries, keys += size.keys;
  }
  return tasks;
}

/// One fused call on the device, of tasks that may share rows of keys.
class Problem {
 public:
  Problem(const Arguments& arguments, std::vector<kernels::Task> tasks)
      : cuda_device_(arguments.cuda_device()),
        shape_{.num_heads = arguments.heads,
               .num_kv_heads = arguments.kv_heads,
               .head_dim_qk = arguments.head_dim,
               .head_dim_v = arguments.head_dim,
               .softmax_scale = 1 / std::sqrt(static_cast<double>(arguments.head_dim))},
        compiled_(arguments.kernel == "fa4" ? compiled(shape_, cuda_device_) : nullptr) {
    int64_t queries = 0, keys = 0;
    for (const kernels::Task& task : tasks) {
      queries = std::max(queries, task.q_row + task.q_tokens);
      keys = std::max(keys, task.keys[0].row + task.keys[0].tokens);
      pairs_ += TaskSize{task.q_tokens, task.keys[0].tokens}.pairs();
    }
    tensors_.emplace(shape_, kType, queries, keys, aten_device(cuda_device_));
    tensors_->list.tasks = std::move(tasks);
    if (cuda_device_ < 0) {
      forward();  // LSE, for backward
      return;
    }
    varlen_forward(shape_, kType, kType, tensors_->list, cuda_device_, forward_calls_, &forward_);
    varlen_backward(shape_, kType, tensors_->list, cuda_device_, backward_calls_, &backward_);
  }
  /// Both return the bytes that were copied to and from the operator.
  int64_t forward() const {
    if (compiled_ || cuda_device_ >= 0)
      return cuda_forward(shape_, kType, kType, tensors_->list, cuda_device_, &forward_, flash4());
    aten_forward(shape_, kType, tensors_->list);
    return 0;
  }
  int64_t backward() const {
    if (compiled_ || cuda_device_ >= 0)
      return cuda_backward(shape_, kType, tensors_->list, cuda_device_, &backward_, flash4());
    aten_backward(shape_, kType, tensors_->list);
    return 0;
  }
  void deterministic_backward() const {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    backward();
    at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
  }
  /// These two play the calls of the operator itself alone; on a CPU, the whole pass.
  void forward_operator() const { cuda_device_ < 0 ? void(forward()) : forward_calls_.play(); }
  void backward_operator() const { cuda_device_ < 0 ? void(backward()) : backward_calls_.play(); }
  double flops(int64_t a_pair) const {
    return static_cast<double>(a_pair * pairs_ * shape_.num_heads * shape_.head_dim_qk);
  }
  int64_t pairs() const { return pairs_; }
  int cuda_device() const { return cuda_device_; }

 private:
  static std::unique_ptr<const CompiledKernels> compiled(const kernels::Shape& shape,
                                                         int cuda_device) {
    auto [kernels, reason] = find_compiled_kernels(shape, kType, cuda_device);
    DISTCA_THROW_IF(!kernels, ErrorKind::kUsage, "--kernel fa4: {}", reason);
    return std::move(kernels);
  }
  Flash4 flash4() const { return {.kernels = compiled_.get()}; }

  const int cuda_device_;
  kernels::Shape shape_;
  const std::unique_ptr<const CompiledKernels> compiled_;  // null for ATen's kernel
  int64_t pairs_ = 0;
  std::optional<AttentionTensors> tensors_;
  mutable TaskLaunches forward_, backward_;  // kept from the first call on, as by a step's layers
  const std::unique_ptr<VarlenOperator> op_ = fused_operator(shape_, kType, flash4());
  OperatorCalls forward_calls_{*op_}, backward_calls_{*op_};
};

template <typename Result>
Contender contender(const Problem& problem, int64_t flops_a_pair, Result (Problem::*call)() const) {
  return {problem.flops(flops_a_pair),
          on_device(problem.cuda_device(), [&problem, call] { (problem.*call)(); })};
}
Contender forward_of(const Problem& problem) {
  return contender(problem, kForwardFlops, &Problem::forward);
}
Contender backward_of(const Problem& problem) {
  return contender(problem, kBackwardFlops, &Problem::backward);
}
Contender forward_operator_of(const Problem& problem) {
  return contender(problem, kForwardFlops, &Problem::forward_operator);
}
Contender backward_operator_of(const Problem& problem) {
  return contender(problem, kBackwardFlops, &Problem::backward_operator);
}

/// The device's peak, as a large matrix product reaches it.
Contender peak(int cuda_device) {
  const int64_t size = cuda_device < 0 ? kPeakSizeOfCpu : kPeakSize;
  const auto options = at::TensorOptions(aten_device(cuda_device)).dtype(at::kBFloat16);
  const at::Tensor a = at::randn({size, size}, options), b = at::randn({size, size}, options);
  const auto edge = static_cast<double>(size);
  return {2 * edge * edge * edge, on_device(cuda_device, [a, b] { at::mm(a, b); })};
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
  const Problem shards(arguments, tasks_of(sizes));
  const auto tokens = static_cast<int64_t>(std::sqrt(2.0 * static_cast<double>(shards.pairs())));
  const int64_t length = round_up(tokens, 128);
  const Problem whole(arguments, tasks_of({{length, length}}));
  const Contender deterministic =
      contender(shards, kBackwardFlops, &Problem::deterministic_backward);
  const std::vector<Rates> rates = interleaved_rates(
      {peak(arguments.cuda_device()), forward_of(shards), forward_operator_of(whole),
       backward_of(shards), backward_operator_of(whole), deterministic},
      arguments.rounds, kLeastSeconds);
  write_line("shards", {{"shard", shard},
                        {"shards", sizes.size()},
                        {"long_sequence", length},
                        {"peak", rates[0]},
                        {"forward", rates[1]},
                        {"forward_long", rates[2]},
                        {"backward", rates[3]},
                        {"backward_long", rates[4]},
                        {"backward_deterministic", rates[5]}});
}

// --- shards of one document ----------------------------------------------------------------------

/// Every `step`-th shard of the document. The queries of a shard are behind those of the one
/// before, or, `scattered`, in random places.
std::vector<kernels::Task> shards_of_document(const Arguments& arguments, int64_t step,
                                              bool scattered) {
  const int64_t shards = arguments.document_tokens / kShard / step;
  std::vector<int64_t> places(static_cast<size_t>(shards));
  std::iota(places.begin(), places.end(), 0);
  if (scattered) Random(arguments.seed).shuffle(std::span(places));
  std::vector<kernels::Task> tasks;
  for (int64_t i = 0; i < shards; ++i) {
    const int64_t begin = (step * (i + 1) - 1) * kShard;  // in the document
    tasks.push_back({.q_row = places[i] * kShard,
                     .q_tokens = kShard,
                     .q_position = begin,
                     .keys = {{.row = 0, .tokens = begin + kShard}}});
  }
  return tasks;
}

/// Compares shards of a document with the operator alone, on the document as one task and on the
/// same shards. Writes a line of GFLOP/s and of the bytes that a call copies.
void measure_document(const Arguments& arguments, const char* rows, int64_t step, bool scattered) {
  const Problem shards(arguments, shards_of_document(arguments, step, scattered));
  const Problem whole(arguments,
                      tasks_of({{arguments.document_tokens, arguments.document_tokens}}));
  const std::vector<Rates> rates = interleaved_rates(
      {forward_of(shards), forward_operator_of(whole), forward_operator_of(shards),
       backward_of(shards), backward_operator_of(whole), backward_operator_of(shards)},
      arguments.rounds, kLeastSeconds);
  write_line("document", {{"rows", rows},
                          {"tokens", arguments.document_tokens},
                          {"forward", rates[0]},
                          {"forward_long", rates[1]},
                          {"forward_operator", rates[2]},
                          {"backward", rates[3]},
                          {"backward_long", rates[4]},
                          {"backward_operator", rates[5]},
                          {"forward_copied_bytes", shards.forward()},
                          {"backward_copied_bytes", shards.backward()}});
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
  count("--document-tokens", arguments.document_tokens, "Of the document that is cut into shards");
  count("--most-shard", arguments.most_shard, "Queries of the largest shards with random contexts");
  app.add_option("--device", arguments.device)->check(CLI::IsMember({"cuda", "cpu"}));
  app.add_option("--seed", arguments.seed, "Of the contexts");
  app.add_option("--kernel", arguments.kernel, "ATen's FlashAttention 2, or FlashAttention 4")
      ->check(CLI::IsMember({"aten", "fa4"}));
  app.footer(
      "Exit code 2 without a CUDA device.\n"
      "Example:  build/release/bench/cuda_attention --kernel fa4 > cuda_attention.jsonl");
  if (!parse_options(app, argc, argv)) return 0;
  if (arguments.cuda_device() >= 0 && !at::hasCUDA()) {
    throw Error(ErrorKind::kUsage,
                "no CUDA device: this PyTorch or this machine has none; run it on a machine with a "
                "GPU and a PyTorch for CUDA");
  }
  // Else every buffer is filled before use while sums are deterministic.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  write_header("cuda_attention", {{"device", device_name(arguments.cuda_device())},
                                  {"kernel", arguments.kernel},
                                  {"rounds", arguments.rounds},
                                  {"heads", arguments.heads},
                                  {"kv_heads", arguments.kv_heads},
                                  {"head_dim", arguments.head_dim}});
  measure_document(arguments, "adjoining", 1, /*scattered=*/false);
  measure_document(arguments, "scattered", 1, /*scattered=*/true);
  measure_document(arguments, "of every second shard", 2, /*scattered=*/false);
  for (int64_t shard = 16; shard <= arguments.most_shard; shard *= 2)
    measure_shard(arguments, shard);
  return 0;
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/cuda_attention",
                                      [&] { return distca::bench::run(argc, argv); });
}
