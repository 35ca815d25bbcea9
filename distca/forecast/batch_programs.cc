#include "distca/forecast/batch_programs.h"

#include <algorithm>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/text.h"
#include "distca/forecast/step_program.h"
#include "distca/program/validate/validate.h"

namespace distca {

BatchPrograms::BatchPrograms(const Config& config, const BatchPlans& plans,
                             ProgramRequest::Kind kind, int num_workers)
    : config_(config),
      plans_(plans),
      kind_(kind),
      run_(run_grid(config, num_workers)),
      indices_(plans.plans.begin(), plans.plans.end()) {}

Program BatchPrograms::of(int rank, std::shared_ptr<const GradientExchange> gradients) const {
  const StepOptions options = step_options(config_);
  const int server = run_.server_of(rank);
  if (plans_.pipeline) {
    const PipelineParts::Format format = {
        .types = exchange_types(config_.model.dtype, options.wide_gradients),
        .row_bytes = p2p_bytes(config_.model, 1),
        .tensor = run_.stage_of(rank).tensor};
    return step_program(config_.model, options, plans_.pipeline->part(server, format), kind_,
                        std::move(gradients), rank);
  }
  std::vector<NanoPart> parts;
  for (size_t i = 0; i < indices_.size(); ++i) {
    parts.push_back(
        {attention_exchange(indices_[i], server, config_.model, options, i % plans_.num_windows),
         plans_.redispatched});
  }
  return step_program(config_.model, options, rank < run_.num_workers(), kind_, std::move(parts),
                      std::move(gradients), rank);
}

Program BatchPrograms::of(int rank, int64_t most_buckets) const {
  const bool sums = kind_ == ProgramRequest::Kind::kTrain;
  return of(rank, sums ? rank_gradients(config_, run_, rank, most_buckets) : nullptr);
}

std::vector<std::string> BatchPrograms::violations() const {
  // Up to 16 workers, that is all buckets that there are. Order and waits of a bucket's operations
  // do not depend on how many there are.
  constexpr int64_t kMostMessages = int64_t{1} << 20;
  const int64_t workers = run_.num_workers();
  const auto most_buckets =
      std::clamp<int64_t>(kMostMessages / (workers * workers), 2, kMostBuckets);
  std::vector<Program> all;
  for (int rank = 0; rank < run_.num_ranks(); ++rank) all.push_back(of(rank, most_buckets));
  return validate(all);
}

void check_size_together(const Program& program, int ranks, std::string_view who, int64_t most) {
  auto size = static_cast<int64_t>(program.ops.size());
  for (const Op& op : program.ops) {
    size += static_cast<int64_t>(program.sends(op).messages.size() +
                                 program.receives(op).messages.size());
  }
  DISTCA_THROW_IF(size * ranks > most, ErrorKind::kUsage,
                  "{} looks at the programs of all {} ranks, each with some {} operations and "
                  "messages; at most {} in all: lower model.num_hidden_layers or "
                  "batch.nano_batches",
                  who, ranks, with_thousands(size), with_thousands(most));
}

int64_t bytes_between_nodes(const Program& program, int rank, int64_t ranks_per_node) {
  int64_t bytes = 0;
  for (const Op& op : program.ops) {
    if (op.stream != Stream::kComm || op.bucket >= 0) continue;
    for (const PeerMessage& message : program.sends(op).messages) {
      const int peer = program.rank_of(op, message.peer);
      if (peer / ranks_per_node != rank / ranks_per_node) bytes += message.bytes;
    }
  }
  return bytes;
}

std::shared_ptr<const GradientExchange> rank_gradients(const Config& config, const RunGrid& run,
                                                       int rank, int64_t most_buckets) {
  if (rank >= run.num_workers()) return nullptr;
  return gradient_exchange(config.model, step_options(config), run.stage_of(rank), rank,
                           run.grid.replicas, most_buckets);
}

}  // namespace distca
