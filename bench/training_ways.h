#pragma once
// The participants of bench/training, and the ways in which each may play a step. Needs no PyTorch.
// Plain values; any thread may call the functions.

#include <cstdint>
#include <string>
#include <vector>

#include "bench/step_plans.h"
#include "bench/training_source.h"
#include "distca/cost/speeds.h"
#include "distca/model/llama_config.h"

namespace distca::bench {

struct ContestOptions {
  LlamaConfig model;
  BatchShape shape;
  uint64_t seed = 1;  // seed of batches and weights
  int rounds = 15;
};

/// The most tokens that any arm lets a worker hold at a time, over the mean.
constexpr double kMemoryCap = 1.5;

/// A participant, with the ways it may play a step, of which the fastest counts.
struct Contestant {
  std::string name;
  std::vector<StepArm> ways;
  bool equal_documents = false;  // instead of the source's
};
/// Ours, ours again (without ways: its way is the one chosen for ours), ours on equal documents,
/// and the rivals but DDP.
std::vector<Contestant> contestants(const ContestOptions& options, const Speeds& speeds);

/// Rounds in which a participant's ways are compared; round r plays batch r + 1 of a source.
inline constexpr int kChoiceRounds = 2;
/// Batches that a source must have.
int num_batches(int rounds);

/// The model and batches of bench/training: small, so that a step takes a second or two; core
/// attention is a third to a half of it.
ContestOptions small_contest();

}  // namespace distca::bench
