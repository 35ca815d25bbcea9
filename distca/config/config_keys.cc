// The table of configuration keys: to add one, a field of Config and a row here, which says its
// unit and reason, and what --resume makes of a change.

#include <algorithm>
#include <array>
#include <utility>

#include "distca/base/scalar_type.h"
#include "distca/config/config.h"
#include "distca/plan/scheduler.h"
#include "distca/program/overlap.h"

namespace distca {

namespace {
constexpr double kAnySeed = 0x1p62;

/// The reason of a key, and what each of its words stands for.
template <typename Entries>
std::string with_summaries(std::string reason, const Entries& table) {
  for (const auto& entry : table) reason += fmt::format("; {} = {}", entry.name, entry.summary);
  return reason;
}

/// A key that names an entry of a table, or one of `others`.
template <typename Entries>
ConfigKey name(std::string key, std::string* value, OnResume on_resume, std::string reason,
               std::vector<std::string> others, const Entries& table) {
  for (const auto& entry : table) others.emplace_back(entry.name);
  return {.name = std::move(key),
          .value = value,
          .on_resume = on_resume,
          .reason = with_summaries(std::move(reason), table),
          .choices = std::move(others)};
}

template <typename T>
struct Word {
  std::string_view word;
  T value;
};

Word<ScalarType> word(ScalarType type) { return {long_name(type), type}; }

const std::vector<Word<Config::Comm::Backend>> kBackends = {
    {"gloo", Config::Comm::Backend::kGloo},
    {"threads", Config::Comm::Backend::kThreads},
    {"nccl", Config::Comm::Backend::kNccl}};

/// A key whose words choose among values.
template <typename T>
ConfigKey choice(std::string name, T* value, OnResume on_resume, std::string reason,
                 std::vector<Word<T>> words) {
  ConfigKey key{.name = std::move(name), .on_resume = on_resume, .reason = std::move(reason)};
  for (const Word<T>& one : words) key.choices.emplace_back(one.word);
  key.value = WordValue{
      .word = [value, words] { return std::ranges::find(words, *value, &Word<T>::value)->word; },
      .choose =
          [value, words](std::string_view word) {
            *value = std::ranges::find(words, word, &Word<T>::word)->value;
          }};
  return key;
}

/// A number of [model], with the bounds that it has in a config.json, too.
template <typename T>
ConfigKey number(std::string name, T* value, std::string unit, std::string reason) {
  const auto& bounds = *std::ranges::find(LlamaConfig::numbers(), name.substr(name.find('.') + 1),
                                          &LlamaConfig::Number::key);
  return {.name = std::move(name),
          .value = value,
          .unit = std::move(unit),
          .reason = std::move(reason),
          .minimum = bounds.least,
          .maximum = bounds.most};
}

ConfigKey may_differ(ConfigKey key) {
  key.may_differ = true;
  return key;
}

/// The words of a table of names.
template <typename T, typename Entry, size_t N>
std::vector<Word<T>> words_of(const std::array<Entry, N>& table, T Entry::*value) {
  std::vector<Word<T>> words;
  for (const Entry& entry : table) words.push_back({entry.name, entry.*value});
  return words;
}

}  // namespace

std::string_view backend_name(Config::Comm::Backend backend) {
  return std::ranges::find(kBackends, backend, &Word<Config::Comm::Backend>::value)->word;
}

std::vector<ConfigKey> config_keys(Config& c) {
  LlamaConfig& m = c.model;
  Config::Optimizer& o = c.optimizer;
  using enum OnResume;
  return {
      {"data.prefix", &c.data.prefix, kFree, "path",
       "PREFIX.bin and PREFIX.idx, made by `distca data prepare`; several as \"0.7 a 0.3 b\""},
      {"data.validation_fraction", &c.data.validation_fraction, kFixed, "share of tokens",
       "whole documents for validation, chosen by batch.seed, never trained on", 0},
      {"data.bad_tokens", &c.data.bad_tokens, kTrain, "",
       "what becomes of a token that the model has no id for: refuse = the run saves and ends, "
       "skip_target = it is no target, and id 0 is embedded in its place, or \"ID\" = it is that "
       "id"},
      {"batch.nano_batch_tokens", &c.batch.nano_batch_tokens, kFixed, "tokens over all workers",
       "documents that pass a layer together; batches never depend on the number of workers", 1},
      {"batch.nano_batches", &c.batch.nano_batches, kFixed, "nano-batches", "per optimizer step",
       1},
      {"batch.max_document_tokens", &c.batch.max_document_tokens, kFixed, "tokens",
       "longer documents are split into pieces, none is dropped; 0: nano_batch_tokens", 0},
      {"batch.seed", reinterpret_cast<int64_t*>(&c.batch.seed), kFixed, "",
       "order of documents and the choice of validation documents", 0, kAnySeed},
      {"model.from", &c.model_from, kFree, "path",
       "a folder of Hugging Face with weights to start from; its config.json decides the keys of "
       "[model] but dtype, and those that are given must agree; \"\": random weights"},
      choice<ModelType>("model.model_type", &m.model_type, kFixed,
                        "llama, which is Mistral with a sliding_window; qwen2 = with a bias of Q, "
                        "K and V; qwen3 = with a norm of each head's Q and K",
                        {{"llama", ModelType::kLlama},
                         {"qwen2", ModelType::kQwen2},
                         {"qwen3", ModelType::kQwen3}}),
      number("model.vocab_size", &m.vocab_size, "tokens", "256 for the byte tokenizer"),
      number("model.hidden_size", &m.hidden_size, "features", "width of the residual stream"),
      number("model.intermediate_size", &m.intermediate_size, "features",
             "width of the SwiGLU MLP"),
      number("model.num_hidden_layers", &m.num_hidden_layers, "layers", "depth"),
      number("model.num_attention_heads", &m.num_attention_heads, "heads", "query heads"),
      number("model.num_key_value_heads", &m.num_key_value_heads, "heads",
             "key and value heads; fewer than query heads = GQA, fewer bytes to exchange"),
      number("model.head_dim", &m.head_dim, "features", "a multiple of 8"),
      number("model.rope_theta", &m.rope_theta, "", "base of the rotary position embedding"),
      {"model.rope_parameters", &m.rope_parameters, kFixed, "JSON",
       "how RoPE is stretched, as in config.json but without rope_theta: {\"rope_type\": "
       "\"linear\", \"factor\": 2}; linear, llama3 or yarn; \"\": not at all"},
      number("model.rms_norm_eps", &m.rms_norm_eps, "", "keeps the norm of a zero row finite"),
      number("model.initializer_range", &m.initializer_range, "standard deviation",
             "of the initial weights"),
      {"model.tie_word_embeddings", &m.tie_word_embeddings, kFixed, "",
       "the head shares the embedding's weights"},
      number("model.sliding_window", &m.sliding_window, "tokens",
             "keys each query sees, itself included; 0: all"),
      {"model.layer_types", &m.layer_types, kFixed, "",
       "full_attention (all keys) or sliding_attention (sliding_window) for each layer; empty: all "
       "have sliding_window"},
      number("model.max_position_embeddings", &m.max_position_embeddings, "tokens",
             "written to config.json where it is more than batch.max_document_tokens; limits "
             "nothing"),
      choice<ScalarType>(
          "model.dtype", &m.dtype, kFixed,
          "of activations and matrix products; main params stay float32",
          {word(ScalarType::kFloat32), word(ScalarType::kBFloat16), word(ScalarType::kFloat64)}),
      name("plan.layout", &c.plan.layout, kBits,
           "which token ranges live on which worker; \"\": the scheduler's own choice", {""},
           layouts()),
      name("plan.scheduler", &c.plan.scheduler, kBits, "who computes which attention", {},
           schedulers()),
      {"plan.tolerance", &c.plan.tolerance, kBits, "share",
       "how far the busiest server may be above its share; -1: the scheduler's own, half of it in "
       "training steps of a pipeline whose weight gradients may wait; auto: weighed against bytes "
       "that would not hide, down to doing nothing",
       -1, 10},
      {"plan.split_kv", &c.plan.split_kv, kBits, "",
       "tasks may have part of the keys: fewer bytes, but bits that depend on the plan"},
      {"plan.spread", &c.plan.spread, kBits, "",
       "lowest largest send and receive, for some 10 per cent more bytes in all"},
      {"plan.profile", &c.plan.profile, kBits, "",
       "what load is counted in: pairs, or time by a profile: h200, or the file of one"},
      {"plan.max_tokens_per_worker", &c.plan.max_tokens_per_worker, kBits, "tokens",
       "memory cap: a nano-batch that does not fit is refused; 0: none", 0},
      {"plan.max_memory_gib", &c.plan.max_memory_gib, kBits, "GiB",
       "of activations and kept keys of one rank; a batch that does not fit is refused; 0: no cap, "
       "but on CUDA keys are kept only where the devices' memory allows it",
       0},
      {"plan.bandwidth_mb_per_s", &c.plan.bandwidth_mb_per_s, kBits, "MB/s",
       "one rank's sends, for plan.tolerance = auto and fill ticks of a pipeline; 0: measured, but "
       "50,000 where train.deterministic freezes, and fill ticks count messages as nothing",
       0},
      choice(
          "plan.fill_ticks", &c.plan.fill_ticks, kBits,
          with_summaries("how a pipeline's ticks in which a stage has no micro-batch are planned",
                         kFillTicks),
          words_of(kFillTicks, &FillTicksName::fill_ticks)),
      choice(
          "attention.kernel", &c.attention.kernel, kBits,
          "cpu: our own, on CPU, float32 and bfloat16, head_dim up to 256; aten: PyTorch's; fa4: "
          "FlashAttention 4's on Hopper, bfloat16 (distca kernels build); reference: on CPU, "
          "slow, in double; auto: cpu where it can, else aten, or fa4 where plan.profile has "
          "measured it to be faster",
          words_of(kKernelNames, &KernelName::choice)),
      choice<bool>("exchange.grad_dtype", &c.exchange.wide_gradients, kBits,
                   "type in which dQ, dK, dV travel: compute = model.dtype, accumulator = float32",
                   {{"compute", false}, {"accumulator", true}}),
      choice<Config::Exchange::Keys>(
          "exchange.keys", &c.exchange.keys, kBits,
          "Q, K, V for backward: servers keep them, or they are dispatched again; auto: keep where "
          "plan.max_memory_gib allows, without it where a CUDA device's memory does, else keep",
          {{"auto", Config::Exchange::Keys::kAuto},
           {"keep", Config::Exchange::Keys::kKeep},
           {"redispatch", Config::Exchange::Keys::kRedispatch}}),
      {"servers.dedicated", &c.servers.dedicated, kBits, "ranks",
       "further ranks that hold no weights and only compute attention", 0, kMostRanks},
      {"servers.in_place", &c.servers.in_place, kBits, "", "workers compute attention too"},
      {"servers.capacity", &c.servers.capacity, kBits, "",
       "share of the attention of each server, workers first, as [60, 40, 100]; empty: so that all "
       "finish together",
       0, 1e9},
      {"servers.reweight", &c.servers.reweight, kBits, "",
       "capacities follow the measured times of the ranks; needs train.deterministic = false"},
      {"optimizer.lr", &o.lr, kTrain, "", "AdamW's peak learning rate", 0, 1e30},
      choice<Config::Optimizer::Decay>(
          "optimizer.schedule", &o.schedule, kTrain,
          "of the learning rate after the warm-up; wsd: constant, then Megatron-LM's exponential "
          "fall over the last wsd_decay_steps of decay_steps",
          {{"cosine", Config::Optimizer::Decay::kCosine},
           {"linear", Config::Optimizer::Decay::kLinear},
           {"constant", Config::Optimizer::Decay::kConstant},
           {"wsd", Config::Optimizer::Decay::kWsd}}),
      {"optimizer.min_lr_ratio", &o.min_lr_ratio, kTrain, "share of lr",
       "where the learning rate ends, unless it is constant", 0},
      {"optimizer.warmup_steps", &o.warmup_steps, kTrain, "steps", "linear warm-up", 0},
      {"optimizer.decay_steps", &o.decay_steps, kTrain, "steps",
       "when the learning rate has fallen to its end, warm-up included; 0: train.steps", 0},
      {"optimizer.wsd_decay_steps", &o.wsd_decay_steps, kTrain, "steps",
       "of optimizer.schedule = wsd: how long the fall takes", 0},
      {"optimizer.beta1", &o.beta1, kTrain, "", "decay of the gradient's mean", 0},
      {"optimizer.beta2", &o.beta2, kTrain, "", "decay of the gradient's square", 0},
      {"optimizer.eps", &o.eps, kTrain, "",
       "keeps the update finite: rows of tokens that do not occur have 0 / eps", 1e-30},
      {"optimizer.weight_decay", &o.weight_decay, kTrain, "", "of matrices; norms are left alone",
       0, 1e6},
      {"optimizer.max_grad_norm", &o.max_grad_norm, kTrain, "", "clip by global norm; 0: off", 0},
      {"parallel.tensor_model_parallel_size", &c.parallel.tensor_model_parallel_size, kBits,
       "ranks",
       "neighbours that divide the matrices of each layer, and the rows between them; workers are "
       "divided over such groups",
       1, kMostRanks},
      {"parallel.sequence_parallel", &c.parallel.sequence_parallel, kBits, "",
       "such ranks divide norms and the residual stream by rows; only true is served"},
      {"parallel.pipeline_model_parallel_size", &c.parallel.pipeline_model_parallel_size, kBits,
       "stages", "each holds some layers of the model; workers are divided over them", 1,
       kMostRanks},
      {"parallel.pipeline_layers", &c.parallel.pipeline_layers, kBits, "",
       "layers of each stage, as [8, 8, 8, 6]; empty: even work, the head counted", 1},
      choice("parallel.pipeline_schedule", &c.parallel.pipeline_schedule, kBits,
             with_summaries("the order in which stages play micro-batches", kPipelineSchedules),
             words_of(kPipelineSchedules, &PipelineScheduleName::schedule)),
      {"parallel.outstanding_weight_gradients", &c.parallel.outstanding_weight_gradients, kBits,
       "micro-batches",
       "in a pipeline, of how many a stage may leave the gradients by matrices for ticks in which "
       "it "
       "would wait; they take memory; 0: none",
       0, 64},
      {"parallel.use_distributed_optimizer", &c.parallel.use_distributed_optimizer, kFree, "",
       "ZeRO-1: each worker keeps AdamW's moments, and main params that are wider than the model's "
       "type, "
       "of its share of the weights only"},
      {"parallel.overlap_grad_reduce", &c.parallel.overlap_grad_reduce, kFree, "",
       "gradients are summed under backward, not behind it, unless train.overlap is none; the bits "
       "are the same"},
      {"parallel.bucket_mb", &c.parallel.bucket_mb, kFree, "MiB",
       "of gradients that are summed together, as bucket_cap_mb of PyTorch's DDP; 0: 25, or 1 for "
       "each worker if that is more",
       0, 1e6},
      {"train.steps", &c.train.steps, kTrain, "steps", "optimizer steps", 0},
      {"train.exit_duration_in_mins", &c.train.exit_duration_in_mins, kFree, "minutes",
       "the run ends after the last step that leaves time to validate and save, and --resume goes "
       "on; counted from the call of `distca train`, at which a restart does not begin anew, or "
       "from DISTCA_STARTED_AT (Unix seconds); 0: no limit",
       0},
      choice("train.overlap", &c.train.overlap, kBits,
             with_summaries("order of a step's operations: what exchanges run under", kOverlaps),
             words_of(kOverlaps, &OverlapName::overlap)),
      {"train.seed", &c.train.seed, kFixed, "", "initial weights", 0, kAnySeed},
      {"train.validation_every", &c.train.validation_every, kFree, "steps",
       "validation loss; 0: only at the end", 0},
      {"train.validation_nano_batches", &c.train.validation_nano_batches, kFree, "nano-batches",
       "the same ones each time", 1},
      may_differ({"train.threads_per_rank", &c.train.threads_per_rank, kBits, "threads",
                  "compute threads; bits are promised for equal counts", 1, 1024}),
      choice<Recompute>("train.recompute", &c.train.recompute, kBits,
                        "what backward computes again instead of keeping it: selective = norms' "
                        "rows and the product in the MLP, full = all but core attention",
                        {{"none", Recompute::kNone},
                         {"selective", Recompute::kSelective},
                         {"full", Recompute::kFull}}),
      {"train.loss_chunk_tokens", &c.train.loss_chunk_tokens, kBits, "tokens",
       "whose logits a worker has at a time; 0: as many as take 128 MiB in float32, 512 MiB on "
       "cuda, but at least 512 tokens",
       0},
      choice<Config::Train::Device>(
          "train.device", &c.train.device, kBits,
          "cuda: a GPU for each rank with comm.backend=nccl, one for all with threads",
          {{"cpu", Config::Train::Device::kCpu}, {"cuda", Config::Train::Device::kCuda}}),
      {"train.deterministic", &c.train.deterministic, kBits, "",
       "the same run gives the same bits; how much longer that takes on cuda is in a run's first "
       "lines; true also freezes what plans measure (servers.reweight, plan.tolerance = auto)"},
      choice<Config::Train::BadStep>(
          "train.bad_step", &c.train.bad_step, kTrain,
          "a step whose loss or gradient norm is not finite or spikes never reaches the weights: "
          "stop = save and end, skip = go on with the next batch",
          {{"stop", Config::Train::BadStep::kStop}, {"skip", Config::Train::BadStep::kSkip}}),
      {"train.spike_factor", &c.train.spike_factor, kTrain,
       "times the median of the last 100 steps", "above it, a loss or gradient norm spikes; 0: off",
       0},
      {"train.max_skipped_steps", &c.train.max_skipped_steps, kFree, "steps",
       "in a row that train.bad_step = skip leaves out before the run ends", 0},
      may_differ({"train.output_dir", &c.train.output_dir, kFree, "path",
                  "metrics.jsonl, config.toml, model.safetensors, config.json, checkpoints"}),
      may_differ({"train.overwrite", &c.train.overwrite, kFree, "",
                  "replace a run's weights and checkpoints that output_dir holds, once new ones "
                  "are whole; "
                  "never recorded"}),
      {"train.trace", &c.train.trace, kFree, "path",
       "--trace: where each rank's time of some steps goes, for Perfetto and `distca trace`; "
       "\"\": none"},
      {"train.trace_first_step", &c.train.trace_first_step, kFree, "steps",
       "the first to be traced: step 1 is still warming up", 1},
      {"train.trace_steps", &c.train.trace_steps, kFree, "steps", "how many are traced", 1},
      {"checkpoint.every_steps", &c.checkpoint.every_steps, kFree, "steps",
       "save weights and AdamW's state, to resume from; 0: only when a signal or a bad step stops "
       "the run",
       0},
      {"checkpoint.keep_last", &c.checkpoint.keep_last, kFree, "checkpoints",
       "older ones are removed; 0: all stay", 0},
      {"checkpoint.keep_every", &c.checkpoint.keep_every, kFree, "steps",
       "those of its multiples stay for ever; 0: none", 0},
      {"checkpoint.async", &c.checkpoint.async, kFree, "",
       "write a copy while training goes on; false: training waits, and there is no copy"},
      {"checkpoint.grace_s", &c.checkpoint.grace_s, kFree, "seconds",
       "after a signal: for the step and the save to end; a save may take no longer", 0.1},
      {"cluster.ranks_per_node", &c.cluster.ranks_per_node, kBits, "ranks",
       "neighbouring ranks that share a machine, for which messages between them are cheap; 0: "
       "each has its own",
       0, kMostRanks},
      choice("comm.backend", &c.comm.backend, kFree,
             "gloo: processes; threads: ranks in one process, on a CPU or one GPU; nccl: processes "
             "with a GPU each",
             kBackends),
      {"comm.timeout_s", &c.comm.timeout_s, kFree, "seconds",
       "a wait longer than this names the rank awaited and ends", 0.1},
      {"comm.startup_timeout_s", &c.comm.startup_timeout_s, kFree, "seconds",
       "ranks that have not all met by then are named", 0.1},
      {"comm.grace_s", &c.comm.grace_s, kFree, "seconds",
       "from the first failure to the end of all ranks", 0.1},
  };
}

}  // namespace distca
