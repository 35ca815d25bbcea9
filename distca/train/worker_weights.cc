#include "distca/train/worker_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/collectives.h"
#include "distca/comm/host_read.h"
#include "distca/comm/tags.h"
#include "distca/forecast/batch_programs.h"
#include "distca/train/stage_weights.h"
#include "distca/train/step.h"

namespace distca {
namespace {

constexpr const char* kGathering = "gathering the trained weights";
constexpr int64_t kMostElements = int64_t{1} << 22;  // in a message, so that no single wait is long

/// Some rows of what a rank holds of a weight, or elements of a norm or bias: what one message
/// carries.
struct Part {
  size_t in_model = 0, in_stage = 0;  // whose rows: KeptWeight
  Range rows;
  std::vector<Range> box;  // their place in the full tensor
};

/// The parts that a rank sends to rank 0, one in each round: all that the first replica of a stage
/// has, and none of the others.
std::vector<Part> parts_of(const LlamaConfig& model, const RunGrid& run, int rank) {
  if (rank == 0 || run.first_replica(rank) != rank) return {};
  const Stage stage = run.stage_of(rank);
  const std::vector<Weight> table = weight_table(model, stage);
  std::vector<Part> parts;
  for (const KeptWeight& kept : kept_weights(model, stage)) {
    const Weight& weight = table[kept.in_stage];
    const int64_t rows = weight.box[0].size();
    if (weight.numel() == 0) continue;
    const int64_t each = std::max<int64_t>(1, kMostElements * rows / weight.numel());
    for (int64_t begin = 0; begin < rows; begin += each) {
      Part part{.in_model = kept.in_model,
                .in_stage = kept.in_stage,
                .rows = {begin, std::min(rows, begin + each)},
                .box = weight.box};
      part.box[0] = {weight.box[0].begin + part.rows.begin, weight.box[0].begin + part.rows.end};
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

Message message(int peer, const at::Tensor& tensor) {
  DISTCA_CHECK(tensor.is_contiguous(), "rows of {} elements do not adjoin", tensor.numel());
  return {.peer = peer,
          .tag = kGatherToTag,
          .data = static_cast<std::byte*>(tensor.data_ptr()),
          .bytes = static_cast<int64_t>(tensor.nbytes())};
}

/// [rank] What each of them sends.
std::vector<std::vector<Part>> parts_of_all(const LlamaConfig& model, const RunGrid& run) {
  std::vector<std::vector<Part>> parts;
  for (int rank = 0; rank < run.num_workers(); ++rank) parts.push_back(parts_of(model, run, rank));
  return parts;
}

size_t num_rounds(const std::vector<std::vector<Part>>& parts) {
  size_t rounds = 0;
  for (const std::vector<Part>& of_rank : parts) rounds = std::max(rounds, of_rank.size());
  return rounds;
}

/// On a first replica other than rank 0.
void send(Communicator& all_workers, const at::Tensor& held, const Part& part) {
  const at::Tensor rows = held.narrow(0, part.rows.begin, part.rows.size());
  const at::Device device = aten_device(all_workers.cuda_device());
  const at::Tensor piece = rows.is_cpu() ? upload(rows, device) : rows;
  const Message send = message(0, piece);
  all_workers.exchange({&send, 1}, {}, kGathering)->wait();
}

/// On rank 0: of all senders side by side, so that none of them waits until another is done.
void receive(Communicator& all_workers, const std::vector<std::vector<Part>>& parts, size_t round,
             const std::vector<at::Tensor>& weights) {
  const at::Device device = aten_device(all_workers.cuda_device());
  std::vector<Message> receives;
  std::vector<std::pair<at::Tensor, at::Tensor>> landed;  // where it landed, where it belongs
  for (int rank = 0; rank < all_workers.size(); ++rank) {
    if (round >= parts[rank].size()) continue;
    const Part& part = parts[rank][round];
    const at::Tensor place = part_of(part.box, weights[part.in_model]);
    const bool lands_there = device.is_cpu() && place.is_contiguous();
    const at::Tensor landing =
        lands_there ? place : at::empty(place.sizes(), place.options().device(device));
    receives.push_back(message(rank, landing));
    if (!lands_there) landed.emplace_back(landing, place);
  }
  all_workers.exchange({}, receives, kGathering)->wait();
  for (const auto& [landing, place] : landed) read_to(place, landing);
}

}  // namespace

WorkerWeights::WorkerWeights(const Config& config, Communicator& comm, const RunGrid& run,
                             std::shared_ptr<const GradientExchange> exchange)
    : gradients(exchange ? std::move(exchange) : rank_gradients(config, run, comm.rank())),
      model(config.model, run.stage_of(comm.rank()), static_cast<uint64_t>(config.train.seed),
            comm.cuda_device(), main_params_of(step_options(config))),
      optimizer(model, static_cast<uint64_t>(config.train.seed), config.optimizer, gradients),
      group(comm.split(run.stage_ranks(comm.rank()))),
      whole_group(run.divides_model() ? comm.split_first(run.num_workers()) : nullptr),
      workers(*group, kTracedTags + kTracedTagsEach, run.stage_ranks(comm.rank())),
      all_workers(whole_group ? *whole_group : *group, kTracedTags + 2 * kTracedTagsEach) {}

void WorkerWeights::set_recorder(TraceRecorder* recorder) {
  workers.set_recorder(recorder);
  if (whole_group) all_workers.set_recorder(recorder);
}

UpdateRequest update_of(WorkerWeights* weights) {
  if (weights == nullptr) return {};
  return {.optimizer = &weights->optimizer,
          .workers = &weights->workers,
          .all_stages = weights->whole_group ? &weights->all_workers : nullptr};
}

std::vector<at::Tensor> gather_parts(Communicator& all_workers, const RunGrid& run,
                                     const LlamaConfig& model, const std::vector<at::Tensor>& mine,
                                     const std::function<void()>& meet) {
  const int rank = all_workers.rank();
  const std::vector<std::vector<Part>> parts = parts_of_all(model, run);
  const size_t rounds = num_rounds(parts);
  if (rank > 0) {
    for (size_t round = 0; round < rounds; ++round, meet()) {
      if (round >= parts[rank].size()) continue;
      send(all_workers, mine[parts[rank][round].in_stage], parts[rank][round]);
    }
    return {};
  }
  const Stage stage = run.stage_of(rank);
  const std::vector<Weight> held = weight_table(model, stage);
  std::vector<at::Tensor> all;
  for (const Weight& weight : weight_table(model))
    all.push_back(at::empty(weight.shape, mine[0].options().device(at::kCPU)));
  for (const KeptWeight& own : kept_weights(model, stage)) {
    const Weight& weight = held[own.in_stage];
    if (weight.held_shape() == weight.shape) {
      all[own.in_model] = mine[own.in_stage];
    } else {
      read_to(part_of(weight.box, all[own.in_model]), mine[own.in_stage]);
    }
  }
  for (size_t round = 0; round < rounds; ++round, meet()) receive(all_workers, parts, round, all);
  return all;
}

std::vector<at::Tensor> gather_trained_weights(Communicator& comm, WorkerWeights* weights,
                                               const RunGrid& run, const LlamaConfig& model) {
  std::vector<at::Tensor> main_params;
  if (weights) main_params = weights->optimizer.gather_main_params(weights->all_workers);
  if (!run.divides_model()) return main_params;
  // All of it may take longer than a wait may, so the others follow round by round.
  const auto meet = [&comm] { barrier(comm, kGathering); };
  if (!main_params.empty())
    return gather_parts(weights->all_workers, run, model, main_params, meet);
  for (size_t round = num_rounds(parts_of_all(model, run)); round > 0; --round) meet();
  return {};
}

}  // namespace distca
