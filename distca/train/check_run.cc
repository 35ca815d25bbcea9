#include "distca/train/check_run.h"

#include <ATen/Context.h>
#include <unistd.h>

#include "distca/base/error.h"
#include "distca/base/text.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/kernels/cpu/attention.h"
#include "distca/plan/scheduler.h"
#include "distca/train/held_out.h"
#include "distca/train/plan_request.h"
#include "distca/train/step_tracer.h"

namespace distca {
namespace {

/// Refuses a model of which one rank alone would not fit this machine.
void check_memory(const LlamaConfig& model) {
  // Master weights, gradients and AdamW's two moments.
  const double element = model.dtype == ScalarType::kFloat64 ? 8.0 : 4.0;
  const double needed = 4.0 * element * static_cast<double>(model.num_parameters());
  const double present =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  if (needed <= present) return;
  throw Error(ErrorKind::kConfig,
              "model of {} parameters: weights, gradients and AdamW's state need {:.1f} GiB on "
              "each worker, this "
              "machine has {:.1f} GiB",
              with_thousands(model.num_parameters()), needed / 0x1p30, present / 0x1p30);
}

}  // namespace

void set_up_process(const Config& config) {
  if (config.train.device != "cuda" || !config.train.deterministic) return;
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // Else every buffer is filled before its use: nothing reads one that nobody wrote.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

void check_run(const Config& config, int num_workers, bool holds_weights) {
  if (config.data.prefix.empty()) {
    throw Error(ErrorKind::kConfig,
                "data.prefix is not set: make a data set with `distca data prepare` and name it");
  }
  if (config.train.device == "cuda" && !at::hasCUDA()) {
    throw Error(ErrorKind::kConfig,
                "train.device = cuda: this machine or this PyTorch has no CUDA device");
  }
  if (holds_weights) check_memory(config.model);
  if (chosen_kernel(kernel_request(config)) == KernelChoice::kCpu) {
    kernels::chosen_isa();  // refuses an instruction set that is not here
  }
  check_runs(find_scheduler(config.plan.scheduler));
  const IndexedDataset data(config.data.prefix);
  data.check_vocabulary(config.model.vocab_size);
  const DocumentSplit split =
      split_documents(data.num_documents(), config.data.validation_fraction, config.batch.seed);
  BatchStream stream(data.document_lengths(), split.train, config.batch);
  plan_nano_batches(config, stream.next(), num_workers);
  validation_batches(config, data, split);
  check_trace(config);
  const std::filesystem::path metrics =
      std::filesystem::path(config.train.output_dir) / "metrics.jsonl";
  if (!config.train.overwrite && std::filesystem::exists(metrics)) {
    throw Error(
        ErrorKind::kConfig,
        "{} holds a run already: choose another train.output_dir or set train.overwrite=true",
        config.train.output_dir);
  }
}

}  // namespace distca
