#include "distca/train/start_weights.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "distca/checkpoint/folder.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/collectives.h"
#include "distca/comm/long_work.h"
#include "distca/model/weights_file.h"
#include "distca/report/run_folder.h"
#include "distca/train/checkpoint_saver.h"
#include "distca/train/resume.h"

namespace distca {
namespace {

at::Tensor tensor_of(const HuggingFaceWeights::Tensor& tensor) {
  const auto& [stored, bytes] = tensor;
  // A copy: nothing says that what lies in a file is aligned.
  at::Tensor host = at::empty(stored.shape, stored.is_float16 ? at::kHalf : aten_type(stored.type));
  std::memcpy(host.data_ptr(), bytes.data(), bytes.size());
  return host;
}

}  // namespace

void check_start_weights(const Config& config) {
  const std::filesystem::path folder = config.model_from;
  if (folder.empty()) return;
  std::error_code ignored;
  // A run that replaces the model that it began with, and is started again before it has saved.
  const bool again = std::filesystem::equivalent(folder, config.train.output_dir, ignored) &&
                     complete_checkpoints(folder).empty();
  if (!again && std::filesystem::exists(folder / kWeightsFile, ignored)) {
    const std::filesystem::path checkpoint = newest_weights(folder).checkpoint;
    DISTCA_THROW_IF(!checkpoint.empty(), ErrorKind::kCheckpoint,
                    "model.from = {}: the newest weights of this run are those of {}, and its {} "
                    "is older: distca export {} --out FOLDER writes them, then give FOLDER",
                    folder.string(), checkpoint.string(), kWeightsFile, folder.string());
  }
  HuggingFaceWeights(folder, config.model);
}

uint64_t load_start_weights(const CheckpointReader* checkpoint, const Config& config,
                            WorkerWeights& weights, std::vector<std::string>* words) {
  if (checkpoint) {
    load_checkpoint(*checkpoint, config.model, weights.model.stage(), weights.optimizer);
    return 0;
  }
  if (config.model_from.empty()) return 0;
  const HuggingFaceWeights stored(config.model_from, config.model);
  const std::vector<Weight>& table = weights.model.weights();
  for (size_t i = 0; i < table.size(); ++i)
    weights.optimizer.load(StatePart::kWeight, i,
                           part_of(table[i].box, tensor_of(stored.at(table[i].name))));
  if (words) {
    words->push_back(
        fmt::format("starting from the weights of {}: {}", config.model_from, stored.describe()));
  }
  return stored.fingerprint();
}

void check_same_folder(Communicator& comm, const Config& config, uint64_t fingerprint) {
  const std::vector<uint64_t> all = all_gather(comm, fingerprint, "comparing what was read");
  const auto first = std::ranges::find_if(all, [](uint64_t read) { return read != 0; });
  const auto other =
      std::find_if(first, all.end(), [&](uint64_t read) { return read != 0 && read != *first; });
  DISTCA_THROW_IF(other != all.end(), ErrorKind::kConfig,
                  "rank {} reads other weights from {} than rank {}: give all ranks the same files",
                  other - all.begin(), config.model_from, first - all.begin());
}

void read_start_weights(Communicator& comm, const CheckpointReader* checkpoint,
                        const Config& config, WorkerWeights* weights,
                        std::vector<std::string>& words) {
  // On a device, a look at a number waits until the thread's stream has done what it was given:
  // here what the weights were drawn by, and there what loads them.
  if (weights) weights->optimizer.updates();
  uint64_t fingerprint = 0;
  try {
    do_long_work(comm, config.comm.timeout_s, "reading the initial weights", [&] {
      if (!weights) return;
      at::set_num_threads(static_cast<int>(config.train.threads_per_rank));  // for this thread
      fingerprint = load_start_weights(checkpoint, config, *weights, &words);
      weights->optimizer.updates();
    });
  } catch (const Error& error) {
    if (!checkpoint || error.kind() != ErrorKind::kCheckpoint) throw;
    throw DamagedCheckpoint(*checkpoint, error);
  }
  check_same_folder(comm, config, fingerprint);
  if (checkpoint && weights) weights->optimizer.gather_weights(weights->all_workers);
}

void load_weights(const HuggingFaceWeights& weights, const Llama& model) {
  const c10::AutoGradMode no_grad(false);
  for (size_t i = 0; i < model.weights().size(); ++i) {
    const Weight& weight = model.weights()[i];
    model.parameters()[i].copy_(part_of(weight.box, tensor_of(weights.at(weight.name))));
  }
  model.refresh_copies();
}

void load_weights(const CheckpointReader& checkpoint, const Llama& model) {
  const c10::AutoGradMode no_grad(false);
  const std::vector<StoredTensor> wanted = stored_weights(model.config(), model.stage());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const at::Tensor host = at::empty(wanted[i].shape, aten_type(wanted[i].type));
    checkpoint.read(checkpoint.find(wanted[i]), StatePart::kWeight,
                    {static_cast<std::byte*>(host.data_ptr()), static_cast<size_t>(host.nbytes())});
    model.parameters()[i].copy_(part_of(model.weights()[i].box, host));
  }
  model.refresh_copies();
}

}  // namespace distca
