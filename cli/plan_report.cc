#include "cli/plan_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "distca/base/error.h"
#include "distca/base/text.h"
#include "distca/config/run_grid.h"
#include "distca/cost/speeds.h"
#include "distca/forecast/batch_programs.h"
#include "distca/plan/lower_bound.h"
#include "distca/plan/pipeline/pipeline_time.h"
#include "distca/plan/plan_summary.h"
#include "distca/plan/scheduler.h"
#include "distca/program/overlap.h"
#include "distca/program/validate/validate.h"

namespace distca::cli {
namespace {

double tolerance(const Plan& plan) {
  return static_cast<double>(*plan.options.tolerance_ppm) * 1e-6;
}

std::string mebibytes(int64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20));
}

int64_t bytes_in(const ServerLoad& load) { return load.receive_bytes + load.o_receive_bytes; }
int64_t bytes_out(const ServerLoad& load) { return load.send_bytes + load.o_send_bytes; }

std::string documents_and_tokens(const NanoBatch& nano_batch) {
  return fmt::format("{} documents, {} tokens",
                     with_thousands(static_cast<int64_t>(nano_batch.documents.size())),
                     with_thousands(nano_batch.num_tokens()));
}

/// Empty, or that the times are of another shape.
std::string profile_note(const AttentionShape& shape, const AttentionProfile* profile) {
  if (profile == nullptr) return "";
  AttentionShape measured = profile->shape;
  measured.mask = shape.mask;
  if (measured == shape) return "";
  return "the profile is of another shape or type than the plan: times go by heads x dims, not by "
         "type\n";
}

/// Plain packing of the same nano-batch without caps, priced as the plan is: what it is compared
/// with.
Plan plain_packing(const Planned& planned) {
  const Plan& plan = planned.plan;
  PlanRequest request{
      plan.nano_batch, plan.cluster, plan.shape, {.scheduler = "local"}, planned.profile};
  request.cluster.max_tokens_per_worker = request.cluster.max_send_bytes =
      request.cluster.max_receive_bytes = request.cluster.max_memory_bytes = 0;
  return make_plan(request);
}

/// [server] load over the share that the capacities give; infinity where that is none.
std::vector<double> load_over_share(const Plan& plan, int64_t ServerLoad::*figure) {
  double total = 0, capacity = 0;
  for (const ServerLoad& load : plan.load) total += static_cast<double>(load.*figure);
  for (const int64_t one : plan.cluster.capacity) capacity += static_cast<double>(one);
  std::vector<double> result;
  for (size_t server = 0; server < plan.load.size(); ++server) {
    const auto load = static_cast<double>(plan.load[server].*figure);
    const auto share = total * static_cast<double>(plan.cluster.capacity[server]) / capacity;
    result.push_back(load == 0 ? 0 : load / share);
  }
  return result;
}

std::string ratio(double value) { return fmt::format("{:.3f}", value); }

double largest(const std::vector<double>& values) { return *std::ranges::max_element(values); }

/// "1.250"; `servers`: how many of them may have some.
std::string max_over_mean_of(const std::vector<double>& values, size_t servers) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return ratio(sum == 0 ? 1 : largest(values) * static_cast<double>(servers) / sum);
}

std::string server_table(const Planned& planned) {
  const Plan& plan = planned.plan;
  const Plan before = plain_packing(planned);
  const bool by_time = before.options.by_time() && plan.options.by_time();
  int64_t ServerLoad::*figure = by_time ? &ServerLoad::time_ns : &ServerLoad::pairs;
  const std::vector<double> was = load_over_share(before, figure);
  const std::vector<double> is = load_over_share(plan, figure);
  const size_t servers = plan.load.size(), workers = plan.layout.workers.size();
  std::vector<double> tokens(servers), memory, in, out;
  Table table({"server", by_time ? "time before" : "pairs before", "after", "tokens", "memory MiB",
               "in MiB", "out MiB"});
  for (size_t server = 0; server < servers; ++server) {
    const ServerLoad& load = plan.load[server];
    const int64_t held = server < workers ? plan.layout.num_tokens(static_cast<int>(server)) : 0;
    tokens[server] = static_cast<double>(held);
    memory.push_back(static_cast<double>(load.memory_bytes));
    in.push_back(static_cast<double>(bytes_in(load)));
    out.push_back(static_cast<double>(bytes_out(load)));
    table.add_row({std::to_string(server), ratio(was[server]), ratio(is[server]),
                   with_thousands(held), mebibytes(load.memory_bytes), mebibytes(bytes_in(load)),
                   mebibytes(bytes_out(load))});
  }
  table.add_row({"max/mean", ratio(largest(was)), ratio(largest(is)),
                 max_over_mean_of(tokens, workers), max_over_mean_of(memory, servers),
                 max_over_mean_of(in, servers), max_over_mean_of(out, servers)});
  return table.to_string();
}

Json shape_json(const AttentionShape& shape) {
  return {{"num_heads", shape.num_heads},           {"num_kv_heads", shape.num_kv_heads},
          {"head_dim_qk", shape.head_dim_qk},       {"head_dim_v", shape.head_dim_v},
          {"element_bytes", shape.element_bytes()}, {"window_left", shape.mask.window_left}};
}

/// Every scheduler on the layout it takes by default; those that know more, with and without it.
std::vector<PlanOptions> all_options(const PlanOptions& asked) {
  std::vector<PlanOptions> all;
  for (const SchedulerEntry& entry : schedulers()) {
    PlanOptions options{.scheduler = std::string(entry.name),
                        .layout = std::string(entry.layout),
                        .tolerance_ppm = asked.tolerance_ppm};
    if (!entry.split_kv) {
      all.push_back(options);
      continue;
    }
    for (const std::string_view layout : {std::string_view("sequential"), entry.layout}) {
      options.layout = layout;
      for (const bool split_kv : {false, true}) {
        options.split_kv = split_kv;
        all.push_back(options);
      }
    }
    options.spread = true;
    all.push_back(options);
  }
  return all;
}

std::string name_of(const PlanOptions& options) {
  return fmt::format("{}{}{}", options.scheduler, options.split_kv ? " +k" : "",
                     options.spread ? " +s" : "");
}

std::vector<std::string> comparison_row(const Plan& plan) {
  const PlanSummary summary = summarize(plan);
  return {name_of(plan.options),
          plan.options.layout,
          ratio(summary.max_over_share),
          summary.tolerance_met ? "yes" : "no",
          with_thousands(summary.tokens_max),
          mebibytes(summary.max_memory_bytes),
          mebibytes(bytes_in(std::ranges::max(plan.load, {}, bytes_in))),
          mebibytes(bytes_out(std::ranges::max(plan.load, {}, bytes_out))),
          mebibytes(summary.qkv_bytes + summary.o_bytes)};
}

}  // namespace

void print_report(const Planned& planned) {
  const Plan& plan = planned.plan;
  const PlanSummary summary = summarize(plan);
  fmt::print(
      "{} on {} workers, {} servers\n"
      "layout {}, scheduler {}, tolerance {:g}: {} tasks\n"
      "load over each server's share; before: plain packing; bytes of Q, K, V, O, one layer, "
      "forward\n{}\n{}",
      documents_and_tokens(plan.nano_batch), plan.cluster.num_workers, plan.cluster.num_servers(),
      plan.options.layout, name_of(plan.options), tolerance(plan),
      with_thousands(static_cast<int64_t>(plan.tasks.size())),
      profile_note(plan.shape, planned.profile.get()), server_table(planned));
  if (!summary.tolerance_met) {
    fmt::print("tolerance missed: {:.6g} > {:g}\n", summary.max_over_share, 1 + tolerance(plan));
  }
  fmt::print(
      "hash {}\nvalid{}\n", plan_hash(plan),
      plan.options.by_time() && !planned.profile ? " (time not checked: give plan.profile)" : "");
}

Json summary_json(const Planned& planned) {
  const Plan& plan = planned.plan;
  const PlanSummary summary = summarize(plan);
  Json json{{"scheduler", plan.options.scheduler},
            {"layout", plan.options.layout},
            {"split_kv", plan.options.split_kv},
            {"spread", plan.options.spread},
            {"tolerance", tolerance(plan)},
            {"price", plan.options.price},
            {"servers", plan.cluster.num_servers()},
            {"max_over_mean_before", summary.max_over_mean_before},
            {"max_over_mean", summary.max_over_mean},
            {"qkv_bytes", summary.qkv_bytes},
            {"o_bytes", summary.o_bytes},
            {"max_send_bytes", summary.max_send_bytes},
            {"max_recv_bytes", summary.max_receive_bytes},
            {"max_memory_bytes", summary.max_memory_bytes},
            {"tokens_max", summary.tokens_max},
            {"tokens_min", summary.tokens_min},
            {"tasks", plan.tasks.size()},
            {"lower_bound_bytes",
             plan.shape.mask.sees_all_before() ? Json(lower_bound_bytes(plan)) : Json()},
            {"tolerance_met", summary.tolerance_met},
            {"shape", shape_json(plan.shape)},
            {"hash", plan_hash(plan)},
            {"violations", Json::array()}};  // an invalid plan ends in an error
  if (plan.options.by_time()) {
    json["max_over_mean_time"] = summary.max_over_mean_time;
    json["max_time_ns"] = summary.max_time_ns;
    json["time_checked"] = planned.profile != nullptr;
  }
  return json;
}

Json weighed_json(const ToleranceChoice& choice) {
  Json list = Json::array();
  for (const WeighedPlan& plan : choice.weighed) {
    list.push_back({{"scheduler", plan.options.scheduler},
                    {"layout", plan.options.layout},
                    {"tolerance", static_cast<double>(*plan.options.tolerance_ppm) * 1e-6},
                    {"max_over_mean", plan.max_over_share},
                    {"bytes", plan.time.bytes},
                    {"layer_ps", plan.time.total_ps},
                    {"exposed_ps", plan.time.exposed_ps},
                    {"chosen", list.size() == choice.chosen}});
  }
  return list;
}

void print_comparison(const PlanRequest& request, bool as_json) {
  Json list = Json::array();
  Table table({"scheduler", "layout", "max/mean", "met", "tokens", "memory MiB", "in MiB",
               "out MiB", "all MiB"});
  std::string refusals;
  for (const PlanOptions& options : all_options(request.options)) {
    PlanRequest one = request;
    one.options = options;
    try {
      const Planned planned = make_and_check(one);
      table.add_row(comparison_row(planned.plan));
      list.push_back(summary_json(planned));
    } catch (const Error& error) {
      table.add_row({name_of(options) + " refused", "", "", "", "", "", "", "", ""});
      refusals +=
          fmt::format("{} on layout {}: {}\n", name_of(options), options.layout, error.what());
      list.push_back({{"scheduler", options.scheduler},
                      {"layout", options.layout},
                      {"split_kv", options.split_kv},
                      {"spread", options.spread},
                      {"refused", error.what()}});
    }
  }
  if (as_json) {
    fmt::print("{}", canonical_json(list));
    return;
  }
  fmt::print(
      "{}, {} servers\n{}\n{}{}"
      "+k: with split-KV, +s: with spread; max/mean by {}; met: the tolerance;\n"
      "tokens, memory, in, out: of the server that has most; bytes of Q, K, V, O, one layer, "
      "forward\n",
      documents_and_tokens(request.nano_batch), request.cluster.num_servers(),
      profile_note(request.shape, request.profile.get()), table.to_string(), refusals,
      request.profile ? "time" : "pairs");
}

void print_ticks(const PipelineParts& parts, std::string_view overlap) {
  const PipelineRequest& request = parts.request();
  fmt::print(
      "{} stages x {} replicas, {} micro-batches of {} nano-batches, overlap {}: {} ticks a "
      "pass\nsent, largest: of one layer, forward (Q, K, V and O; largest: Q, K and V of the rank "
      "that sends most); ms: of all layers of a stage\n\n",
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

void print_orders(const std::vector<OrderForecast>& orders, bool as_json) {
  Json list = Json::array();
  Table table({"pipeline_schedule", "outstanding", "step ms", "busy ms", "step / busy", "in flight",
               "peak GiB"});
  std::string refusals;
  for (const OrderForecast& order : orders) {
    if (!order.refused.empty()) {
      list.push_back({{"pipeline_schedule", order.schedule},
                      {"outstanding_weight_gradients", order.outstanding},
                      {"refused", order.refused}});
      table.add_row({order.schedule, std::to_string(order.outstanding), "refused", "", "", "", ""});
      refusals += fmt::format("{} with {}: {}\n", order.schedule, order.outstanding, order.refused);
      continue;
    }
    const double over_busy = order.step_s / order.busy_s;
    list.push_back({{"pipeline_schedule", order.schedule},
                    {"outstanding_weight_gradients", order.outstanding},
                    {"step_ms", 1e3 * order.step_s},
                    {"busy_ms", 1e3 * order.busy_s},
                    {"step_over_busy", over_busy},
                    {"nano_batches_in_flight", order.nano_batches_in_flight},
                    {"peak_bytes", std::llround(order.peak_bytes)}});
    table.add_row({order.schedule, std::to_string(order.outstanding),
                   fmt::format("{:.2f}", 1e3 * order.step_s),
                   fmt::format("{:.2f}", 1e3 * order.busy_s), fmt::format("{:.3f}", over_busy),
                   std::to_string(order.nano_batches_in_flight),
                   fmt::format("{:.3f}", order.peak_bytes / 0x1p30)});
  }
  if (as_json) return fmt::print("{}", canonical_json({{"orders", std::move(list)}}));
  fmt::print(
      "Times are those of matrix products and core attention at {} TFLOP/s, if messages take "
      "none.\n"
      "outstanding: parallel.outstanding_weight_gradients; in flight: nano-batches, and peak: "
      "memory\n"
      "of tensors, each of the rank with most\n\n{}{}\n",
      kAssumedTflops, table.to_string(), refusals);
}

void print_program_of(const Config& config, const BatchPlans& plans, int num_workers, int rank) {
  const RunGrid run = run_grid(config, num_workers);
  const int ranks = num_ranks(config, num_workers);
  DISTCA_THROW_IF(rank >= ranks, ErrorKind::kUsage, "--program {}: the run has ranks 0 to {}", rank,
                  ranks - 1);
  const BatchPrograms programs(config, plans, ProgramRequest::Kind::kTrain, num_workers);
  const Program program = programs.of(rank);
  check_size_together(program, ranks, "--program");
  std::vector<std::string> violations = validate(program);
  if (violations.empty()) violations = programs.violations();
  DISTCA_CHECK(violations.empty(), "our own programs are invalid: {}", violations.front());
  std::vector<std::string> places;
  std::string in_flight;
  if (rank >= num_workers) {
    places.emplace_back("a dedicated server");
  } else if (run.is_pipeline()) {
    const Stage stage = run.stage_of(rank);
    places.push_back(fmt::format("stage {}, layers {} to {}", stage.index, stage.layers.begin,
                                 stage.layers.end - 1));
    in_flight = fmt::format("; at most {} nano-batches in flight", most_in_flight(program));
  }
  if (run.tensor > 1) places.push_back(fmt::format("tensor {}", run.tensor_index(rank)));
  const std::string place = places.empty() ? "" : fmt::format(" ({})", fmt::join(places, ", "));
  fmt::print(
      "Rank {} of {}{}, overlap {}, nano-batches: {}, layers: {}; {} operations, valid with the "
      "programs of all ranks{}\n\n{}",
      rank, ranks, place, overlap_name(config.train.overlap), config.batch.nano_batches,
      config.model.num_hidden_layers, program.ops.size(), in_flight, print_program(program));
}

}  // namespace distca::cli
