#pragma once
// The configuration of a training run: TOML file, then `section.key=value` overrides. Every key has
// a default, a unit and a reason (distca train --print-config). Plain value, any thread.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/cost/attention_profile.h"
#include "distca/model/llama.h"
#include "distca/program/overlap.h"
#include "distca/runtime/attention_kernel.h"

namespace distca {

/// How far the busiest server may be above its share of the load.
struct Tolerance {
  enum class Kind : uint8_t {
    kOwn,    // the scheduler's own
    kAuto,   // weighed against bytes (plan/choose_tolerance.h)
    kShare,  // `share`
  } kind = Kind::kOwn;
  double share = 0;
  bool is_auto() const { return kind == Kind::kAuto; }
};

struct Config {
  struct Data {
    std::string prefix;
    double validation_fraction = 0.05;
  } data;
  BatchOptions batch{
      .nano_batch_tokens = 8192, .nano_batches = 1, .max_document_tokens = 0, .seed = 1};
  LlamaConfig model;
  struct PlanKeys {
    std::string layout;
    std::string scheduler = "balanced";
    Tolerance tolerance;
    bool split_kv = false;
    bool spread = false;
    std::string profile = "pairs";
    int64_t max_tokens_per_worker = 0;
    double max_memory_gib = 0;
    int64_t bandwidth_mb_per_s = 0;
  } plan;
  std::shared_ptr<const AttentionProfile> attention_profile;  // of plan.profile; none: pairs
  struct Attention {
    KernelChoice kernel = KernelChoice::kAuto;
  } attention;
  struct Exchange {
    bool wide_gradients = false;  // exchange.grad_dtype = "accumulator"
    enum class Keys : uint8_t { kAuto, kKeep, kRedispatch } keys = Keys::kAuto;
  } exchange;
  struct Servers {
    int64_t dedicated = 0;
    bool in_place = true;
    std::string capacity;
    bool reweight = false;
  } servers;
  struct Optimizer {
    double lr = 1e-3;
    double min_lr_ratio = 0.1;
    int64_t warmup_steps = 20;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    double max_grad_norm = 1.0;
  } optimizer;
  struct Train {
    int64_t steps = 100;
    Overlap overlap = Overlap::kPingPong;
    int64_t seed = 1;
    int64_t validation_every = 50;
    int64_t validation_nano_batches = 4;
    int64_t threads_per_rank = 1;
    enum class Device : uint8_t { kCpu, kCuda } device = Device::kCpu;
    bool deterministic = true;
    std::string output_dir = "runs/train";
    bool overwrite = false;
    std::string trace;
    int64_t trace_first_step = 2;
    int64_t trace_steps = 3;
  } train;
  struct Comm {
    enum class Backend : uint8_t { kGloo, kThreads } backend = Backend::kGloo;
    double timeout_s = 60;
    double startup_timeout_s = 300;
    double grace_s = 5;
  } comm;

  bool on_cuda() const { return train.device == Train::Device::kCuda; }
  bool ranks_are_threads() const { return comm.backend == Comm::Backend::kThreads; }
  /// Two nano-batches are under way at a time.
  bool pairs_nano_batches() const {
    return train.overlap == Overlap::kPingPong && batch.nano_batches > 1;
  }
};

/// A value that is chosen by a word.
struct WordValue {
  std::function<std::string_view()> word;  // for the present choice
  std::function<void(std::string_view)> choose;
};

/// One key: where it lives and what it means.
struct ConfigKey {
  std::string name;  // "section.key"
  std::variant<int64_t*, double*, bool*, std::string*, Tolerance*, WordValue> value;
  std::string unit;  // "": none
  std::string reason;
  std::vector<std::string> choices = {};  // for words; empty: anything
  double minimum = -0x1p30;               // for numbers
  double maximum = 0x1p30;
};

/// All keys of a configuration, in print order; pointers into `config`.
std::vector<ConfigKey> config_keys(Config& config);

/// Ranks that run together: workers, then dedicated servers.
int num_ranks(const Config& config, int num_workers);
inline constexpr int kMostRanks = 1024;  // processes of one machine

/// Reads `path` (empty: defaults), applies the overrides and checks values against each other.
/// Throws Error(kConfig): one line naming file or override, key and what would be right; an unknown
/// key is answered with the nearest known.
Config load_config(const std::filesystem::path& path, const std::vector<std::string>& overrides);

/// A TOML file that says the same: every key with its reason, unit and default.
std::string print_config(Config config);
/// The same without explanations, as a run records it in its config.toml.
std::string recorded_config(Config config);
/// A key's value as print_config writes it.
std::string shown_value(const ConfigKey& key);
/// "gloo", "threads".
std::string_view backend_name(Config::Comm::Backend backend);

/// The kernel request for a model's core attention. `cuda_device`: -1 = CPU.
KernelRequest kernel_request(const LlamaConfig& model, KernelChoice choice, int threads,
                             int cuda_device);
/// The same for the ranks of a run: on the CPU, or on the first CUDA device.
KernelRequest kernel_request(const Config& config);

}  // namespace distca
