#pragma once
// The configuration of a training run. It is read from a TOML file, and then from overrides of the
// form `section.key=value`.
//
//     const Config config = load_config("configs/demo.toml", {"train.steps=10"});
//     fmt::print("{}", print_config(config));  // a TOML file with every key and its reason
//
// A struct below is a section of the file, and a field is a key. `distca train --print-config`
// prints the unit, the default and the reason of every key; they come from config_keys.cc, where
// the allowed values are given too. The comments below say only what a section is for, and where a
// field is not what its key holds. A Config is a plain value, which any thread may use.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "distca/base/comm_options.h"
#include "distca/batch/batch_stream.h"
#include "distca/cost/attention_profile.h"
#include "distca/kernels/kernel_choice.h"
#include "distca/model/llama_config.h"
#include "distca/plan/pipeline/pipeline_plan.h"
#include "distca/plan/plan.h"
#include "distca/program/overlap.h"
#include "distca/program/pipeline_parts.h"

namespace distca {

/// How far the busiest server may be above its share of the load (plan.tolerance).
struct Tolerance {
  /// Chosen for each nano-batch by weighing load against bytes (plan/choose_tolerance.h).
  bool is_auto = false;
  /// 0.05: at most 5 % above. Not set: the scheduler's own tolerance, which is -1 in the file.
  std::optional<double> share = {};
};

/// All keys of a run, with their defaults.
struct Config {
  /// The data set that the run reads, and how much of it validates instead of being trained on.
  struct Data {
    std::string prefix;
    double validation_fraction = 0.05;
    std::string bad_tokens = "refuse";  // or a word of bad_tokens.h, or an id
  } data;
  /// The documents that a step trains on. A batch depends on this section and the data set alone,
  /// never on the number of workers. If max_document_tokens is 0, load_config sets
  /// nano_batch_tokens.
  BatchOptions batch{
      .nano_batch_tokens = 8192, .nano_batches = 1, .max_document_tokens = 0, .seed = 1};
  /// The shape and the number type of the model (model/llama.h). Where model.from is given, its
  /// folder decides all but the type (model_from.h).
  LlamaConfig model;
  std::string model_from;          // model.from: a folder of Hugging Face, or "" for random weights
  std::vector<std::string> notes;  // for the user, on that folder's config.json; a line each
  /// How the planner lays tokens out, balances attention over the servers, and caps memory: the
  /// fields of PlanOptions, of which `tolerance` decides tolerance_ppm and `profile` decides price.
  struct PlanKeys : PlanOptions {
    Tolerance tolerance;
    std::string profile = "pairs";
    int64_t max_tokens_per_worker = 0;
    double max_memory_gib = 0;
    int64_t bandwidth_mb_per_s = 0;
    FillTicks fill_ticks = FillTicks::kExact;
  } plan;
  /// The profile that plan.profile names, which load_config reads; null if loads are counted in
  /// (query, key) pairs.
  std::shared_ptr<const AttentionProfile> attention_profile;
  /// The bytes that the ranks' devices leave for activations and kept keys of a rank where
  /// plan.max_memory_gib says nothing (forecast/memory_cap.h), once a run has found them. 0 means
  /// no cap.
  int64_t device_cap_bytes = 0;
  /// The kernel that computes core attention.
  struct Attention {
    KernelChoice kernel = KernelChoice::kAuto;
  } attention;
  /// The type in which gradients of Q, K and V travel between ranks, and whether servers keep keys
  /// until backward.
  struct Exchange {
    bool wide_gradients = false;  // exchange.grad_dtype = accumulator
    enum class Keys : uint8_t { kAuto, kKeep, kRedispatch } keys = Keys::kAuto;
  } exchange;
  /// The ranks that compute attention, and the share of it that each of them gets.
  struct Servers {
    int64_t dedicated = 0;
    bool in_place = true;
    /// The capacity of each server, such as {60, 40, 100}. Empty means that they are derived
    /// (forecast/plan_request.h).
    std::vector<int64_t> capacity;
    bool reweight = false;
  } servers;
  /// AdamW, its learning rate over time, and the clipping of gradients (optimizer.h).
  struct Optimizer {
    double lr = 1e-3;
    enum class Decay : uint8_t { kCosine, kLinear, kConstant, kWsd } schedule = Decay::kCosine;
    double min_lr_ratio = 0.1;
    int64_t warmup_steps = 20;
    int64_t decay_steps = 0;
    int64_t wsd_decay_steps = 0;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    double max_grad_norm = 1.0;
  } optimizer;
  /// How workers share the model (run_grid.h) and what they do alike: the sum of gradients and the
  /// update of the weights (program/gradient_exchange.h). The names are Megatron-LM's.
  struct Parallel {
    int64_t tensor_model_parallel_size = 1;
    bool sequence_parallel = true;
    int64_t pipeline_model_parallel_size = 1;
    /// The layers of each stage, such as {8, 8, 8, 6}. Empty means even_stages
    /// (cost/stage_layers.h).
    std::vector<int64_t> pipeline_layers;
    PipelineSchedule pipeline_schedule = PipelineSchedule::kAligned;
    /// Runs of neighbouring layers that each stage holds. Above 1 it is interleaved 1F1B, which is
    /// predicted (forecast/training_setting.h) and cannot be trained, so no key sets it.
    int virtual_stages = 1;
    int64_t outstanding_weight_gradients = 1;
    bool use_distributed_optimizer = false;
    bool overlap_grad_reduce = true;
    double bucket_mb = 0;
  } parallel;
  /// The loop: its length, overlap mode, validation, bad steps, device, output folder and trace.
  struct Train {
    int64_t steps = 100;
    double exit_duration_in_mins = 0;
    Overlap overlap = Overlap::kPingPong;
    int64_t seed = 1;
    int64_t validation_every = 50;
    int64_t validation_nano_batches = 4;
    int64_t threads_per_rank = 1;
    Recompute recompute = Recompute::kNone;
    int64_t loss_chunk_tokens = 0;
    enum class Device : uint8_t { kCpu, kCuda } device = Device::kCpu;
    bool deterministic = true;
    enum class BadStep : uint8_t { kStop, kSkip } bad_step = BadStep::kStop;
    double spike_factor = 0;
    int64_t max_skipped_steps = 10;
    std::string output_dir = "runs/train";
    bool overwrite = false;
    std::string trace;
    int64_t trace_first_step = 2;
    int64_t trace_steps = 3;
  } train;
  /// When the state of a run is saved, and which checkpoints are kept (docs/checkpoints.md).
  struct Checkpoint {
    int64_t every_steps = 0;
    int64_t keep_last = 3;
    int64_t keep_every = 0;
    bool async = true;
    double grace_s = 600;
  } checkpoint;
  /// How ranks are placed on machines.
  struct Nodes {
    int64_t ranks_per_node = 0;
  } cluster;
  /// How ranks exchange messages, and how long they wait for each other (docs/comm.md).
  struct Comm : CommOptions {
    enum class Backend : uint8_t { kGloo, kThreads, kNccl } backend = Backend::kGloo;
  } comm;

  /// The ranks that divide the matrices of a layer. Together they are one server.
  int tensor_ranks() const { return static_cast<int>(parallel.tensor_model_parallel_size); }
  /// The sizes of the model as a rank has it, before stages divide its layers.
  ModelShape rank_shape(size_t window = 0) const {
    return model.shape_of_rank(tensor_ranks(), window);
  }
  /// The step, counted from 1, at which the learning rate has ended its fall.
  int64_t decay_end() const {
    return optimizer.decay_steps > 0 ? optimizer.decay_steps : train.steps;
  }
  bool on_cuda() const { return train.device == Train::Device::kCuda; }
  /// Returns true if a rank computes attention on one CPU thread. The time of attention is then the
  /// processor time of that thread; otherwise it is elapsed time, or the device's.
  bool attention_has_one_thread() const { return !on_cuda() && train.threads_per_rank == 1; }
  bool ranks_are_threads() const { return comm.backend == Comm::Backend::kThreads; }
  bool has_nccl() const { return comm.backend == Comm::Backend::kNccl; }
  /// Returns true if two nano-batches are under way at the same time.
  bool pairs_nano_batches() const {
    return train.overlap == Overlap::kPingPong && batch.nano_batches > 1;
  }
};

/// How to read and set a key whose value is chosen by a word.
struct WordValue {
  std::function<std::string_view()> word;        // returns the word of the present choice
  std::function<void(std::string_view)> choose;  // sets the choice to this word's
};

/// The effect of a changed key on a run that goes on (--resume).
enum class OnResume : uint8_t {
  kFixed,  // the run is refused
  kFree,   // nothing of what is trained depends on it
  kTrain,  // the run goes on differently from here on: it is said
  kBits,   // the result holds, but not the bits
};

/// One key of the file: where its value lies in a Config, and what it means.
struct ConfigKey {
  std::string name;  // "section.key"
  std::variant<int64_t*, double*, bool*, std::string*, std::vector<int64_t>*,
               std::vector<std::string>*, Tolerance*, WordValue>
      value;
  OnResume on_resume = OnResume::kFixed;
  std::string unit = {};     // "" if it has none
  std::string reason = {};   // its purpose, in sentences
  double minimum = -0x1p30;  // limits of a number, or of each number of a list
  double maximum = 0x1p30;
  std::vector<std::string> choices = {};  // allowed words; empty if any text is allowed
  bool may_differ = false;                // ranks may have different values
  bool given = false;                     // the file or an override has set it
};

/// All keys in the order in which they are printed, with pointers into `config`.
std::vector<ConfigKey> config_keys(Config& config);

/// The number of ranks that run together: the workers, then the dedicated servers.
int num_ranks(const Config& config, int num_workers);
/// The number of servers of a cluster with so many workers (cost/cluster.h), each of which is
/// tensor_ranks() ranks.
int num_servers(const Config& config, int num_workers);
inline constexpr int kMostRanks = 1024;  // the most processes that one machine may run

/// Returns true if times that are measured during training enter the plans. They never do under
/// train.deterministic.
bool measures_speeds(const Config& config);

/// Reads the file `path` (the defaults if it is empty), applies the overrides and checks that the
/// values fit each other. Throws Error(kConfig) in one line that names the file or the override,
/// the key and what would be right. For an unknown key, it names the nearest known one.
Config load_config(const std::filesystem::path& path, const std::vector<std::string>& overrides);

/// A TOML file with the same values, and for each key its reason, unit and default.
std::string print_config(Config config);
/// A TOML file with the same values, without explanations: the config.toml of a run.
std::string recorded_config(Config config);
/// The value of a key, as print_config writes it.
std::string shown_value(const ConfigKey& key);
/// Returns "gloo", "threads" or "nccl".
std::string_view backend_name(Config::Comm::Backend backend);

/// The kernels that were fastest in a profile, which may be null: none then.
MeasuredKernels measured_kernels(const AttentionProfile* profile);
/// The request for the ranks of a run. On CUDA, device 0 stands for any of them, because callers
/// ask only what a kernel can do.
KernelRequest kernel_request(const Config& config);

}  // namespace distca
