#include "distca/train/config.h"

#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/scalar_type.h"
#include "distca/base/text.h"
#include "distca/plan/scheduler.h"

namespace distca {

namespace {
constexpr double kAnySeed = 0x1p62;

/// Of layouts that a run may have: not those that are for counting only.
std::vector<std::string> layout_names() {
  std::vector<std::string> names = {""};
  for (const LayoutEntry& layout : layouts()) {
    if (layout.cuts) names.emplace_back(layout.name);
  }
  return names;
}

std::vector<std::string> scheduler_names() {
  std::vector<std::string> names;
  for (const SchedulerEntry& scheduler : schedulers()) names.emplace_back(scheduler.name);
  return names;
}

std::string listed(const ConfigKey& key) {
  std::vector<std::string> words;
  for (const std::string& choice : key.choices) words.push_back(choice.empty() ? "\"\"" : choice);
  return fmt::format("{}", fmt::join(words, ", "));
}
}  // namespace

std::vector<ConfigKey> config_keys(Config& c) {
  LlamaConfig& m = c.model;
  Config::Optimizer& o = c.optimizer;
  return {
      {"data.prefix", &c.data.prefix, "path",
       "PREFIX.bin and PREFIX.idx, made by `distca data prepare`"},
      {"data.validation_fraction",
       &c.data.validation_fraction,
       "share of documents",
       "held out, chosen by batch.seed, never trained on",
       {},
       0},
      {"batch.nano_batch_tokens",
       &c.batch.nano_batch_tokens,
       "tokens over all workers",
       "documents that pass a layer together; batches never depend on the number of workers",
       {},
       1},
      {"batch.nano_batches", &c.batch.nano_batches, "nano-batches", "per optimizer step", {}, 1},
      {"batch.max_document_tokens",
       &c.batch.max_document_tokens,
       "tokens",
       "longer documents are cut; 0: nano_batch_tokens",
       {},
       0},
      {"batch.seed",
       reinterpret_cast<int64_t*>(&c.batch.seed),
       "-",
       "order of documents and the held-out choice",
       {},
       0,
       kAnySeed},
      {"model.vocab_size", &m.vocab_size, "tokens", "256 for the byte tokenizer", {}, 1},
      {"model.hidden_size", &m.hidden_size, "features", "width of the residual stream", {}, 1},
      {"model.intermediate_size",
       &m.intermediate_size,
       "features",
       "width of the SwiGLU MLP",
       {},
       1},
      {"model.num_hidden_layers", &m.num_hidden_layers, "layers", "depth", {}, 1},
      {"model.num_attention_heads", &m.num_attention_heads, "heads", "query heads", {}, 1},
      {"model.num_key_value_heads",
       &m.num_key_value_heads,
       "heads",
       "key and value heads; fewer than query heads = GQA, fewer bytes to exchange",
       {},
       1},
      {"model.head_dim", &m.head_dim, "features", "a multiple of 8", {}, 8},
      {"model.rope_theta", &m.rope_theta, "-", "base of the rotary position embedding", {}, 1},
      {"model.rms_norm_eps", &m.rms_norm_eps, "-", "keeps the norm of a zero row finite", {}, 0},
      {"model.initializer_range",
       &m.initializer_range,
       "standard deviation",
       "of the initial weights",
       {},
       0},
      {"model.tie_word_embeddings", &m.tie_word_embeddings, "-",
       "the head shares the embedding's weights"},
      {"model.sliding_window",
       &m.sliding_window,
       "tokens",
       "keys each query sees, itself included; 0: all",
       {},
       0},
      {"model.dtype",
       &c.model_dtype,
       "-",
       "of activations and matrix products; master weights stay fp32",
       {"float32", "bfloat16", "float64"}},
      {"plan.layout", &c.plan.layout, "-",
       "which token ranges live on which worker; \"\": the scheduler's own choice", layout_names()},
      {"plan.scheduler", &c.plan.scheduler, "-",
       "who computes which attention: local = where the queries live", scheduler_names()},
      {"plan.tolerance",
       &c.plan.tolerance,
       "share",
       "how far the busiest server may be above the mean; -1: the scheduler's own",
       {},
       Config::PlanKeys::kOwnTolerance,
       10},
      {"plan.key_sub_ranges", &c.plan.key_sub_ranges, "-",
       "tasks may have part of the keys: fewer bytes, but bits that depend on the plan"},
      {"plan.spread", &c.plan.spread, "-",
       "lowest largest send and receive, for a few per cent more bytes in all"},
      {"plan.profile", &c.plan.profile, "-",
       "what load is counted in: pairs, or time by a profile: h200, or the file of one"},
      {"plan.max_tokens_per_worker",
       &c.plan.max_tokens_per_worker,
       "tokens",
       "memory cap: a nano-batch that does not fit is refused; 0: none",
       {},
       0},
      {"attention.kernel", &c.attention.kernel, "-",
       "cpu: our own, on CPU, fp32 and bf16, head_dim up to 256; aten: PyTorch's; reference: on "
       "CPU, slow, in double; auto: cpu where it can, else aten",
       kernel_names()},
      {"exchange.grad_dtype",
       &c.exchange.grad_dtype,
       "-",
       "type in which dQ, dK, dV travel: compute = model.dtype, accumulator = fp32",
       {"compute", "accumulator"}},
      {"optimizer.lr", &o.lr, "-", "AdamW's peak learning rate", {}, 0},
      {"optimizer.min_lr_ratio", &o.min_lr_ratio, "share of lr", "where the cosine ends", {}, 0},
      {"optimizer.warmup_steps", &o.warmup_steps, "steps", "linear warm-up", {}, 0},
      {"optimizer.beta1", &o.beta1, "-", "decay of the gradient's mean", {}, 0},
      {"optimizer.beta2", &o.beta2, "-", "decay of the gradient's square", {}, 0},
      {"optimizer.eps", &o.eps, "-", "keeps the update finite", {}, 0},
      {"optimizer.weight_decay", &o.weight_decay, "-", "of matrices; norms are left alone", {}, 0},
      {"optimizer.max_grad_norm", &o.max_grad_norm, "-", "clip by global norm; 0: off", {}, 0},
      {"train.steps", &c.train.steps, "steps", "optimizer steps", {}, 0},
      {"train.seed", &c.train.seed, "-", "initial weights", {}, 0, kAnySeed},
      {"train.validation_every",
       &c.train.validation_every,
       "steps",
       "held-out loss; 0: only at the end",
       {},
       0},
      {"train.validation_nano_batches",
       &c.train.validation_nano_batches,
       "nano-batches",
       "the same ones each time",
       {},
       1},
      {"train.threads_per_rank",
       &c.train.threads_per_rank,
       "threads",
       "compute threads; bits are promised for equal counts",
       {},
       1,
       1024},
      {"train.device",
       &c.train.device,
       "-",
       "cuda: with backend threads all ranks share one GPU, with nccl each has its own",
       {"cpu", "cuda"}},
      {"train.deterministic", &c.train.deterministic, "-",
       "on cuda: the same run gives the same bits, which may take longer; on cpu it always does"},
      {"train.output_dir", &c.train.output_dir, "path",
       "metrics.jsonl, config.toml, model.safetensors, config.json"},
      {"train.overwrite", &c.train.overwrite, "-", "allow an output_dir that already holds a run"},
      {"comm.backend",
       &c.comm.backend,
       "-",
       "gloo: processes; threads: ranks in one process; nccl: GPUs",
       {"gloo", "threads", "nccl"}},
      {"comm.timeout_s",
       &c.comm.timeout_s,
       "seconds",
       "a wait longer than this names the rank awaited and ends",
       {},
       0.1},
      {"comm.startup_timeout_s",
       &c.comm.startup_timeout_s,
       "seconds",
       "ranks that have not all met by then are named",
       {},
       0.1},
      {"comm.grace_s",
       &c.comm.grace_s,
       "seconds",
       "from the first failure to the end of all ranks",
       {},
       0.1},
  };
}

namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};

[[noreturn]] void unknown_key(const std::string& origin, const std::string& name,
                              std::vector<ConfigKey>& keys) {
  std::vector<std::string> known;
  for (const ConfigKey& key : keys) known.push_back(key.name);
  const auto nearest = nearest_word(name, known);
  throw Error(
      ErrorKind::kConfig, "{}: unknown key {}{}", origin, name,
      nearest ? fmt::format("; did you mean {}?", *nearest) : " (see distca train --print-config)");
}

void check_value(const ConfigKey& key, const std::string& origin) {
  auto check_number = [&](double value) {
    const bool low = !(value >= key.minimum);
    if (!low && value <= key.maximum) return;
    throw Error(ErrorKind::kConfig, "{}: {} = {}: must be at {} {} ({})", origin, key.name, value,
                low ? "least" : "most", low ? key.minimum : key.maximum, key.unit);
  };
  std::visit(Overloaded{[&](int64_t* v) { check_number(static_cast<double>(*v)); },
                        [&](double* v) { check_number(*v); }, [&](bool*) {},
                        [&](std::string* v) {
                          if (key.choices.empty() || std::ranges::count(key.choices, *v)) return;
                          const auto nearest = nearest_word(*v, key.choices);
                          throw Error(ErrorKind::kConfig, "{}: {} = \"{}\"{}: must be one of {}",
                                      origin, key.name, *v,
                                      nearest && !nearest->empty()
                                          ? fmt::format(", did you mean '{}'?", *nearest)
                                          : "",
                                      listed(key));
                        }},
             key.value);
}

void set_value(const ConfigKey& key, const toml::node& node, const std::string& origin) {
  auto wrong_type = [&](const char* expected) {
    std::ostringstream text;
    text << node.type();
    throw Error(ErrorKind::kConfig, "{}: {} expects {} ({}), not a TOML {}", origin, key.name,
                expected, key.unit, text.str());
  };
  std::visit(
      Overloaded{[&](int64_t* v) {
                   node.is_integer() ? void(*v = *node.value<int64_t>()) : wrong_type("an integer");
                 },
                 [&](double* v) {
                   node.is_number() ? void(*v = *node.value<double>()) : wrong_type("a number");
                 },
                 [&](bool* v) {
                   node.is_boolean() ? void(*v = *node.value<bool>()) : wrong_type("true or false");
                 },
                 [&](std::string* v) {
                   node.is_string() ? void(*v = *node.value<std::string>()) : wrong_type("text");
                 }},
      key.value);
  check_value(key, origin);
}

void apply_table(const toml::table& table, const std::string& origin,
                 std::vector<ConfigKey>& keys) {
  for (const auto& [section, node] : table) {
    const std::string section_name(section.str());
    if (!node.is_table()) unknown_key(origin, section_name, keys);
    for (const auto& [key_text, value] : *node.as_table()) {
      const std::string name = section_name + "." + std::string(key_text.str());
      const auto key = std::ranges::find(keys, name, &ConfigKey::name);
      const std::string where = value.source().begin.line > 0 && origin != name
                                    ? fmt::format("{} line {}", origin, value.source().begin.line)
                                    : origin;
      if (key == keys.end()) unknown_key(where, name, keys);
      set_value(*key, value, where);
    }
  }
}

void apply_override(const std::string& text, std::vector<ConfigKey>& keys) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  if (equals == std::string::npos) {
    throw Error(ErrorKind::kConfig, "{}: an override is section.key=value", text);
  }
  const auto key = std::ranges::find(keys, name, &ConfigKey::name);
  if (key == keys.end()) unknown_key("command line", name, keys);
  const std::string value = text.substr(equals + 1);
  if (auto* word =
          std::get_if<std::string*>(&key->value)) {  // words need no quotes on a command line
    **word = value;
    check_value(*key, "command line");
    return;
  }
  const toml::parse_result parsed = [&] {
    try {
      return toml::parse("value = " + value);
    } catch (const toml::parse_error&) {
      throw Error(ErrorKind::kConfig, "command line: {} = {}: not a number or true/false", name,
                  value);
    }
  }();
  set_value(*key, *parsed.get("value"), "command line");
}

void finish(Config& config) {
  BatchOptions& batch = config.batch;
  if (batch.max_document_tokens == 0) batch.max_document_tokens = batch.nano_batch_tokens;
  if (batch.max_document_tokens > batch.nano_batch_tokens) {
    throw Error(ErrorKind::kConfig,
                "batch.max_document_tokens = {} is more than batch.nano_batch_tokens = {}",
                batch.max_document_tokens, batch.nano_batch_tokens);
  }
  if (config.data.validation_fraction >= 1) {
    throw Error(ErrorKind::kConfig, "data.validation_fraction = {}: must be below 1",
                config.data.validation_fraction);
  }
  for (const auto& [name, beta] :
       {std::pair("beta1", config.optimizer.beta1), std::pair("beta2", config.optimizer.beta2)}) {
    if (beta >= 1) {
      throw Error(ErrorKind::kConfig, "optimizer.{} = {}: must be below 1", name, beta);
    }
  }
  const double tolerance = config.plan.tolerance;
  if (tolerance < 0 && tolerance != Config::PlanKeys::kOwnTolerance) {
    throw Error(ErrorKind::kConfig,
                "plan.tolerance = {}: must be at least 0, or -1 for the scheduler's own",
                tolerance);
  }
  const bool cuda = config.train.device == "cuda";
  if (cuda != (config.comm.backend == "nccl") && config.comm.backend != "threads") {
    throw Error(ErrorKind::kConfig,
                "comm.backend = {} with train.device = {}: gloo carries host memory (cpu), nccl a "
                "GPU's (cuda), "
                "threads either",
                config.comm.backend, config.train.device);
  }
  if (config.train.output_dir.empty()) {
    throw Error(ErrorKind::kConfig, "train.output_dir is empty: name a folder for the run");
  }
  if (config.plan.profile != "pairs")
    config.attention_profile = profile_by_name(config.plan.profile);
  config.model.dtype = scalar_type(config.model_dtype).value();
  config.model.check();
  if (const std::string fault = kernel_fault(kernel_request(config)); !fault.empty()) {
    throw Error(ErrorKind::kConfig, "attention.kernel = {} {}", config.attention.kernel, fault);
  }
}

}  // namespace

Config load_config(const std::filesystem::path& path, const std::vector<std::string>& overrides) {
  Config config;
  std::vector<ConfigKey> keys = config_keys(config);
  if (!path.empty()) {
    const std::string text = read_file(path, ErrorKind::kConfig);
    try {
      apply_table(toml::parse(text), path.string(), keys);
    } catch (const toml::parse_error& error) {
      throw Error(ErrorKind::kConfig, "{} line {}: {}", path.string(), error.source().begin.line,
                  error.description());
    }
  }
  for (const std::string& override_text : overrides) apply_override(override_text, keys);
  finish(config);
  return config;
}

std::string print_config(Config config) {
  Config defaults;
  defaults.batch.max_document_tokens = defaults.batch.nano_batch_tokens;
  const std::vector<ConfigKey> keys = config_keys(config), default_keys = config_keys(defaults);
  auto show = [](const ConfigKey& key) {
    return std::visit(
        Overloaded{[](int64_t* v) { return fmt::format("{}", *v); },
                   [](double* v) {
                     std::string text = fmt::format("{}", *v);
                     return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
                   },
                   [](bool* v) { return fmt::format("{}", *v); },
                   [](std::string* v) {
                     return (std::ostringstream() << toml::value<std::string>(*v)).str();
                   }},
        key.value);
  };
  std::string text, section;
  for (size_t i = 0; i < keys.size(); ++i) {
    const size_t dot = keys[i].name.find('.');
    if (keys[i].name.substr(0, dot) != section) {
      text += section.empty() ? "" : "\n";
      section = keys[i].name.substr(0, dot);
      text += fmt::format("[{}]\n", section);
    }
    const std::string choices =
        keys[i].choices.empty() ? "" : fmt::format("; one of {}", listed(keys[i]));
    text +=
        fmt::format("{} = {}  # {} [{}; default {}{}]\n", keys[i].name.substr(dot + 1),
                    show(keys[i]), keys[i].reason, keys[i].unit, show(default_keys[i]), choices);
  }
  return text;
}

KernelRequest kernel_request(const LlamaConfig& model, KernelChoice choice, int threads,
                             int cuda_device) {
  return {.choice = choice,
          .shape = model.attention_shape(),
          .type = model.dtype,
          .threads = threads,
          .cuda_device = cuda_device};
}

KernelRequest kernel_request(const Config& config) {
  return kernel_request(config.model, kernel_choice(config.attention.kernel),
                        static_cast<int>(config.train.threads_per_rank),
                        config.train.device == "cuda" ? 0 : -1);
}

PlanRequest plan_request(const Config& config, const NanoBatch& nano_batch, int num_workers) {
  const LlamaConfig& model = config.model;
  PlanRequest request;
  request.nano_batch = nano_batch;
  request.cluster = Cluster::in_place(num_workers);
  request.cluster.max_tokens_per_worker = config.plan.max_tokens_per_worker;
  request.shape = {.num_heads = model.num_attention_heads,
                   .num_kv_heads = model.num_key_value_heads,
                   .head_dim_qk = model.head_dim,
                   .head_dim_v = model.head_dim,
                   .element_bytes = element_bytes(model.dtype),
                   .window_left = model.sliding_window > 0 ? model.sliding_window - 1 : -1};
  request.options = {.scheduler = config.plan.scheduler,
                     .layout = config.plan.layout,
                     .tolerance_ppm = config.plan.tolerance < 0
                                          ? PlanOptions::kOwnTolerance
                                          : std::llround(config.plan.tolerance * 1e6),
                     .key_sub_ranges = config.plan.key_sub_ranges,
                     .spread = config.plan.spread};
  request.profile = config.attention_profile;
  return request;
}

}  // namespace distca
