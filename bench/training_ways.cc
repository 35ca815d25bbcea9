#include "bench/training_ways.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace distca::bench {
namespace {

constexpr int64_t kFixedTolerancePpm = 20'000;

std::string how(const StepArm& arm) {
  std::string text(std::ranges::find(kOverlaps, arm.step.overlap, &OverlapName::overlap)->name);
  if (arm.one_nano_batch) text += ", one nano-batch";
  if (arm.weighed) text += ", tolerance auto";
  if (const std::optional<int64_t> ppm = arm.plan.tolerance_ppm)
    text += fmt::format(", tolerance {:g}", 1e-6 * static_cast<double>(*ppm));
  return text;
}

/// The arm under each of these overlap modes.
std::vector<StepArm> under(const std::vector<Overlap>& overlaps, const StepArm& arm) {
  std::vector<StepArm> ways;
  for (const Overlap overlap : overlaps) {
    StepArm& way = ways.emplace_back(arm);
    way.step.overlap = overlap;
    way.name = how(way);
  }
  return ways;
}

const std::vector<Overlap> kEveryOverlap = {Overlap::kNone, Overlap::kWithin, Overlap::kPingPong};
/// Where nothing is exchanged, `within` is `none`.
const std::vector<Overlap> kWithoutExchange = {Overlap::kNone, Overlap::kPingPong};

/// Balanced plans, their tolerance fixed and chosen.
std::vector<StepArm> our_ways(const ContestOptions& options, const Speeds& speeds,
                              StepArm balanced) {
  balanced.plan.scheduler = "balanced";
  std::vector<StepArm> ways;
  for (const Overlap overlap : kEveryOverlap) {
    balanced.step.overlap = overlap;
    StepArm& fixed = ways.emplace_back(balanced);
    fixed.plan.tolerance_ppm = kFixedTolerancePpm;
    fixed.name = how(fixed);
    StepArm& weighed = ways.emplace_back(balanced);
    weighed.weighed = LayerTimeOptions{.speeds = speeds,
                                       .overlap_model = overlap_model_of(overlap),
                                       .layers = options.model.num_hidden_layers};
    weighed.name = how(weighed);
  }
  return ways;
}

}  // namespace

std::vector<Contestant> contestants(const ContestOptions& options, const Speeds& speeds) {
  const int64_t cap = std::llround(
      kMemoryCap * static_cast<double>(options.shape.nano_batch_tokens) / options.shape.workers);
  const auto by = [&](const char* scheduler) {
    return StepArm{.plan = {.scheduler = scheduler}, .max_tokens_per_worker = cap};
  };
  const std::vector<StepArm> local = under(kWithoutExchange, by("local"));
  // Packing may place documents over the whole batch. Ping-pong holds two nano-batches at a time:
  // so may it.
  std::vector<StepArm> wlb = under(kWithoutExchange, by("wlb"));
  StepArm whole_batch = by("wlb");
  whole_batch.one_nano_batch = true;
  whole_batch.max_tokens_per_worker = cap * options.shape.nano_batches;
  wlb.push_back(under({Overlap::kNone}, whole_batch)[0]);
  return {{"balanced (ours)", our_ways(options, speeds, by("balanced"))},
          {"ours again", {}},  // its way is the one chosen for ours
          {"local, equal documents", local, /*equal_documents=*/true},
          {"local", local},
          {"wlb", wlb},
          {"per-document-cp", under(kEveryOverlap, by("per-document-cp"))},
          {"greedy", under(kEveryOverlap, by("greedy"))}};
}

int num_batches(int rounds) { return rounds + kChoiceRounds + 2; }

ContestOptions small_contest() {
  return {.model = {.vocab_size = 256,
                    .hidden_size = 192,
                    .intermediate_size = 512,
                    .num_hidden_layers = 2,
                    .num_attention_heads = 6,
                    .num_key_value_heads = 2,
                    .head_dim = 64},
          .shape = {.nano_batch_tokens = 8192, .nano_batches = 2, .workers = 2}};
}

}  // namespace distca::bench
