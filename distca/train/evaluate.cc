#include "distca/train/evaluate.h"

#include <ATen/Parallel.h>

#include <memory>
#include <vector>

#include "distca/base/error.h"
#include "distca/checkpoint/reader.h"
#include "distca/comm/collectives.h"
#include "distca/comm/long_work.h"
#include "distca/comm/ordered_sum.h"
#include "distca/config/run_grid.h"
#include "distca/forecast/data_split.h"
#include "distca/model/hugging_face.h"
#include "distca/train/agreed_plans.h"
#include "distca/train/resume.h"
#include "distca/train/same_config.h"
#include "distca/train/same_weights.h"
#include "distca/train/start_weights.h"

namespace distca {
namespace {

constexpr ProgramRequest::Kind kEvaluate = ProgramRequest::Kind::kEvaluate;

/// Reads the rank's weights, if `model` is not null. Gives the checkpoint, if they are of one.
std::unique_ptr<const CheckpointReader> read_weights(const Config& config,
                                                     const std::filesystem::path& checkpoint,
                                                     const Llama* model, Communicator& comm) {
  std::unique_ptr<const CheckpointReader> reader;
  uint64_t fingerprint = 0;
  do_long_work(comm, config.comm.timeout_s, "reading the weights", [&] {
    if (!checkpoint.empty()) reader = std::make_unique<CheckpointReader>(checkpoint);
    if (!model) return;
    if (reader) {
      load_weights(*reader, *model);
    } else {
      const HuggingFaceWeights weights(config.model_from, config.model);
      load_weights(weights, *model);
      fingerprint = weights.fingerprint();
    }
  });
  check_same_folder(comm, config, fingerprint);
  return reader;
}

/// Ranks may read folders of their own machines. The ranks that hold weights call it together.
void check_same_weights(const Config& config, const RunGrid& run, const Llama& model,
                        Communicator& comm) {
  const auto workers = comm.split_first(run.num_workers());
  const OtherRanks others = ranks_with_other_weights(*workers, run, config.model,
                                                     model.parameters(), "comparing the weights");
  if (others.empty()) return;
  const auto [ranks, firsts, part] = name_others(others, run);
  throw Error(ErrorKind::kConfig,
              "{} read other weights{} from {} than {}: give all the same files", ranks, part,
              config.model_from, firsts);
}

}  // namespace

std::optional<PositionLosses> evaluate(Step& step, size_t num_batches,
                                       const std::function<std::optional<PlannedBatch>()>& next,
                                       Communicator& comm) {
  PositionLosses losses;
  for (size_t i = 0; i < num_batches; ++i) {
    const std::optional<PlannedBatch> planned = next();
    if (!planned) return {};
    // One after the other: how many are played together makes no difference to the bits.
    for (const PositionLosses& more : step.evaluate(planned->input).losses) losses += more;
  }
  ordered_sum(comm, losses.values(), "validation loss");
  return losses;
}

PositionLosses evaluate_stored(const Config& config, const std::filesystem::path& checkpoint,
                               Communicator& comm,
                               const std::function<void(double share)>& progress) {
  // A setting of the calling thread.
  at::set_num_threads(static_cast<int>(config.train.threads_per_rank));
  const int num_workers = comm.size() - static_cast<int>(config.servers.dedicated);
  const DataBlend data(config.data.prefix);
  const RunGrid run = run_grid(config, num_workers);
  std::unique_ptr<const Llama> model;
  if (comm.rank() < num_workers) {
    // Nobody updates the weights, so they lie in the types in which they are used.
    model = std::make_unique<Llama>(config.model, run.stage_of(comm.rank()), /*seed=*/0,
                                    comm.cuda_device(), MainParams::kElsewhere);
  }
  const auto reader = read_weights(config, checkpoint, model.get(), comm);
  if (model) check_same_weights(config, run, *model, comm);
  Step step(config.model, model.get(), comm, step_options(config));
  agree_on_kernel(comm, config.attention.kernel == KernelChoice::kAuto, step.kernel());
  check_same_config(comm, config,
                    resolved_config(config, step.kernel().name(), data.summary(),
                                    comm.cuda_device() >= 0, reader.get()));
  const std::vector<Batch> batches = evaluation_batches(config, data);
  size_t planned = 0;
  const auto plan_next = [&](const Speeds& speeds) -> std::optional<PlannedBatch> {
    if (planned == batches.size()) return {};
    const StepBatch batch{
        .batch = batches[planned], .kind = kEvaluate, .checks_all_ranks = planned == 0};
    ++planned;
    return plan_batch(config, data, batch, comm.rank(), num_workers, speeds);
  };
  AgreedPlans plans(plan_next, {}, comm);
  size_t begun = 0;
  const auto next = [&] {
    if (comm.rank() == 0 && progress)
      progress(static_cast<double>(begun++) / static_cast<double>(batches.size()));
    return plans.next(kEvaluate, {});
  };
  const std::optional<PositionLosses> losses = evaluate(step, batches.size(), next, comm);
  if (!losses) {
    barrier(comm, "end of an evaluation that cannot go on");
    throw Error(*plans.failure());
  }
  return *losses;
}

}  // namespace distca
