#include "cli/plan_pipeline.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "distca/base/text.h"
#include "distca/cost/stage_layers.h"
#include "distca/plan/pipeline/pipeline_plan.h"
#include "distca/plan/pipeline/pipeline_time.h"
#include "distca/plan/scheduler.h"
#include "distca/program/overlap.h"
#include "distca/program/validate/validate.h"

namespace distca::cli {
namespace {

class Pipeline {
 public:
  explicit Pipeline(const PlanArguments& arguments) : arguments_(arguments) {
    make_request();
    parts_ = std::make_unique<PipelineParts>(
        PipelineStepRequest{.request = request_, .layers = layers_});
    ValidateOptions checks = checks_of(find_scheduler(request_.options.scheduler));
    checks.profile = request_.profile.get();
    check(parts_->violations(checks), "plans");
    programs_ = all_programs();
    check(validate(programs_), "programs");
  }

  const PipelineParts& parts() const { return *parts_; }

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
    request_.slots = overlap_of(arguments_.overlap) == Overlap::kPingPong ? 2 : 1;
    const std::vector<PlanRequest> requests =
        requests_from(of_stage, static_cast<int>(arguments_.micro_batches) * request_.slots);
    const PlanRequest& first = requests.front();
    const int replicas = first.cluster.num_workers;
    request_.grid = {.stages = arguments_.pipeline, .replicas = replicas};
    DISTCA_THROW_IF(arguments_.rank >= request_.grid.num_ranks(), ErrorKind::kUsage,
                    "--rank {}: the pipeline has ranks 0 to {}", arguments_.rank,
                    request_.grid.num_ranks() - 1);
    request_.shape = first.shape;
    request_.options = first.options;
    request_.fill_ticks =
        std::ranges::find(kFillTicks, arguments_.fill_ticks, &FillTicksName::name)->fill_ticks;
    request_.profile = first.profile;
    request_.evenness = evenness_of(hiding_of(overlap_of(arguments_.overlap), request_.slots));
    request_.cluster = first.cluster;
    request_.bytes_per_us = first.cluster.between.bytes_per_us;
    for (const PlanRequest& request : requests) {
      request_.nano_batches.push_back(request.nano_batch);
      request_.homes.push_back(make_layout(request));
    }
    ModelShape layers = model_shape(arguments_, first.shape);
    layers_ = even_stages(layers, arguments_.pipeline);
    request_.layer_steps = layers_.front().size();
    for (const Range& of : layers_) {
      layers.num_layers = of.size();
      const Speeds speeds = stated_speeds(layers, replicas, first.profile.get());
      request_.speeds.insert(request_.speeds.end(), speeds.ranks.begin(), speeds.ranks.end());
    }
    // Every rank serves all layer steps of a tick, which are those of the largest stage.
    for (RankSpeed& speed : request_.speeds)
      speed.attention_ps_per_kload = request_.speeds.front().attention_ps_per_kload;
  }

  std::vector<Program> all_programs() {
    const AttentionShape& shape = request_.shape;
    const Grid& grid = request_.grid;
    const ModelShape model = model_shape(arguments_, shape);
    const PipelineParts::Format format = {
        .types = exchange_types(compute_type(shape.element_bytes), /*wide_gradients=*/false),
        .row_bytes = model.hidden_size * shape.element_bytes};
    std::vector<Program> programs;
    int64_t messages = 0;
    for (int rank = 0; rank < grid.num_ranks(); ++rank) {
      ProgramRequest request{.overlap = overlap_of(arguments_.overlap)};
      request.model = model;
      request.model.num_layers = layers_[grid.stage(rank)].size();
      request.stage = parts_->part(rank, format);
      for (const auto& [part, layer_steps] : request.stage->exchanges)
        messages += static_cast<int64_t>(part->rows.sends.size() + part->rows.receives.size()) *
                    layer_steps * 3;
      check_messages(messages, grid.num_ranks(), "--micro-batches");
      programs.push_back(build_program(request));
    }
    return programs;
  }

  const PlanArguments& arguments_;
  std::vector<Range> layers_;  // [stage]
  PipelineRequest request_;
  std::unique_ptr<PipelineParts> parts_;
  std::vector<Program> programs_;  // [rank]
};

}  // namespace

void print_ticks(const PipelineParts& parts, std::string_view overlap) {
  const PipelineRequest& request = parts.request();
  fmt::print(
      "{} stages x {} replicas, {} micro-batches of {} nano-batches, overlap {}: {} ticks a "
      "pass\n\n",
      request.grid.stages, request.grid.replicas,
      (static_cast<int>(request.nano_batches.size()) + request.slots - 1) / request.slots,
      request.slots, overlap, parts.ticks().size() / 2);
  Table table({"tick", "pass", "working", "load", "max/share", "sent MiB", "largest MiB",
               "exchange ms", "exposed ms", "planned ms", "ideal ms", "over ideal"});
  const auto ms = [](int64_t ps) { return fmt::format("{:.2f}", static_cast<double>(ps) * 1e-9); };
  const auto mib = [](int64_t bytes) {
    return fmt::format("{:.0f}", static_cast<double>(bytes) / 0x1p20);
  };
  int64_t exposed_ps = 0, planned_ps = 0, ideal_ps = 0;
  int number = 0;
  for (const TickFigures& tick : tick_figures(request, *parts.ticks_plan())) {
    table.add_row({std::to_string(number++), pass_name(tick.pass),
                   fmt::format("{} of {}", tick.working, request.grid.stages),
                   with_thousands(tick.load), fmt::format("{:.3f}", tick.max_over_share),
                   mib(tick.bytes), mib(tick.max_send_bytes), ms(tick.exchange_ps),
                   ms(tick.exposed_ps), ms(tick.planned_ps), ms(tick.ideal_ps),
                   fmt::format("{:.3f}", tick.over_ideal())});
    exposed_ps += tick.exposed_ps;
    planned_ps += tick.planned_ps;
    ideal_ps += tick.ideal_ps;
  }
  table.add_row(
      {"all", "", "", "", "", "", "", "", ms(exposed_ps), ms(planned_ps), ms(ideal_ps),
       fmt::format("{:.3f}", static_cast<double>(planned_ps) / static_cast<double>(ideal_ps))});
  fmt::print("{}\n", table.to_string());
}

void print_pipeline(const PlanArguments& arguments) {
  DISTCA_THROW_IF(arguments.layers < arguments.pipeline, ErrorKind::kUsage,
                  "--pipeline {} needs --layers of {} or more: every stage has one",
                  arguments.pipeline, arguments.pipeline);
  DISTCA_THROW_IF(arguments.workers % arguments.pipeline != 0, ErrorKind::kUsage,
                  "--workers {} cannot be divided over --pipeline {} stages", arguments.workers,
                  arguments.pipeline);
  const Pipeline pipeline(arguments);  // refuses before anything is printed
  print_ticks(pipeline.parts(), arguments.overlap);
  pipeline.print_program_of(arguments.rank);
}

}  // namespace distca::cli
