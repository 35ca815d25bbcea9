#include "distca/train/check_run.h"

#include <ATen/Context.h>

#include "distca/base/error.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/kernels/cpu/attention.h"
#include "distca/train/data_split.h"
#include "distca/train/plan_request.h"
#include "distca/train/step_tracer.h"

namespace distca {

void set_up_process(const Config& config) {
  if (!config.on_cuda() || !config.train.deterministic) return;
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // Else every buffer is filled before its use: nothing reads one that nobody wrote.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

void check_run(const Config& config, int num_workers, LocalRanks local) {
  DISTCA_THROW_IF(config.data.prefix.empty(), ErrorKind::kConfig,
                  "data.prefix is not set: make a data set with `distca data prepare` and name it");
  DISTCA_THROW_IF(config.on_cuda() && !at::hasCUDA(), ErrorKind::kConfig,
                  "train.device = cuda: this machine or this PyTorch has no CUDA device");
  // First of all: what follows may take long where too much is asked for.
  MemoryParts memory = memory_needed(config, num_workers, local);
  const bool on_cpu = !config.on_cuda();
  if (on_cpu) check_memory(memory, local, memory_limit());
  if (chosen_kernel(kernel_request(config)) == KernelChoice::kCpu) {
    kernels::chosen_isa();  // refuses an instruction set that is not here
  }
  const IndexedDataset data(config.data.prefix);
  data.check_vocabulary(config.model.vocab_size);
  const DocumentSplit split =
      split_documents(data.num_documents(), config.data.validation_fraction, config.batch.seed);
  check_training_part(data, split);
  constexpr double kLookAhead = 2;  // seconds
  const auto [plans, redispatched] =
      check_batches_fit(config, BatchStream(data.document_lengths(), split.train, config.batch),
                        num_workers, kLookAhead);
  memory.buffers = exchange_buffer_bytes(config, plans, redispatched, num_workers, local);
  if (on_cpu) check_memory(memory, local, memory_limit());
  check_trace(config);
}

}  // namespace distca
