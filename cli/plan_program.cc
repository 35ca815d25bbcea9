#include "cli/plan_program.h"

#include <fmt/format.h>

#include <utility>

#include "cli/planned.h"
#include "distca/base/error.h"
#include "distca/program/overlap.h"
#include "distca/program/validate.h"

namespace distca::cli {
namespace {

/// Messages of all ranks' programs together that are checked.
constexpr int64_t kMostMessages = int64_t{1} << 24;

/// One plan a nano-batch.
std::vector<Plan> step_plans(const PlanArguments& arguments) {
  if (!arguments.plan.empty()) {
    const Plan plan = read_and_check(arguments.plan, profile_by_name(arguments.profile)).plan;
    return std::vector<Plan>(arguments.nano_batches, plan);
  }
  std::vector<Plan> plans;
  PlanRequest request = request_from(arguments);
  for (NanoBatch& nano_batch : nano_batches_from(arguments, arguments.nano_batches)) {
    request.nano_batch = std::move(nano_batch);
    plans.push_back(make_and_check(request).plan);
  }
  return plans;
}

/// The programs of all ranks.
std::vector<Program> step_programs(const PlanArguments& arguments, const std::vector<Plan>& plans) {
  const Plan& first = plans.front();
  const int num_ranks = first.cluster.num_servers();
  const ExchangeTypes types =
      exchange_types(compute_type(first.shape.element_bytes), /*wide_gradients=*/false);
  std::vector<std::vector<NanoPart>> parts(num_ranks);
  int64_t messages = 0;
  for (const Plan& plan : plans) {
    const PlanIndex index(plan);
    for (int rank = 0; rank < num_ranks; ++rank) {
      RankExchange rows = index.exchange(rank);
      messages += static_cast<int64_t>(rows.sends.size() + rows.receives.size()) *
                  arguments.layers * (arguments.redispatched ? 5 : 4);
      parts[rank].push_back({.exchange = std::make_shared<const AttentionExchange>(
                                 make_attention_exchange(std::move(rows), first.shape, types)),
                             .redispatched = arguments.redispatched});
    }
  }
  if (messages > kMostMessages) {
    throw Error(ErrorKind::kUsage,
                "--program checks the {} messages of all {} ranks' programs; at most {}: fewer "
                "--layers or --nano-batches",
                messages, num_ranks, kMostMessages);
  }
  std::vector<Program> programs;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ProgramRequest request{.overlap = overlap_of(arguments.overlap),
                           .holds_weights = rank < first.cluster.num_workers,
                           .nano_batches = std::move(parts[rank])};
    request.model = {.num_layers = arguments.layers,
                     .hidden_size = arguments.hidden_size,
                     .intermediate_size = arguments.intermediate_size / arguments.tensor_parallel,
                     .attention = first.shape};
    programs.push_back(build_program(request));
  }
  return programs;
}

}  // namespace

void print_program_of(const PlanArguments& arguments) {
  if (arguments.layers == 0) {
    throw Error(ErrorKind::kUsage, "--program needs --layers of 1 or more");
  }
  const std::vector<Plan> plans = step_plans(arguments);
  const Cluster& cluster = plans.front().cluster;
  if (arguments.rank >= cluster.num_servers()) {
    throw Error(ErrorKind::kUsage, "--rank {}: the plan has ranks 0 to {}", arguments.rank,
                cluster.num_servers() - 1);
  }
  const std::vector<Program> programs = step_programs(arguments, plans);
  const std::vector<std::string> violations = validate(programs);
  DISTCA_CHECK(violations.empty(), "our own programs are invalid: {}", violations.front());
  const Program& program = programs[arguments.rank];
  fmt::print(
      "Rank {} of {}{}, overlap {}, nano-batches: {}, layers: {}; {} operations, valid with the "
      "programs of all ranks\n\n{}",
      arguments.rank, cluster.num_servers(),
      arguments.rank < cluster.num_workers ? "" : " (a dedicated server)", arguments.overlap,
      plans.size(), arguments.layers, program.ops.size(), print_program(program));
}

}  // namespace distca::cli
