#pragma once
// A small Llama's step in a pipeline, played by ranks as threads, with an update of the weights.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "distca/model/llama.h"
#include "distca/plan/pipeline/ticks.h"
#include "distca/plan/plan.h"
#include "distca/program/pipeline_testing.h"
#include "distca/program/program.h"
#include "distca/train/step.h"
#include "tests/parity_testing.h"

namespace distca::parity {

/// A step of a pipeline to run.
struct PipelineRun {
  LlamaConfig model;
  std::vector<int64_t> layers = {2};               // [stage] how many; together the model's
  std::vector<std::vector<int64_t>> nano_batches;  // tokens of each document
  int replicas = 1, dedicated = 0;                 // servers
  int tensor = 1;                                  // ranks of each server
  testing::Order order = testing::Order::kAligned;
  PlanOptions plan = {};  // options of the homes' layouts and of the pools of all ticks
  StepOptions options = {};
  int outstanding = 0;    // micro-batches whose weight gradients may wait
  bool evaluate = false;  // forward and loss only
  /// The file for a trace. If it is set, three steps are played instead of one, and the last two
  /// are traced.
  std::filesystem::path trace;

  int stages() const { return static_cast<int>(layers.size()); }
  int workers() const { return stages() * replicas * tensor; }
  int ranks() const { return workers() + dedicated * tensor; }
  Grid grid() const { return {.stages = stages(), .replicas = replicas, .dedicated = dedicated}; }
};

/// Tensors are in the order of the whole model's weights, whatever the stages.
struct PipelineOutcome {
  /// Its gradients are clipped. ZeRO-1 and an evaluation give none.
  Outcome step;
  double norm = 0;                    // norm of all gradients
  std::vector<at::Tensor> weights;    // weights after an update. An evaluation gives none.
  std::vector<int64_t> bytes_tensor;  // [rank] sent to the other ranks of its server
  std::vector<int64_t> peak_bytes;    // [rank] most bytes of tensors in the step (memory_meter.h)
};

/// [rank] The program that it plays. One worker alone plays a program without a pipeline.
std::vector<Program> programs_of(const PipelineRun& what);

/// Plays it, after the validators have seen the programs. Replicas that differ in loss, norm or
/// weights are test failures, and so are stages that differ in a tied embedding.
PipelineOutcome run(const PipelineRun& what);

}  // namespace distca::parity
