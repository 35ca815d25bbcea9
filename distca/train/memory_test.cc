#include "distca/forecast/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/json.h"
#include "distca/base/random.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/batch/test_folder.h"
#include "distca/comm/thread_group.h"
#include "distca/forecast/dry_run.h"
#include "distca/forecast/memory_peak.h"
#include "distca/forecast/plan_request.h"
#include "distca/train/trainer.h"

namespace distca {
namespace {

using enum MemoryPart;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string refusal_of(const MemoryParts& parts, LocalRanks local, const MemoryLimit& limit) {
  try {
    check_memory(parts, local, limit);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "";
}

TEST(memory, every_local_worker_has_its_own_weights) {
  Config config;
  const auto parameters = static_cast<double>(config.model.num_parameters());
  const MemoryParts two = memory_needed(config, 4, {.first = 1, .count = 2});
  EXPECT_EQ(two.of(kWeights), 2 * 4 * parameters);
  EXPECT_EQ(two.of(kGradients), two.of(kWeights));
  EXPECT_EQ(two.of(kState), 2 * two.of(kWeights));
  const MemoryParts all = memory_needed(config, 4, {.first = 0, .count = 4});
  EXPECT_EQ(all.of(kActivations), 2 * two.of(kActivations)) << "half of the tokens are there";
  EXPECT_EQ(all.of(kCopies), 0) << "fp32 is the compute type";
  // Rank 3 of 3 workers and 2 dedicated servers holds nothing.
  EXPECT_EQ(memory_needed(config, 3, {.first = 3, .count = 2}).total(), 0);
  EXPECT_EQ(memory_needed(config, 3, {.first = 2, .count = 3}).of(kWeights), 4 * parameters);
}

TEST(memory, what_is_computed_again_is_not_kept) {
  Config config;
  double before = INFINITY;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    config.train.recompute = recompute;
    const double activations = memory_needed(config, 1, {}).of(kActivations);
    EXPECT_LT(activations, before);
    before = activations;
  }
}

TEST(memory, more_than_the_limit_is_refused_with_the_parts) {
  const MemoryParts parts{.bytes = {/*weights*/ 0x1p30, /*gradients*/ 0x1p30, /*state*/ 0x1p31,
                                    /*copies*/ 0, /*checkpoint*/ 0, /*buffers*/ 0x1p28,
                                    /*activations*/ 0x1p29, /*logits*/ 0x1p28, /*phase*/ 0}};
  EXPECT_EQ(refusal_of(parts, {.count = 2}, {.bytes = 5ll << 30}), "");
  EXPECT_EQ(refusal_of(parts, {.count = 2}, {.bytes = 4ll << 30}),
            "this machine's 2 ranks would need 5.00 GiB of memory (weights 1.00, gradients 1.00, "
            "AdamW's state 2.00, copies of weights 0.00, checkpoint copy 0.00, exchange buffers "
            "0.25, activations 0.50, logits 0.25, phase under way 0.00), this machine has 4.00 "
            "GiB: use a smaller "
            "model or batch.nano_batch_tokens, train.recompute = full, "
            "parallel.use_distributed_optimizer = true, or fewer ranks on this "
            "machine");
  EXPECT_THAT(refusal_of(parts, {}, {.bytes = 1ll << 30, .of_group = true}),
              AllOf(HasSubstr("this rank would need"),
                    HasSubstr("the control group of this process allows 1.00 GiB")));
}

TEST(memory, absurd_sizes_do_not_overflow) {
  Config config;
  config.batch.nano_batch_tokens = 1 << 30;
  config.model.hidden_size = config.model.intermediate_size = 1 << 20;
  config.model.num_hidden_layers = 1 << 14;
  EXPECT_GT(memory_needed(config, 1, {}).total(), 0x1p60);
}

/// Without data: what is counted depends on the configuration alone.
void expect_needs_no_more_than_its_peaks(const Config& config, int workers) {
  const LocalRanks local{.count = num_ranks(config, workers)};
  const DryRun run = dry_run(config, workers, local);
  double sum = 0;
  for (const PeakMemory& peak : run.peaks) sum += peak.total();
  EXPECT_LE(run.needed.total(), sum);
  EXPECT_LE(memory_needed(config, workers, local).total(), run.needed.total())
      << run_grid(config, workers).describe() << ", " << config.model.num_hidden_layers
      << " layers, " << config.batch.nano_batches << " nano-batches, recompute "
      << static_cast<int>(config.train.recompute) << ", " << config.model.vocab_size << " words, "
      << config.train.steps << " steps, in " << run.peaks[0].where;
}

TEST(memory, what_refuses_a_run_is_never_above_the_peaks_that_are_predicted) {
  Config config = load_config("", {"servers.dedicated=1"});
  for (config.model.num_hidden_layers = 1; config.model.num_hidden_layers < 4;
       ++config.model.num_hidden_layers) {
    for (const int64_t words : {256, 32768}) {
      config.model.vocab_size = words;
      for (const ScalarType type : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
        config.model.dtype = type;
        for (config.batch.nano_batches = 1; config.batch.nano_batches < 4;
             ++config.batch.nano_batches) {
          for (const Recompute recompute :
               {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
            config.train.recompute = recompute;
            for (const int64_t steps : {0, 1, 2}) {
              config.train.steps = steps;
              expect_needs_no_more_than_its_peaks(config, 2);
            }
          }
        }
      }
    }
  }
}

TEST(memory, what_refuses_a_pipeline_is_never_above_the_peaks_that_are_predicted) {
  Config config = load_config("", {"batch.nano_batch_tokens=3000", "train.steps=2"});
  for (const int stages : {2, 3}) {
    config.parallel.pipeline_model_parallel_size = stages;
    for (config.batch.nano_batches = 1; config.batch.nano_batches < 11;
         config.batch.nano_batches += 3) {
      for (const Recompute recompute :
           {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        config.train.recompute = recompute;
        for (const ScalarType type : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
          config.model.dtype = type;
          for (const Overlap overlap : {Overlap::kNone, Overlap::kPingPong}) {
            config.train.overlap = overlap;
            config.parallel.pipeline_schedule = PipelineSchedule::kAligned;
            expect_needs_no_more_than_its_peaks(config, stages);
            config.parallel.pipeline_schedule = PipelineSchedule::kAtHome;
            expect_needs_no_more_than_its_peaks(config, 2 * stages);
          }
        }
      }
    }
  }
}

TEST(memory, what_refuses_divided_layers_is_never_above_the_peaks_that_are_predicted) {
  Config config = load_config(
      "", {"batch.nano_batch_tokens=3000", "train.steps=2", "model.num_attention_heads=8",
           "model.vocab_size=2003", "parallel.tensor_model_parallel_size=2"});
  for (const int ranks : {2, 4}) {
    config.parallel.tensor_model_parallel_size = ranks;
    config.servers.dedicated = ranks;
    for (const int64_t kv_heads : {1, 8}) {
      config.model.num_key_value_heads = kv_heads;
      for (const Recompute recompute :
           {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        config.train.recompute = recompute;
        for (const ScalarType type : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
          config.model.dtype = type;
          for (const bool zero : {false, true}) {
            config.parallel.use_distributed_optimizer = zero;
            for (config.batch.nano_batches = 1; config.batch.nano_batches < 6;
                 config.batch.nano_batches += 2) {
              config.parallel.pipeline_model_parallel_size = 1;
              expect_needs_no_more_than_its_peaks(config, ranks);
              config.parallel.pipeline_model_parallel_size = 2;
              expect_needs_no_more_than_its_peaks(config, 2 * ranks);
            }
          }
        }
      }
    }
  }
}

TEST(memory, a_dry_run_of_many_stages_shows_the_ends_and_the_highest) {
  const Config config = load_config(
      "", {"parallel.pipeline_model_parallel_size=12", "model.num_hidden_layers=12",
           "batch.nano_batches=5", "batch.nano_batch_tokens=300", "servers.dedicated=1"});
  const DryRun run = dry_run(config, 12, {.count = 13});
  const std::string text = dry_run_text(config, 12, run);
  EXPECT_THAT(text, AllOf(HasSubstr("12 workers = 12 stages (layers 0, 1, 2, 3, 4, 5, 6, 7, 8"),
                          HasSubstr("MiB                     stage 0  stage "),
                          HasSubstr("  stage 11  server 12\n"),
                          HasSubstr("Rank 0 (stage 0, replica 0) reaches its peak in "),
                          ContainsRegex("\nnano-batches in flight +5 .* 5 +2 +0\n"),
                          HasSubstr("Left out: the peaks of stages ")));
  // The ranks of a machine may be those of some stages alone.
  const DryRun some{.local = {.first = 6, .count = 3},
                    .peaks = {run.peaks.begin() + 6, run.peaks.begin() + 9},
                    .in_flight = {run.in_flight.begin() + 6, run.in_flight.begin() + 9}};
  EXPECT_THAT(dry_run_text(config, 12, some),
              AllOf(HasSubstr("MiB                     stage 6  stage 7  stage 8\n"),
                    Not(HasSubstr("Left out"))));
}

struct Shape {
  const char* name;
  int workers;
  std::vector<std::string> overrides;
};

class MemoryOfARunTest : public FolderTest, public ::testing::WithParamInterface<Shape> {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    IndexedDatasetWriter writer(folder_ / "set", TokenType::kUint8);
    Random random(1);
    for (int i = 0; i < 40; ++i) {
      std::vector<int32_t> tokens(1 + random.below(3000));
      for (int32_t& token : tokens) token = static_cast<int32_t>(random.below(256));
      writer.add_document(tokens);
    }
    writer.finish();
  }

  Config config(std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), {"data.prefix=" + (folder_ / "set").string(),
                                         "train.output_dir=" + (folder_ / "run").string(),
                                         "train.overwrite=true", "comm.backend=threads"});
    return load_config("", overrides);
  }

  static LocalRanks local_ranks(const Config& run) {
    return {.count = num_ranks(run, GetParam().workers)};
  }

  /// Compares the predicted peaks with those that metrics.jsonl of the last run records.
  void expect_predicted(const DryRun& predicted) {
    const std::string lines = read_file(folder_ / "run" / "metrics.jsonl");
    const Json last = parse_json(lines.substr(lines.rfind('\n', lines.size() - 2) + 1), "metrics");
    const auto measured = last["peak_bytes"].get<std::vector<double>>();
    ASSERT_EQ(measured.size(), predicted.peaks.size());
    for (size_t rank = 0; rank < measured.size(); ++rank) {
      const PeakMemory& peak = predicted.peaks[rank];
      std::printf("%s, rank %zu: predicted %.1f MiB in %s, measured %.1f MiB\n", GetParam().name,
                  rank, peak.total() / 0x1p20, peak.where.c_str(), measured[rank] / 0x1p20);
      EXPECT_NEAR(peak.total() / measured[rank], 1, 0.03);
    }
  }

  /// The most memory that a process of its own had while all ranks, as its threads, trained.
  static double peak_of(const Config& config, int workers) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      std::freopen("/dev/null", "w", stdout);
      run_ranks(num_ranks(config, workers), {.timeout_s = 300}, [&](Communicator& comm) {
        RunState state(config.train.output_dir, config.train.steps);
        train(config, comm, state);
      });
      _exit(0);
    }
    int status = 0;
    rusage used{};
    EXPECT_EQ(wait4(child, &status, 0, &used), child);
    EXPECT_EQ(status, 0);
    return 1024.0 * static_cast<double>(used.ru_maxrss);
  }
};

TEST_P(MemoryOfARunTest, is_neither_refused_at_80_percent_nor_far_from_the_estimate) {
  const Shape& shape = GetParam();
  const Config run = config(shape.overrides);
  Config empty = config({"train.steps=0", "model.hidden_size=16", "model.intermediate_size=16"});
  empty.model.num_hidden_layers = 1;
  const LocalRanks local = local_ranks(run);
  const IndexedDataset data(run.data.prefix);
  BatchStream stream(data.document_lengths(), run.batch);
  const BatchPlans plans = plan_nano_batches(run, stream.next(), shape.workers);
  const MemoryParts parts = least_together(peaks_of_batch(run, plans, shape.workers, local));
  const double program = peak_of(empty, 1), peak = peak_of(run, shape.workers);
  const double ratio = parts.total() / (peak - program);
  std::printf("%s: estimate %.0f MiB, measured %.0f MiB (and %.0f of the program): %.2f\n",
              shape.name, parts.total() / 0x1p20, (peak - program) / 0x1p20, program / 0x1p20,
              ratio);
  EXPECT_NO_THROW(check_memory(parts, local, {.bytes = static_cast<int64_t>(peak / 0.8)}));
  // Far below it, what does not fit would not be seen; above it, what fits would be refused.
  EXPECT_GT(ratio, 0.6);
  EXPECT_LT(ratio, 1.1);
  expect_predicted(dry_run(run, shape.workers, local));
}

class PeakOfARunTest : public MemoryOfARunTest {};

TEST_P(PeakOfARunTest, of_the_tensors_of_every_rank_is_predicted) {
  const Config run = config(GetParam().overrides);
  const DryRun predicted = dry_run(run, GetParam().workers, local_ranks(run));
  peak_of(run, GetParam().workers);
  expect_predicted(predicted);
}

std::vector<std::string> with(std::vector<std::string> more) {
  more.insert(more.end(), {"train.validation_every=0", "train.validation_nano_batches=1"});
  return more;
}
const std::vector<std::string> kWide = {"model.hidden_size=768", "model.intermediate_size=2048",
                                        "model.num_hidden_layers=4", "batch.nano_batch_tokens=512",
                                        "train.steps=2"};
std::vector<std::string> wide(std::vector<std::string> more) {
  more.insert(more.begin(), kWide.begin(), kWide.end());
  return with(more);
}

std::string name_of(const ::testing::TestParamInfo<Shape>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Shapes, MemoryOfARunTest,
    ::testing::Values(Shape{"long", 1,
                            with({"batch.nano_batch_tokens=8192", "train.steps=2",
                                  "model.num_hidden_layers=2", "attention.kernel=auto"})},
                      Shape{"wide_2_workers", 2, wide({})},
                      Shape{"wide_checkpoint", 2, wide({"checkpoint.every_steps=1"})},
                      Shape{"wide_pipeline", 2,
                            wide({"parallel.pipeline_model_parallel_size=2", "batch.nano_batches=3",
                                  "checkpoint.every_steps=1"})}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    full, MemoryOfARunTest,
    ::testing::Values(
        Shape{"wide_1_worker", 1, wide({})}, Shape{"bf16", 1, wide({"model.dtype=bfloat16"})},
        Shape{
            "bf16_pairs", 2,
            wide({"model.dtype=bfloat16", "batch.nano_batches=2", "batch.nano_batch_tokens=2048"})},
        Shape{"fp64", 1, wide({"model.dtype=float64"})},
        Shape{"pairs", 1,
              with({"batch.nano_batch_tokens=8192", "batch.nano_batches=2", "train.steps=2"})},
        Shape{"dedicated", 1,
              with({"batch.nano_batch_tokens=8192", "servers.dedicated=1", "train.steps=2"})},
        Shape{"vocabulary", 2,
              with({"model.vocab_size=20000", "batch.nano_batch_tokens=4096", "train.steps=2"})},
        Shape{"all_heads", 2,
              with({"model.num_attention_heads=8", "model.num_key_value_heads=8",
                    "batch.nano_batch_tokens=8192", "train.steps=2"})},
        Shape{"norm_of_q_and_k", 1,
              with({"model.model_type=qwen3", "model.num_attention_heads=8",
                    "batch.nano_batch_tokens=8192", "train.steps=2"})},
        Shape{"one_step", 1, with({"batch.nano_batch_tokens=8192", "train.steps=1"})}),
    name_of);

const std::vector<std::string> kNarrow = {"model.num_hidden_layers=2", "train.steps=2"};
std::vector<std::string> narrow(std::vector<std::string> more) {
  more.insert(more.begin(), kNarrow.begin(), kNarrow.end());
  return with(more);
}

/// Servers keep keys until backward.
std::vector<std::string> divided(std::vector<std::string> more) {
  more.insert(more.begin(), {"model.num_attention_heads=8", "batch.nano_batch_tokens=6000"});
  return narrow(more);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, PeakOfARunTest,
    ::testing::Values(
        Shape{"selective", 2,
              narrow({"train.recompute=selective", "model.dtype=bfloat16",
                      "batch.nano_batch_tokens=2048", "batch.nano_batches=2"})},
        Shape{"by_chunks", 1, narrow({"train.recompute=full", "batch.nano_batch_tokens=5000"})},
        Shape{"pipeline", 4,
              narrow({"parallel.pipeline_model_parallel_size=2", "model.num_hidden_layers=3",
                      "train.recompute=selective", "batch.nano_batches=6",
                      "batch.nano_batch_tokens=2000"})},
        Shape{"tensor", 4, divided({"parallel.tensor_model_parallel_size=2"})},
        Shape{"tensor_full", 4,
              divided({"parallel.tensor_model_parallel_size=4", "train.recompute=full",
                       "model.dtype=bfloat16", "batch.nano_batches=2"})}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    full, PeakOfARunTest,
    ::testing::Values(
        Shape{"by_one_chunk", 2,
              narrow({"train.recompute=full", "model.dtype=bfloat16", "train.overlap=none",
                      "batch.nano_batch_tokens=3000", "batch.nano_batches=3"})},
        Shape{"keys_travel_again", 2,
              narrow({"train.recompute=full", "exchange.keys=redispatch",
                      "batch.nano_batch_tokens=10000", "batch.nano_batches=2"})},
        Shape{"large_head", 2,
              narrow({"model.vocab_size=32768", "model.hidden_size=1024", "model.dtype=bfloat16",
                      "train.loss_chunk_tokens=64", "batch.nano_batch_tokens=3000"})},
        Shape{"zero_1", 2,
              narrow({"parallel.use_distributed_optimizer=true", "model.dtype=bfloat16",
                      "model.hidden_size=768", "batch.nano_batch_tokens=1000"})},
        Shape{"tied", 1,
              narrow({"model.vocab_size=20000", "model.tie_word_embeddings=true",
                      "batch.nano_batch_tokens=3000"})},
        Shape{"split_kv", 3,
              narrow({"plan.split_kv=true", "batch.nano_batch_tokens=12000",
                      "train.overlap=within"})},
        Shape{"split_kv_served", 2,
              narrow({"plan.split_kv=true", "servers.dedicated=1", "batch.nano_batch_tokens=12000",
                      "train.overlap=within"})},
        Shape{"validated", 1,
              narrow({"train.recompute=full", "train.validation_every=1",
                      "batch.nano_batch_tokens=3000"})},
        Shape{"pipeline_at_home", 3,
              narrow({"parallel.pipeline_model_parallel_size=3", "model.num_hidden_layers=4",
                      "parallel.pipeline_layers=1,2,1", "parallel.pipeline_schedule=1f1b",
                      "batch.nano_batches=5", "batch.nano_batch_tokens=2000",
                      "model.dtype=bfloat16"})},
        Shape{"pipeline_zero_1", 4,
              narrow({"parallel.pipeline_model_parallel_size=2", "train.recompute=full",
                      "parallel.use_distributed_optimizer=true", "model.dtype=bfloat16",
                      "batch.nano_batches=4", "batch.nano_batch_tokens=6000",
                      "train.validation_every=1"})},
        Shape{"pipeline_served", 2,
              narrow({"parallel.pipeline_model_parallel_size=2", "servers.dedicated=1",
                      "train.overlap=within", "batch.nano_batches=4",
                      "batch.nano_batch_tokens=2000"})},
        Shape{"tensor_kept", 2,
              divided({"parallel.tensor_model_parallel_size=2", "train.recompute=full",
                       "model.model_type=qwen3"})},
        Shape{"tensor_zero_1", 4,
              divided({"parallel.tensor_model_parallel_size=2", "model.dtype=bfloat16",
                       "parallel.use_distributed_optimizer=true", "train.recompute=selective",
                       "model.tie_word_embeddings=true"})},
        Shape{"tensor_pipeline", 8,
              divided({"parallel.tensor_model_parallel_size=4", "batch.nano_batches=4",
                       "parallel.pipeline_model_parallel_size=2", "model.num_hidden_layers=4",
                       "parallel.outstanding_weight_gradients=2"})}),
    name_of);

}  // namespace
}  // namespace distca
