// Sums of gradients on every grid: who holds a part of a weight sums it, and nobody else.

#include "distca/forecast/step_program.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "distca/config/run_grid.h"

namespace distca {
namespace {

struct GridCase {
  int tensor, stages, replicas;
  int64_t kv_heads;
  bool tied;
  ModelType family = ModelType::kLlama;
};

LlamaConfig model_of(const GridCase& what) {
  return {.vocab_size = 611,
          .hidden_size = 64,
          .intermediate_size = 192,
          .num_hidden_layers = 3,
          .num_attention_heads = 8,
          .num_key_value_heads = what.kv_heads,
          .head_dim = 16,
          .tie_word_embeddings = what.tied,
          .model_type = what.family};
}

RunGrid grid_of(const GridCase& what) {
  RunGrid run{.grid = {.stages = what.stages, .replicas = what.replicas}, .tensor = what.tensor};
  for (int stage = 0; stage < what.stages; ++stage)
    run.layers.push_back({3 * stage / what.stages, 3 * (stage + 1) / what.stages});
  return run;
}

/// A part of a weight that ranks hold: its name, and its begins and ends.
using Part = std::pair<std::string, std::vector<Range>>;
Part part_of(const Weight& weight) { return {weight.name, weight.box}; }

/// The ranks that hold each part, by the weight tables alone.
std::map<Part, std::vector<int>> holders_of(const RunGrid& run, const LlamaConfig& model) {
  std::map<Part, std::vector<int>> holders;
  for (int rank = 0; rank < run.num_workers(); ++rank) {
    for (const Weight& weight : weight_table(model, run.stage_of(rank)))
      holders[part_of(weight)].push_back(rank);
  }
  return holders;
}

void expect_summed_by_holders(const GridCase& what, bool distributed) {
  const RunGrid run = grid_of(what);
  const LlamaConfig model = model_of(what);
  const StepOptions options{.distributed_optimizer = distributed, .bucket_mb = .02};
  const std::map<Part, std::vector<int>> holders = holders_of(run, model);
  std::map<Part, int64_t> owned;  // elements, by all ranks
  for (int rank = 0; rank < run.num_workers(); ++rank) {
    const Stage stage = run.stage_of(rank);
    const auto exchange = gradient_exchange(model, options, stage, rank, what.replicas);
    const std::vector<Weight> weights = weight_table(model, stage);
    const FlatLayout layout = flat_layout(weights);
    for (size_t i = 0; i < weights.size(); ++i) {
      const Range elements{layout.begins[i], layout.begins[i] + weights[i].numel()};
      const Part part = part_of(weights[i]);
      for (const GradientBucket& bucket : exchange->buckets) {
        if (intersect(bucket.elements, elements).empty()) continue;
        ASSERT_EQ(exchange->groups[bucket.group], holders.at(part))
            << "rank " << rank << ", " << weights[i].name;
        owned[part] += std::max<int64_t>(0, intersect(bucket.own, elements).size());
      }
    }
  }
  for (const auto& [part, elements] : owned) {
    int64_t numel = 1;
    for (const Range& side : part.second) numel *= side.size();
    EXPECT_EQ(elements, numel) << part.first << " is added up once";
  }
}

TEST(StepProgram, every_part_of_a_weight_is_summed_by_all_who_hold_it) {
  for (const GridCase& what : {GridCase{1, 1, 3, 2, true},
                               {1, 3, 2, 2, true},
                               {2, 1, 1, 2, false},
                               {2, 1, 2, 1, true},
                               {4, 1, 2, 2, false, ModelType::kQwen2},
                               {8, 1, 1, 2, true, ModelType::kQwen3},
                               {2, 2, 2, 4, true},
                               {4, 2, 1, 1, true, ModelType::kQwen2},
                               {4, 3, 2, 2, true, ModelType::kQwen3},
                               {2, 3, 1, 8, false}}) {
    for (const bool distributed : {false, true}) {
      SCOPED_TRACE(fmt::format("tensor {}, stages {}, replicas {}, kv heads {}", what.tensor,
                               what.stages, what.replicas, what.kv_heads));
      expect_summed_by_holders(what, distributed);
    }
  }
}

}  // namespace
}  // namespace distca
