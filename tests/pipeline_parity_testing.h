#pragma once
// A small Llama's step in a pipeline, played by ranks as threads, with an update of the weights.

#include <cstdint>
#include <string>
#include <vector>

#include "distca/model/llama.h"
#include "distca/program/pipeline_testing.h"
#include "distca/train/step.h"
#include "tests/parity_testing.h"

namespace distca::parity {

/// What to run.
struct PipelineRun {
  LlamaConfig model;
  std::vector<int64_t> layers = {2};               // [stage] how many; together the model's
  std::vector<std::vector<int64_t>> nano_batches;  // tokens of each document
  int replicas = 1, dedicated = 0;
  testing::Order order = testing::Order::kAligned;
  StepOptions options = {};
  bool evaluate = false;  // forward and loss only

  int stages() const { return static_cast<int>(layers.size()); }
  int workers() const { return stages() * replicas; }
  int ranks() const { return workers() + dedicated; }
};

/// Tensors are in the order of the whole model's weights, whatever the stages.
struct PipelineOutcome {
  Outcome step;                     // its gradients are clipped; none with ZeRO-1 or evaluated
  double norm = 0;                  // of all gradients
  std::vector<at::Tensor> weights;  // after an update; none: evaluated
};

/// Plays it, after the validators have seen the programs. One worker alone plays a program without
/// a pipeline. Replicas that differ in loss, norm or weights are test failures.
PipelineOutcome run(const PipelineRun& what);

}  // namespace distca::parity
