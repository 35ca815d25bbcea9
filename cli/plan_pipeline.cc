#include "cli/plan_pipeline.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "distca/base/text.h"
#include "distca/plan/exchange.h"
#include "distca/plan/pipeline_plan.h"
#include "distca/plan/pipeline_time.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/validate_pipeline.h"
#include "distca/program/overlap.h"
#include "distca/program/pipeline_order.h"
#include "distca/program/validate.h"

namespace distca::cli {
namespace {

using Parts = std::vector<std::shared_ptr<const AttentionExchange>>;

/// [stage] As many layers as can be alike; the first stages have one more.
std::vector<Range> stage_layers(int64_t layers, int stages) {
  std::vector<Range> result;
  int64_t begin = 0;
  for (int stage = 0; stage < stages; ++stage) {
    const int64_t end = begin + layers / stages + (stage < layers % stages ? 1 : 0);
    result.push_back({begin, end});
    begin = end;
  }
  return result;
}

class Pipeline {
 public:
  explicit Pipeline(const PlanArguments& arguments)
      : arguments_(arguments),
        shape_{.layers = stage_layers(arguments.layers, arguments.pipeline),
               .slots = overlap_of(arguments.overlap) == Overlap::kPingPong ? 2 : 1} {
    shape_.nano_batches = arguments.micro_batches * shape_.slots;
    make_request();
    plan_ = make_pipeline_plan(request_);
    checks_ = checks_of(find_scheduler(request_.options.scheduler));
    checks_.profile = request_.profile.get();
    check(validate(plan_, {.plans = checks_}), "plans");
    order_ = pooled_order(shape_, plan_.ticks);
    programs_ = all_programs();
    check(validate(programs_), "programs");
  }

  void print_ticks() const {
    fmt::print(
        "{} stages x {} replicas, {} micro-batches of {} nano-batches, overlap {}: {} ticks a "
        "pass\n\n",
        arguments_.pipeline, request_.grid.replicas, arguments_.micro_batches, shape_.slots,
        arguments_.overlap, plan_.ticks.size() / 2);
    Table table({"tick", "pass", "working", "load", "max/share", "sent MiB", "largest MiB",
                 "planned ms", "ideal ms", "over ideal"});
    const auto ms = [](int64_t ps) {
      return fmt::format("{:.2f}", static_cast<double>(ps) * 1e-9);
    };
    const auto mib = [](int64_t bytes) {
      return fmt::format("{:.0f}", static_cast<double>(bytes) / 0x1p20);
    };
    int64_t planned_ps = 0, ideal_ps = 0;
    int number = 0;
    for (const TickFigures& tick : tick_figures(request_, plan_)) {
      table.add_row({std::to_string(number++), pass_name(tick.pass),
                     fmt::format("{} of {}", tick.working, arguments_.pipeline),
                     with_thousands(tick.load), fmt::format("{:.3f}", tick.max_over_share),
                     mib(tick.bytes), mib(tick.max_send_bytes), ms(tick.planned_ps),
                     ms(tick.ideal_ps), fmt::format("{:.3f}", tick.over_ideal())});
      planned_ps += tick.planned_ps;
      ideal_ps += tick.ideal_ps;
    }
    table.add_row(
        {"all", "", "", "", "", "", "", ms(planned_ps), ms(ideal_ps),
         fmt::format("{:.3f}", static_cast<double>(planned_ps) / static_cast<double>(ideal_ps))});
    fmt::print("{}\n", table.to_string());
  }

  void print_program_of(int rank) const {
    const Program& program = programs_[rank];
    fmt::print(
        "Rank {} of {}: stage {}, layers {} to {}; {} operations, valid with the programs of all "
        "ranks; at most {} nano-batches in flight\n\n{}",
        rank, programs_.size(), program.stage.index, program.stage.layers.begin,
        program.stage.layers.end - 1, program.ops.size(), most_in_flight(program),
        print_program(program));
  }

 private:
  static void check(const std::vector<std::string>& violations, const char* what) {
    DISTCA_CHECK(violations.empty(), "our own {} are invalid: {}", what, violations.front());
  }

  void make_request() {
    PlanArguments of_stage = arguments_;
    of_stage.workers = arguments_.workers / arguments_.pipeline;
    const std::vector<PlanRequest> requests = requests_from(of_stage, shape_.nano_batches);
    const PlanRequest& first = requests.front();
    const int replicas = first.cluster.num_workers;
    request_.grid = {.stages = arguments_.pipeline, .replicas = replicas};
    DISTCA_THROW_IF(arguments_.rank >= request_.grid.num_ranks(), ErrorKind::kUsage,
                    "--rank {}: the pipeline has ranks 0 to {}", arguments_.rank,
                    request_.grid.num_ranks() - 1);
    request_.slots = shape_.slots;
    request_.shape = first.shape;
    request_.options = first.options;
    request_.fill_ticks =
        std::ranges::find(kFillTicks, arguments_.fill_ticks, &FillTicksName::name)->fill_ticks;
    request_.profile = first.profile;
    request_.evenness = evenness_of(hiding_of(overlap_of(arguments_.overlap), shape_.slots));
    request_.cluster = first.cluster;
    for (const PlanRequest& request : requests) {
      request_.nano_batches.push_back(request.nano_batch);
      request_.homes.push_back(make_layout(request));
    }
    ModelShape layers = model_shape(arguments_, first.shape);
    for (const Range& of : shape_.layers) {
      layers.num_layers = of.size();
      const Speeds speeds = stated_speeds(layers, replicas, first.profile.get());
      request_.speeds.insert(request_.speeds.end(), speeds.ranks.begin(), speeds.ranks.end());
    }
    // Every rank serves all layer steps of a tick, which are those of the largest stage.
    for (RankSpeed& speed : request_.speeds)
      speed.attention_ps_per_kload = request_.speeds.front().attention_ps_per_kload;
  }

  /// The plan of an exchange: that of its tick and slot, or, of the layer steps that some stages
  /// lack, one without these stages' rows.
  const Plan& plan_of(const OrderedExchange& exchange) {
    std::vector<int> of_slot;
    for (int stage = 0; stage < arguments_.pipeline; ++stage)
      of_slot.push_back(plan_.nano_batch(exchange.tick, stage, exchange.slot));
    if (of_slot == exchange.nano_batches)
      return plan_.plans[plan_.plan_of_slot[exchange.tick][exchange.slot]];
    rest_.push_back(
        std::make_unique<Plan>(make_slot_plan(request_, exchange.nano_batches, exchange.pass)));
    ValidateOptions checks = checks_;
    checks.even_tokens = false;  // idle stages hold none
    check(validate(*rest_.back(), checks), "plans");
    return *rest_.back();
  }

  /// [rank][exchange]
  std::vector<Parts> all_parts() {
    const AttentionShape& shape = request_.shape;
    const ExchangeTypes types =
        exchange_types(compute_type(shape.element_bytes), /*wide_gradients=*/false);
    std::vector<Parts> parts(request_.grid.num_ranks());
    int64_t messages = 0;
    for (const OrderedExchange& exchange : order_.exchanges) {
      const PlanIndex index(plan_of(exchange));
      for (size_t rank = 0; rank < parts.size(); ++rank) {
        RankExchange rows = index.exchange(static_cast<int>(rank));
        messages += static_cast<int64_t>(rows.sends.size() + rows.receives.size()) *
                    exchange.layer_steps * 3;
        parts[rank].push_back(std::make_shared<const AttentionExchange>(
            make_attention_exchange(std::move(rows), shape, types)));
      }
    }
    check_messages(messages, request_.grid.num_ranks(), "--micro-batches");
    return parts;
  }

  std::vector<Program> all_programs() {
    const std::vector<Parts> parts = all_parts();
    const Grid& grid = request_.grid;
    std::vector<Program> programs;
    for (int rank = 0; rank < grid.num_ranks(); ++rank) {
      const int stage = grid.stage(rank);
      ProgramRequest request{.overlap = overlap_of(arguments_.overlap)};
      request.model = model_shape(arguments_, request_.shape);
      request.model.num_layers = shape_.layers[stage].size();
      request.stage = stage_part(shape_, order_, stage, parts[rank]);
      for (const Layout& home : request_.homes) {
        request.stage->hand_overs.push_back(
            hand_over_messages(request.stage->stage, rank, grid.replicas,
                               home.num_tokens(grid.replica(rank)) * request.model.hidden_size *
                                   request_.shape.element_bytes));
      }
      programs.push_back(build_program(request));
    }
    return programs;
  }

  const PlanArguments& arguments_;
  PipelineShape shape_;
  PipelineRequest request_;
  PipelinePlan plan_;
  ValidateOptions checks_;
  PipelineOrder order_;
  std::vector<Program> programs_;            // [rank]
  std::vector<std::unique_ptr<Plan>> rest_;  // of exchanges that are not a whole tick's
};

}  // namespace

void print_pipeline(const PlanArguments& arguments) {
  DISTCA_THROW_IF(arguments.layers < arguments.pipeline, ErrorKind::kUsage,
                  "--pipeline {} needs --layers of {} or more: every stage has one",
                  arguments.pipeline, arguments.pipeline);
  DISTCA_THROW_IF(arguments.workers % arguments.pipeline != 0, ErrorKind::kUsage,
                  "--workers {} cannot be divided over --pipeline {} stages", arguments.workers,
                  arguments.pipeline);
  const Pipeline pipeline(arguments);  // refuses before anything is printed
  pipeline.print_ticks();
  pipeline.print_program_of(arguments.rank);
}

}  // namespace distca::cli
