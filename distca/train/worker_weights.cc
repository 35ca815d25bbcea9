#include "distca/train/worker_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "distca/comm/host_read.h"
#include "distca/comm/tags.h"
#include "distca/forecast/batch_programs.h"
#include "distca/train/stage_weights.h"
#include "distca/train/step.h"

namespace distca {
namespace {

constexpr const char* kGathering = "gathering the trained weights";
constexpr int64_t kMostElements = int64_t{1} << 22;  // in a message, so that no single wait is long

/// The elements of a weight that one message carries.
struct Part {
  size_t in_model = 0, in_stage = 0;  // whose elements: KeptWeight
  Range elements;
};

/// The parts that the first replica of a stage sends, in order.
std::vector<Part> parts_of(const std::vector<KeptWeight>& kept, const std::vector<Weight>& table) {
  std::vector<Part> parts;
  for (const KeptWeight& weight : kept) {
    const int64_t numel = table[weight.in_model].numel();
    for (int64_t begin = 0; begin < numel; begin += kMostElements)
      parts.push_back({.in_model = weight.in_model,
                       .in_stage = weight.in_stage,
                       .elements = {begin, std::min(numel, begin + kMostElements)}});
  }
  return parts;
}

at::Tensor elements_of(const at::Tensor& tensor, const Range& elements) {
  return tensor.view({-1}).narrow(0, elements.begin, elements.size());
}

/// Where messages of the group must lie.
at::Device message_device(const Communicator& group) {
  const int device = group.cuda_device();
  return device < 0 ? at::Device(at::kCPU)
                    : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device));
}

Message message(int peer, const at::Tensor& tensor) {
  return {.peer = peer,
          .tag = kGatherToTag,
          .data = static_cast<std::byte*>(tensor.data_ptr()),
          .bytes = static_cast<int64_t>(tensor.nbytes())};
}

/// On the first replica of a stage behind the first.
void send(Communicator& all_workers, const std::vector<at::Tensor>& main_params,
          const std::vector<Part>& parts) {
  for (const Part& part : parts) {
    const at::Tensor elements = elements_of(main_params[part.in_stage], part.elements);
    const at::Tensor piece =
        elements.is_cpu() ? upload(elements, message_device(all_workers)) : elements;
    const Message send = message(0, piece);
    all_workers.exchange({&send, 1}, {}, kGathering)->wait();
  }
}

/// On rank 0: of all stages side by side, so that none of them waits until another is done.
/// `parts`: [stage].
void receive(Communicator& all_workers, const RunGrid& run,
             const std::vector<std::vector<Part>>& parts, std::vector<at::Tensor>& weights) {
  const at::Device device = message_device(all_workers);
  size_t rounds = 0;
  for (int stage = 1; stage < run.grid.stages; ++stage)
    rounds = std::max(rounds, parts[stage].size());
  for (size_t round = 0; round < rounds; ++round) {
    std::vector<Message> receives;
    std::vector<std::pair<at::Tensor, at::Tensor>> landed;  // where it landed, where it belongs
    for (int stage = 1; stage < run.grid.stages; ++stage) {
      if (round >= parts[stage].size()) continue;
      const Part& part = parts[stage][round];
      const at::Tensor place = elements_of(weights[part.in_model], part.elements);
      const at::Tensor landing = device.is_cpu() ? place : at::empty_like(place, device);
      receives.push_back(message(run.grid.rank(stage, 0), landing));
      landed.emplace_back(landing, place);
    }
    all_workers.exchange({}, receives, kGathering)->wait();
    for (const auto& [landing, place] : landed) {
      if (!device.is_cpu()) read_to(place, landing);
    }
  }
}

}  // namespace

WorkerWeights::WorkerWeights(const Config& config, Communicator& comm, const RunGrid& run,
                             std::shared_ptr<const GradientExchange> exchange)
    : gradients(exchange ? std::move(exchange) : rank_gradients(config, run, comm.rank())),
      model(config.model, run.stage_of(comm.rank()), static_cast<uint64_t>(config.train.seed),
            comm.cuda_device(), main_params_of(step_options(config))),
      optimizer(model, static_cast<uint64_t>(config.train.seed), config.optimizer, gradients),
      group(comm.split(run.replicas_of(run.grid.stage(comm.rank())))),
      whole_group(run.is_pipeline() ? comm.split_first(run.grid.num_workers()) : nullptr),
      workers(*group, kTracedTags + kTracedTagsEach, run.replicas_of(run.grid.stage(comm.rank()))),
      all_workers(whole_group ? *whole_group : *group, kTracedTags + 2 * kTracedTagsEach) {}

void WorkerWeights::set_recorder(TraceRecorder* recorder) {
  workers.set_recorder(recorder);
  if (whole_group) all_workers.set_recorder(recorder);
}

std::vector<at::Tensor> gather_stages(Communicator& all_workers, const RunGrid& run,
                                      const LlamaConfig& model,
                                      const std::vector<at::Tensor>& mine) {
  const std::vector<Weight> table = weight_table(model);
  const std::vector<std::vector<KeptWeight>> kept = kept_weights(model, run);
  std::vector<std::vector<Part>> parts;
  for (const std::vector<KeptWeight>& of : kept) parts.push_back(parts_of(of, table));
  if (all_workers.rank() > 0) {
    send(all_workers, mine, parts[run.grid.stage(all_workers.rank())]);
    return {};
  }
  std::vector<at::Tensor> all;
  for (const Weight& weight : table)
    all.push_back(at::empty(weight.shape, mine[0].options().device(at::kCPU)));
  for (const KeptWeight& own : kept[0]) all[own.in_model] = mine[own.in_stage];
  receive(all_workers, run, parts, all);
  return all;
}

std::vector<at::Tensor> gather_trained_weights(WorkerWeights& weights, const RunGrid& run) {
  const std::vector<at::Tensor> main_params =
      weights.optimizer.gather_main_params(weights.all_workers);
  if (!run.is_pipeline() || main_params.empty()) return main_params;
  return gather_stages(weights.all_workers, run, weights.model.config(), main_params);
}

}  // namespace distca
