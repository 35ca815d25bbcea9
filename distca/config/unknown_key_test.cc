#include "distca/config/unknown_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace distca {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class UnknownKeyTest : public ::testing::Test {
 protected:
  std::string hint(const std::string& name) { return unknown_key_hint(name, keys_); }
  bool is_key(std::string_view name) const {
    return std::ranges::any_of(keys_, [&](const ConfigKey& key) { return key.name == name; });
  }

  Config config_;
  std::vector<ConfigKey> keys_ = config_keys(config_);
};

TEST_F(UnknownKeyTest, every_foreign_name_is_found_and_leads_to_a_key) {
  EXPECT_TRUE(std::ranges::is_sorted(foreign_names(), {}, &ForeignName::name));
  for (const ForeignName& foreign : foreign_names()) {
    EXPECT_TRUE(is_key(foreign.key)) << foreign.key;
    const std::string name(foreign.name);
    for (const ConfigKey& key : keys_) {
      EXPECT_FALSE(key.name == name || key.name.ends_with("." + name))
          << name << " is a word of ours, which is found without the table";
    }
    const bool has_section = name.find('.') != std::string::npos;
    EXPECT_THAT(hint(has_section ? name : "train." + name),
                HasSubstr(fmt::format("; did you mean {}", foreign.key)));
  }
}

TEST_F(UnknownKeyTest, what_people_type_finds_its_key_in_any_section_and_spelling) {
  for (const auto& [typed, key] : std::initializer_list<std::pair<const char*, const char*>>{
           {"optimizer.learning_rate", "optimizer.lr"},
           {"learning_rate", "optimizer.lr"},
           {"train.lr", "optimizer.lr"},
           {"--lr-warmup-iters", "optimizer.warmup_steps"},
           {"lr_scheduler.warmup_steps", "optimizer.warmup_steps"},
           {"model.num_layers", "model.num_hidden_layers"},
           {"num_hidden_layers", "model.num_hidden_layers"},
           {"train.num_query_groups", "model.num_key_value_heads"},
           {"optimizer.clip_grad", "optimizer.max_grad_norm"},
           {"train.weight_decay", "optimizer.weight_decay"},
           {"model.rotary_base", "model.rope_theta"},
           {"train.save_interval", "checkpoint.every_steps"},
           {"train.max_steps", "train.steps"},
           {"training.steps", "train.steps"},
           {"checkpoint.interval", "checkpoint.every_steps"}}) {
    EXPECT_EQ(hint(typed), fmt::format("; did you mean {}?", key)) << typed;
  }
  EXPECT_EQ(hint("train.min_lr"),
            "; did you mean optimizer.min_lr_ratio (a share of optimizer.lr)?");
  EXPECT_EQ(hint("batch.global_batch_size"),
            "; did you mean batch.nano_batch_tokens (tokens over all workers; a step has "
            "batch.nano_batches times as many)?");
  EXPECT_THAT(hint("model.seq_length"), HasSubstr("; did you mean batch.max_document_tokens ("));
}

TEST_F(UnknownKeyTest, nothing_far_fetched_is_suggested) {
  for (const char* typed :
       {"model.dropout", "train.compile", "train.stage", "train.log_interval", "optimizer.eta",
        "optimizer.momentum", "model.window", "model.seq_lenth", "train.interval", "plan.folder",
        "expert_model_parallel_size", "context_parallel_size", "nonsense", "a.b.c", ""}) {
    EXPECT_EQ(hint(typed), " (see distca train --print-config)") << typed;
  }
  for (const char* typed : {"train.resume", "train.load", "train.save_every", "checkpoint.dir"})
    EXPECT_THAT(hint(typed), EndsWith("and checkpoint.every_steps says how often it saves"));
}

TEST_F(UnknownKeyTest, two_letters_may_be_wrong_and_of_short_words_one) {
  EXPECT_EQ(hint("train.stepz"), "; did you mean train.steps?");
  EXPECT_EQ(hint("train.overwirte"), "; did you mean train.overwrite?");
  EXPECT_EQ(hint("optimiser.lr"), "; did you mean optimizer.lr?");
  EXPECT_THAT(hint("train.stapz"), Not(HasSubstr("did you mean")));
}

}  // namespace
}  // namespace distca
