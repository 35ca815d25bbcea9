// One layer of a Llama, forward and backward, on ranks that are threads and share a CUDA device:
// what it takes on the device and on the host, how many operators it calls, and what it sends
// and copies. Measured as the difference of steps with three layers and with one, which have all
// else in common. The ranks of a line have the same tokens together, so its device times compare.
//   build/release/bench/cuda_layer                 --device cpu: the same on the CPU, to rehearse

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/Event.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "bench/main.h"
#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/random.h"
#include "distca/base/statistics.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/collectives.h"
#include "distca/comm/device_stream.h"
#include "distca/comm/thread_group.h"
#include "distca/forecast/plan_request.h"
#include "distca/plan/exchange.h"
#include "distca/plan/scheduler.h"
#include "distca/runtime/operator_count.h"
#include "distca/train/step.h"

namespace distca::bench {
namespace {

constexpr int kRanks[] = {1, 2, 4};
constexpr int kMostRanks = 4;
constexpr int kFewLayers = 1, kManyLayers = 3;
constexpr int64_t kVocabulary = 1024;

struct Arguments {
  int rounds = 7;
  int64_t tokens = 8192;  // a rank of four
  int64_t hidden = 2048, intermediate = 8192, heads = 32, kv_heads = 8;
  std::string type = "bfloat16";
  std::string device = "cuda";

  int cuda_device() const { return device == "cuda" ? 0 : -1; }
};

/// Documents of all ranks together.
struct Documents {
  const char* name;
  std::vector<int64_t> lengths;
};
/// Half of the tokens, a quarter, and many short ones.
Documents mixed(int64_t tokens) {
  Documents documents{"mixed", {tokens / 2, tokens / 4}};
  for (int64_t left = tokens / 4; left > 0; left -= documents.lengths.back())
    documents.lengths.push_back(std::min(left, std::max<int64_t>(1, tokens / 64)));
  return documents;
}

/// A case that is measured: one line of output.
struct Setting {
  Documents documents;
  int ranks = 1;
  bool deterministic = false;
};
std::vector<Setting> settings(int64_t tokens) {
  const int64_t all = kMostRanks * tokens;
  std::vector<Setting> settings;
  for (const Documents& documents : {mixed(all), Documents{"one", {all}}}) {
    for (const int ranks : kRanks) settings.push_back({documents, ranks});
  }
  for (const int ranks : {1, kMostRanks}) settings.push_back({mixed(all), ranks, true});
  settings.push_back({mixed(tokens), 1});
  return settings;
}

LlamaConfig model_of(const Arguments& arguments, int layers) {
  LlamaConfig model;
  model.vocab_size = kVocabulary;
  model.hidden_size = arguments.hidden;
  model.intermediate_size = arguments.intermediate;
  model.num_hidden_layers = layers;
  model.num_attention_heads = arguments.heads;
  model.num_key_value_heads = arguments.kv_heads;
  model.head_dim = arguments.hidden / arguments.heads;
  model.dtype = scalar_type(arguments.type).value();
  return model;
}

/// A rank's program and tokens in a step.
StepInput input_of(const PlanIndex& index, const Plan& plan, const LlamaConfig& model,
                   const StepOptions& options, int rank) {
  StepInput input{
      .program = step_program(model, options, /*holds_weights=*/true, ProgramRequest::Kind::kTrain,
                              {{attention_exchange(index, rank, model, options), false}}),
      .tokens = {}};
  LocalTokens& local = input.tokens.emplace_back();
  Random random(static_cast<uint64_t>(rank));
  for (const Segment& segment : plan.layout.workers[rank]) {
    for (int64_t position = segment.tokens.begin; position < segment.tokens.end; ++position) {
      local.ids.push_back(static_cast<int64_t>(random.below(kVocabulary)));
      local.targets.push_back(static_cast<int64_t>(random.below(kVocabulary)));
      local.positions.push_back(position);
    }
  }
  return input;
}

/// The cost of a rank's step. Sums over all ranks are the layer's.
struct Taken {
  double device_s = 0;
  double host_s = 0;  // processor time of the rank's thread in the program's operations
  int64_t operators = 0;
  int64_t sent = 0, copied = 0;
};

/// The time of the device from begin() to seconds(); of a CPU, the time that passes.
class Timer {
 public:
  explicit Timer(int cuda_device) : cuda_device_(cuda_device) {}
  void begin() {
    if (cuda_device_ >= 0) begin_ = mark();
    watch_.restart();
  }
  double seconds() {
    if (cuda_device_ < 0) return watch_.seconds();
    const std::unique_ptr<c10::Event> end = mark();
    end->synchronize();
    return 1e-3 * begin_->elapsedTime(*end);
  }

 private:
  std::unique_ptr<c10::Event> mark() const {
    auto event = std::make_unique<c10::Event>(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    event->record(current_stream(aten_device(cuda_device_)));
    return event;
  }
  const int cuda_device_;
  std::unique_ptr<c10::Event> begin_;
  Stopwatch watch_;
};

/// Processor time of all operations. What the step does behind them waits for the device, and a
/// thread that waits so may be busy all the time.
double played_s(const OpTimes& times) {
  double seconds = 0;
  for (const auto& of_kind : times.processor_seconds) {
    for (const auto& of_pass : of_kind)
      seconds += std::accumulate(of_pass.begin(), of_pass.end(), 0.0);
  }
  return seconds;
}

/// The cost of all ranks' steps together: the longest time, the mean processor time and operators
/// of a rank, and all bytes.
Json all_of(const std::vector<Taken>& ranks) {
  Taken all;
  for (const Taken& one : ranks) {
    all.device_s = std::max(all.device_s, one.device_s);
    all.host_s += one.host_s / static_cast<double>(ranks.size());
    all.operators += one.operators;
    all.sent += one.sent, all.copied += one.copied;
  }
  return {{"device_ms", 1e3 * all.device_s},
          {"host_ms", 1e3 * all.host_s},
          {"operators", static_cast<double>(all.operators) / static_cast<double>(ranks.size())},
          {"sent_bytes", all.sent},
          {"copied_bytes", all.copied}};
}

/// Plays steps with the layers of `config` as one of the ranks of `plan`. Only rank 0 returns the
/// rounds, each the cost of all ranks.
std::vector<Json> rounds_of(const Arguments& arguments, const Config& config, const Plan& plan,
                            Communicator& comm) {
  const StepOptions options = step_options(config);
  const Llama model(config.model, /*seed=*/1, comm.cuda_device());
  const StepInput input = input_of(PlanIndex(plan), plan, config.model, options, comm.rank());
  const int64_t targets = plan.nano_batch.num_tokens();
  Step step(config.model, &model, comm, options);
  Timer timer(comm.cuda_device());
  std::vector<Json> rounds;
  for (int round = -1; round < arguments.rounds; ++round) {
    barrier(comm, "begin");
    const OperatorCount operators;
    timer.begin();
    const StepResult result = step.train(input, targets, {});
    Taken taken{.host_s = played_s(result.times),
                .sent = result.bytes.sent,
                .copied = result.bytes.packed + result.bytes.unpacked + result.bytes.copied};
    taken.device_s = timer.seconds();
    barrier(comm, "end");
    taken.operators = operators.total();
    const std::vector<Taken> all = all_gather(comm, taken, "what was taken");
    if (round >= 0 && comm.rank() == 0) rounds.push_back(all_of(all));  // the first warms up
  }
  return rounds;
}

/// The medians of a step with so many layers.
Json measure_step(const Arguments& arguments, const Documents& documents, int ranks, int layers) {
  Config config;
  config.model = model_of(arguments, layers);
  const Plan plan =
      make_plan(plan_request(config, NanoBatch::from_lengths(documents.lengths), ranks));
  const int cuda_device = arguments.cuda_device();
  std::vector<Json> rounds;
  run_ranks(
      ranks, {.timeout_s = 120},
      [&](Communicator& comm) {
        at::set_num_threads(1);
        std::vector<Json> mine = rounds_of(arguments, config, plan, comm);
        if (comm.rank() == 0) rounds = std::move(mine);
      },
      cuda_device < 0 ? ThreadDevice{} : cuda_thread_device(cuda_device));
  Json medians = Json::object();
  for (const auto& [name, value] : rounds.at(0).items()) {
    std::vector<double> values;
    for (const Json& round : rounds) values.push_back(round.at(name));
    medians[name] = median(values);
  }
  return medians;
}

void measure(const Arguments& arguments) {
  for (const auto& [documents, ranks, deterministic] : settings(arguments.tokens)) {
    at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
    const Json few = measure_step(arguments, documents, ranks, kFewLayers);
    const Json many = measure_step(arguments, documents, ranks, kManyLayers);
    Json line = {
        {"ranks", ranks},
        {"documents", documents.name},
        {"lengths", documents.lengths},
        {"tokens", std::accumulate(documents.lengths.begin(), documents.lengths.end(), int64_t{0})},
        {"deterministic", deterministic}};
    for (const auto& [name, value] : many.items())
      line[name] = (value.get<double>() - few.at(name).get<double>()) / (kManyLayers - kFewLayers);
    write_line("layer", line);
  }
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"One layer on ranks that share a CUDA device: times, operators, bytes.",
               "cuda_layer"};
  app.option_defaults()->always_capture_default();
  const auto count = [&](const char* name, int64_t& value, const char* what) {
    app.add_option(name, value, what)->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  };
  app.add_option("--rounds", arguments.rounds, "Of every measurement")->check(CLI::Range(1, 1000));
  count("--tokens", arguments.tokens, "Of each of four ranks");
  count("--hidden", arguments.hidden, "model.hidden_size");
  count("--intermediate", arguments.intermediate, "model.intermediate_size");
  count("--heads", arguments.heads, "model.num_attention_heads");
  count("--kv-heads", arguments.kv_heads, "model.num_key_value_heads");
  app.add_option("--type", arguments.type, "model.dtype")
      ->check(CLI::IsMember({"float64", "float32", "bfloat16"}));
  app.add_option("--device", arguments.device)->check(CLI::IsMember({"cuda", "cpu"}));
  if (!parse_options(app, argc, argv)) return 0;
  if (arguments.cuda_device() >= 0 && !at::hasCUDA()) {
    throw Error(ErrorKind::kUsage, "no CUDA device: this PyTorch or this machine has none");
  }
  write_header("cuda_layer", {{"device", arguments.device},
                              {"rounds", arguments.rounds},
                              {"tokens", kMostRanks * arguments.tokens},
                              {"model", model_of(arguments, kManyLayers).to_hugging_face(0)},
                              {"type", arguments.type}});
  // Else every buffer is filled before use while operators are deterministic.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  measure(arguments);
  return 0;
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/cuda_layer",
                                      [&] { return distca::bench::run(argc, argv); });
}
