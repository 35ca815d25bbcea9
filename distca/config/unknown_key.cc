#include "distca/config/unknown_key.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>

#include "distca/base/text.h"

namespace distca {
namespace {

constexpr std::string_view kTokens =
    "tokens over all workers; a step has batch.nano_batches times as many";
constexpr std::string_view kLongest =
    "the longest document; batch.nano_batch_tokens says how many tokens pass a layer together";
constexpr std::string_view kShare = "a share of optimizer.lr";
constexpr std::string_view kNanoBatches = "validation nano-batches";
constexpr std::string_view kWords = "float32, bfloat16 or float64";
constexpr std::string_view kTied = "the opposite of it";

// In the order of the names, for the binary search and for who reads it.
constexpr std::array kForeignNames = {
    ForeignName{"accumulate_grad_batches", "batch.nano_batches", "per optimizer step"},
    ForeignName{"activation_checkpoint.mode", "train.recompute"},
    ForeignName{"activations_checkpoint_method", "train.recompute"},
    ForeignName{"adam_beta1", "optimizer.beta1"},
    ForeignName{"adam_beta2", "optimizer.beta2"},
    ForeignName{"adam_eps", "optimizer.eps"},
    ForeignName{"adam_epsilon", "optimizer.eps"},
    ForeignName{"async_mode", "checkpoint.async"},
    ForeignName{"async_save", "checkpoint.async"},
    ForeignName{"attention_backend", "attention.kernel"},
    ForeignName{"attn_implementation", "attention.kernel"},
    ForeignName{"bf16", "model.dtype", kWords},
    ForeignName{"block_size", "batch.max_document_tokens", kLongest},
    ForeignName{"bucket_cap_mb", "parallel.bucket_mb"},
    ForeignName{"checkpoint.folder", "train.output_dir"},
    ForeignName{"checkpoint.interval", "checkpoint.every_steps"},
    ForeignName{"checkpoint_interval", "checkpoint.every_steps"},
    ForeignName{"clip_grad", "optimizer.max_grad_norm"},
    ForeignName{"clip_grad_norm", "optimizer.max_grad_norm"},
    ForeignName{"context_length", "batch.max_document_tokens", kLongest},
    ForeignName{"data_path", "data.prefix"},
    ForeignName{"data_seed", "batch.seed"},
    ForeignName{"dataset_path", "data.prefix"},
    ForeignName{"ddp_bucket_cap_mb", "parallel.bucket_mb"},
    ForeignName{"ddp_timeout", "comm.timeout_s"},
    ForeignName{"decay_type", "optimizer.schedule"},
    ForeignName{"distributed_timeout_minutes", "comm.timeout_s", "seconds"},
    ForeignName{"dump_folder", "train.output_dir"},
    ForeignName{"eval_interval", "train.validation_every"},
    ForeignName{"eval_iters", "train.validation_nano_batches", kNanoBatches},
    ForeignName{"eval_steps", "train.validation_every"},
    ForeignName{"ffn_hidden_size", "model.intermediate_size"},
    ForeignName{"fp16", "model.dtype", kWords},
    ForeignName{"global_batch_size", "batch.nano_batch_tokens", kTokens},
    ForeignName{"gradient_accumulation_steps", "batch.nano_batches", "per optimizer step"},
    ForeignName{"gradient_checkpointing", "train.recompute", "none, selective or full"},
    ForeignName{"gradient_clip_val", "optimizer.max_grad_norm"},
    ForeignName{"init_method_std", "model.initializer_range"},
    ForeignName{"init_timeout_seconds", "comm.startup_timeout_s"},
    ForeignName{"keep_latest_k", "checkpoint.keep_last"},
    ForeignName{"kv_channels", "model.head_dim"},
    ForeignName{"learning_rate", "optimizer.lr"},
    ForeignName{"local_batch_size", "batch.nano_batch_tokens", kTokens},
    ForeignName{"lr_decay_iters", "optimizer.decay_steps"},
    ForeignName{"lr_decay_steps", "optimizer.decay_steps"},
    ForeignName{"lr_decay_style", "optimizer.schedule"},
    ForeignName{"lr_scheduler_type", "optimizer.schedule"},
    ForeignName{"lr_warmup_iters", "optimizer.warmup_steps"},
    ForeignName{"lr_warmup_steps", "optimizer.warmup_steps"},
    ForeignName{"lr_wsd_decay_iters", "optimizer.wsd_decay_steps"},
    ForeignName{"max_iters", "train.steps"},
    ForeignName{"max_norm", "optimizer.max_grad_norm"},
    ForeignName{"max_seq_len", "batch.max_document_tokens", kLongest},
    ForeignName{"max_seq_length", "batch.max_document_tokens", kLongest},
    ForeignName{"max_steps", "train.steps"},
    ForeignName{"micro_batch_size", "batch.nano_batch_tokens", kTokens},
    ForeignName{"min_lr", "optimizer.min_lr_ratio", kShare},
    ForeignName{"min_lr_factor", "optimizer.min_lr_ratio", kShare},
    ForeignName{"min_lr_rate", "optimizer.min_lr_ratio", kShare},
    ForeignName{"mixed_precision_param", "model.dtype", kWords},
    ForeignName{"model.dim", "model.hidden_size"},
    ForeignName{"model_max_length", "batch.max_document_tokens", kLongest},
    ForeignName{"n_heads", "model.num_attention_heads"},
    ForeignName{"n_kv_heads", "model.num_key_value_heads"},
    ForeignName{"n_layers", "model.num_hidden_layers"},
    ForeignName{"norm_eps", "model.rms_norm_eps"},
    ForeignName{"norm_epsilon", "model.rms_norm_eps"},
    ForeignName{"num_heads", "model.num_attention_heads"},
    ForeignName{"num_kv_heads", "model.num_key_value_heads"},
    ForeignName{"num_layers", "model.num_hidden_layers"},
    ForeignName{"num_query_groups", "model.num_key_value_heads"},
    ForeignName{"num_train_steps", "train.steps"},
    ForeignName{"overwrite_output_dir", "train.overwrite"},
    ForeignName{"padded_vocab_size", "model.vocab_size"},
    ForeignName{"params_dtype", "model.dtype", kWords},
    ForeignName{"per_device_train_batch_size", "batch.nano_batch_tokens", kTokens},
    ForeignName{"pipeline_parallel_degree", "parallel.pipeline_model_parallel_size"},
    ForeignName{"pipeline_parallel_schedule", "parallel.pipeline_schedule"},
    ForeignName{"pp_size", "parallel.pipeline_model_parallel_size"},
    ForeignName{"recompute_granularity", "train.recompute"},
    ForeignName{"rope_base", "model.rope_theta"},
    ForeignName{"rotary_base", "model.rope_theta"},
    ForeignName{"save_interval", "checkpoint.every_steps"},
    ForeignName{"save_steps", "checkpoint.every_steps"},
    ForeignName{"save_total_limit", "checkpoint.keep_last"},
    ForeignName{"seq_len", "batch.max_document_tokens", kLongest},
    ForeignName{"seq_length", "batch.max_document_tokens", kLongest},
    ForeignName{"sequence_length", "batch.max_document_tokens", kLongest},
    ForeignName{"tensor_parallel", "parallel.tensor_model_parallel_size"},
    ForeignName{"tensor_parallel_degree", "parallel.tensor_model_parallel_size"},
    ForeignName{"tensor_parallel_size", "parallel.tensor_model_parallel_size"},
    ForeignName{"torch_dtype", "model.dtype", kWords},
    ForeignName{"tp_size", "parallel.tensor_model_parallel_size"},
    ForeignName{"train_iters", "train.steps"},
    ForeignName{"train_timeout_seconds", "comm.timeout_s"},
    ForeignName{"untie_embeddings_and_output_weights", "model.tie_word_embeddings", kTied},
    ForeignName{"val_check_interval", "train.validation_every"},
    ForeignName{"validation.freq", "train.validation_every"},
    ForeignName{"validation.steps", "train.validation_nano_batches", kNanoBatches},
    ForeignName{"vocabulary_size", "model.vocab_size"},
    ForeignName{"warmup_iters", "optimizer.warmup_steps"},
    ForeignName{"window_size", "model.sliding_window"},
};

/// Section and word of "section.word"; the section is "" where there is none.
std::pair<std::string, std::string> parts(const std::string& text) {
  const size_t dot = text.find('.');
  return dot == std::string::npos ? std::pair(std::string(), text)
                                  : std::pair(text.substr(0, dot), text.substr(dot + 1));
}

/// Gives a name that was typed like an option a key's spelling: --clip-grad becomes clip_grad.
std::string plain(const std::string& name) {
  std::string text = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  for (char& c : text) c = c == '-' ? '_' : static_cast<char>(std::tolower(c));
  return text;
}

const ForeignName* foreign_name(const std::string& name) {
  const std::string whole = plain(name), word = parts(whole).second;
  for (const std::string& text : {whole, word}) {
    const auto* const found = std::ranges::lower_bound(kForeignNames, text, {}, &ForeignName::name);
    if (found != kForeignNames.end() && found->name == text) return found;
  }
  return nullptr;
}

/// The key with the same word in another section, or the nearest of this section. Of a section that
/// does not exist, the nearest of all keys.
std::optional<std::string> meant_key(const std::string& name, const std::vector<ConfigKey>& keys) {
  const auto [section, word] = parts(plain(name));
  std::vector<std::string> beside, all;
  for (const ConfigKey& key : keys) {
    const auto [its_section, its_word] = parts(key.name);
    if (its_section == section) beside.push_back(its_word);
    if (its_word == word) return key.name;
    all.push_back(key.name);
  }
  if (beside.empty()) return nearest_word(name, all);
  const auto nearest = nearest_word(word, beside);
  return nearest ? std::optional(section + "." + *nearest) : std::nullopt;
}

bool asks_for_checkpoint(const std::string& name) {
  const std::string word = parts(name).second;
  return std::ranges::any_of(std::array{"resume", "load", "save", "checkpoint"},
                             [&](const char* begin) { return word.starts_with(begin); }) ||
         name.starts_with("checkpoint");
}

}  // namespace

std::span<const ForeignName> foreign_names() { return kForeignNames; }

std::string unknown_key_hint(const std::string& name, const std::vector<ConfigKey>& keys) {
  if (const ForeignName* foreign = foreign_name(name)) {
    const std::string note = foreign->note.empty() ? "" : fmt::format(" ({})", foreign->note);
    return fmt::format("; did you mean {}{}?", foreign->key, note);
  }
  if (const auto meant = meant_key(name, keys)) return fmt::format("; did you mean {}?", *meant);
  return asks_for_checkpoint(name)
             ? ": a run goes on with --resume, and checkpoint.every_steps says how often it saves"
             : " (see distca train --print-config)";
}

}  // namespace distca
