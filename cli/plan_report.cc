#include "cli/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/plan_bars.h"
#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/base/text.h"
#include "distca/plan/lower_bound.h"
#include "distca/plan/plan_summary.h"
#include "distca/plan/scheduler.h"

namespace distca::cli {
namespace {

constexpr int kMostServersInMatrix = 16;
constexpr int kMostServersForWhatIf = 1024;  // planning again takes a while on more

double tolerance(const Plan& plan) {
  return static_cast<double>(plan.options.tolerance_ppm) * 1e-6;
}

std::string ratio(double value) {
  return std::isinf(value) ? "load on servers of capacity 0" : fmt::format("{:.3f}", value);
}

std::string plural(int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string shape_words(const AttentionShape& shape) {
  const std::string dims =
      shape.head_dim_qk == shape.head_dim_v
          ? std::to_string(shape.head_dim_qk)
          : fmt::format("{}, of values {}", shape.head_dim_qk, shape.head_dim_v);
  return fmt::format("{}, {}, head_dim {}", plural(shape.num_heads, "query head"),
                     plural(shape.num_kv_heads, "key head"), dims);
}

/// What the bytes are bytes of.
std::string shape_line(const AttentionShape& shape, const std::optional<AskedShape>& asked) {
  const std::string window = shape.window_left < 0 ? "all" : std::to_string(shape.window_left + 1);
  if (!asked) {
    return fmt::format("{}, {} bytes an element, window {}", shape_words(shape),
                       shape.element_bytes, window);
  }
  const std::string part =
      asked->tensor_parallel == 1
          ? ""
          : fmt::format(" (one of {} tensor-parallel ranks)", asked->tensor_parallel);
  return fmt::format("{}, {}{}, window {}; memory of {} of {}", shape_words(shape), asked->dtype,
                     part, window, asked->all_activations ? "all activations" : "Q, K, V, O",
                     plural(asked->layers, "layer"));
}

/// Empty, or that the times are of another shape.
std::string profile_note(const AttentionShape& shape, const AttentionProfile* profile) {
  if (profile == nullptr) return "";
  AttentionShape measured = profile->shape;
  measured.window_left = shape.window_left;
  if (measured == shape) return "";
  return fmt::format(
      "the profile is of {} of {} bytes an element, the plan of {} of {}: times go by heads x "
      "dims, not by type\n",
      shape_words(measured), measured.element_bytes, shape_words(shape), shape.element_bytes);
}

std::string timing_words(const Timing& timing) {
  return fmt::format("{:.3f} ms ({})", timing.seconds * 1e3,
                     timing.calls == 1 ? "one call" : fmt::format("best of {}", timing.calls));
}

const char* balanced_unit(bool by_time) {
  return by_time ? "max/mean by time" : "max/mean by pairs";
}

/// A table in which a refusal is a row, explained below it.
class PlanTable {
 public:
  explicit PlanTable(const std::vector<std::string>& header)
      : columns_(header.size()), table_(header) {}
  void add_row(std::vector<std::string> cells) { table_.add_row(std::move(cells)); }
  void add_refusal(const std::string& name, const std::string& layout, const Error& error) {
    std::vector<std::string> row{name + " refused"};
    row.resize(columns_);
    table_.add_row(row);
    refusals_ += fmt::format("{}{}{}: {}\n", name, layout.empty() ? "" : " on layout ", layout,
                             error.what());
  }
  std::string to_string() const { return table_.to_string() + refusals_; }

 private:
  size_t columns_;
  Table table_;
  std::string refusals_;
};

std::string what_if(const PlanRequest& request, const Plan& chosen) {
  std::vector<int64_t> tolerances = {0, 5'000, 20'000, 50'000, 100'000, 200'000};
  tolerances.push_back(chosen.options.tolerance_ppm);
  std::sort(tolerances.begin(), tolerances.end());
  tolerances.erase(std::unique(tolerances.begin(), tolerances.end()), tolerances.end());
  PlanTable table({"tolerance", balanced_unit(request.profile != nullptr), "met", "QKV MiB",
                   "O MiB", "largest in", "tasks"});
  for (const int64_t ppm : tolerances) {
    PlanRequest other = request;
    other.options.tolerance_ppm = ppm;
    const bool is_chosen = ppm == chosen.options.tolerance_ppm;
    std::string name =
        fmt::format("{:g}{}", static_cast<double>(ppm) * 1e-6, is_chosen ? " (chosen)" : "");
    try {
      const Plan plan = is_chosen ? chosen : make_plan(other);
      const PlanSummary summary = summarize(plan);
      table.add_row({name, ratio(summary.max_over_share), summary.tolerance_met ? "yes" : "no",
                     mebibytes(summary.qkv_bytes), mebibytes(summary.o_bytes),
                     mebibytes(summary.max_receive_bytes), std::to_string(plan.tasks.size())});
    } catch (const Error& error) {
      table.add_refusal(name, "", error);
    }
  }
  return table.to_string();
}

void print_evenness(const Planned& planned, const PlanSummary& summary, const Plan& before) {
  const Plan& plan = planned.plan;
  fmt::print("max/mean    {} before, {} after by pairs\n", ratio(summary.max_over_mean_before),
             ratio(summary.max_over_mean));
  if (planned.by_time()) {
    const bool known = balanced_figure(before, plan) == &ServerLoad::time_ns;
    fmt::print("            {}{} after by predicted time ({}), slowest {:.3f} ms a layer\n",
               known ? ratio(max_over_mean_time(before)) + " before, " : "",
               ratio(summary.max_over_mean_time), plan.options.price,
               static_cast<double>(summary.max_time_ns) * 1e-6);
    const std::string note = profile_note(plan.shape, planned.profile.get());
    if (!note.empty()) fmt::print("            {}", note);
  }
  if (summary.tolerance_met) return;
  fmt::print("tolerance missed: {} > {:g}\n",
             std::isinf(summary.max_over_share) ? ratio(summary.max_over_share)
                                                : fmt::format("{:.6g}", summary.max_over_share),
             1 + tolerance(plan));
}

std::string bound_words(const Plan& plan, const PlanSummary& summary) {
  if (plan.shape.window_left >= 0) return "no bound known with a window";
  const int64_t bound = lower_bound_bytes(plan);
  const auto bytes = static_cast<double>(summary.qkv_bytes + summary.o_bytes);
  // Less even plans may move less.
  const bool applies = bound > 0 && summary.tolerance_met;
  return fmt::format(
      "at least {} move with whole-context tasks within the tolerance, by pairs, on any layout{}{}",
      human_bytes(bound),
      applies ? fmt::format(": {:.2f} x that", bytes / static_cast<double>(bound)) : "",
      plan.options.split_kv ? "; split-KV may go below it" : "");
}

std::string link_words(const Link& link) {
  return fmt::format("{:g} GB/s and {:g} us a message",
                     static_cast<double>(link.bytes_per_us) * 1e-3,
                     static_cast<double>(link.latency_ns) * 1e-3);
}

void print_bytes(const Planned& planned, const PlanSummary& summary) {
  const Plan& plan = planned.plan;
  const Cluster& cluster = plan.cluster;
  fmt::print("shape       {}\n", shape_line(plan.shape, planned.asked));
  fmt::print("bytes       Q, K, V {} there, O {} back; a layer, forward, all servers\n",
             human_bytes(summary.qkv_bytes), human_bytes(summary.o_bytes));
  fmt::print("            {}\n", bound_words(plan, summary));
  fmt::print("one server  sends at most {}, receives at most {} of Q, K, V; keeps at most {}\n",
             human_bytes(summary.max_send_bytes), human_bytes(summary.max_receive_bytes),
             human_bytes(summary.max_memory_bytes));
  fmt::print(
      "wire        {:.3f} ms for the rank that sends or receives longest, Q, K, V and O; "
      "assumed links: {} between nodes{}\n",
      static_cast<double>(planned.wire_ns) * 1e-6, link_words(cluster.between),
      cluster.ranks_per_node > 1 ? fmt::format(", {} inside", link_words(cluster.inside)) : "");
  fmt::print("time        {}metadata of all ranks {}\n",
             planned.plan_time ? fmt::format("plan {}, ", timing_words(*planned.plan_time)) : "",
             timing_words(planned.metadata_time));
}

Json shape_json(const Planned& planned) {
  const AttentionShape& shape = planned.plan.shape;
  Json json{{"num_heads", shape.num_heads},         {"num_kv_heads", shape.num_kv_heads},
            {"head_dim_qk", shape.head_dim_qk},     {"head_dim_v", shape.head_dim_v},
            {"element_bytes", shape.element_bytes}, {"window_left", shape.window_left}};
  if (!planned.asked) return json;
  json["dtype"] = planned.asked->dtype;
  json["tensor_parallel"] = planned.asked->tensor_parallel;
  json["layers"] = planned.asked->layers;
  json["all_activations"] = planned.asked->all_activations;
  return json;
}

Json summary_json(const Planned& planned) {
  const Plan& plan = planned.plan;
  const PlanSummary summary = summarize(plan);
  Json json{
      {"scheduler", plan.options.scheduler},
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
      {"lower_bound_bytes", plan.shape.window_left < 0 ? Json(lower_bound_bytes(plan)) : Json()},
      {"tolerance_met", summary.tolerance_met},
      {"wire_ns", planned.wire_ns},
      {"shape", shape_json(planned)},
      {"metadata_us", std::llround(planned.metadata_time.seconds * 1e6)},
      {"hash", plan_hash(plan)},
      {"violations", Json::array()}};  // an invalid plan ends in an error
  if (planned.plan_time) json["plan_us"] = std::llround(planned.plan_time->seconds * 1e6);
  if (planned.by_time()) {
    json["max_over_mean_time"] = summary.max_over_mean_time;
    json["max_time_ns"] = summary.max_time_ns;
    json["time_checked"] = planned.profile != nullptr;
  }
  return json;
}

/// Every scheduler on the layout it takes by default; those that know more, with and without it.
std::vector<PlanOptions> all_options(const PlanOptions& asked) {
  std::vector<PlanOptions> all;
  for (const SchedulerEntry& entry : schedulers()) {
    PlanOptions options{.scheduler = std::string(entry.name),
                        .layout = std::string(entry.layout),
                        .tolerance_ppm = asked.tolerance_ppm};
    if (entry.split_kv) {
      options.layout = "sequential";
      all.push_back(options);
      options.split_kv = true;
      all.push_back(options);
      options.split_kv = false;
      options.layout = entry.layout;
    }
    all.push_back(options);
    if (!entry.split_kv) continue;
    options.split_kv = true;
    all.push_back(options);
    options.spread = true;
    all.push_back(options);
  }
  return all;
}

std::string short_name_of(const PlanOptions& options) {
  return fmt::format("{}{}{}", options.scheduler, options.split_kv ? " +k" : "",
                     options.spread ? " +s" : "");
}

std::string name_of(const PlanOptions& options) {
  return fmt::format("{}{}{}", options.scheduler, options.split_kv ? " +split-kv" : "",
                     options.spread ? " +spread" : "");
}

}  // namespace

void print_report(const Planned& planned, const PlanRequest* request) {
  const Plan& plan = planned.plan;
  const PlanSummary summary = summarize(plan);
  const Plan before = plain_packing(plan, planned.profile);
  fmt::print("{} documents, {} tokens on {} workers ({} to {} each), {} servers\n",
             with_thousands(static_cast<int64_t>(plan.nano_batch.documents.size())),
             with_thousands(plan.nano_batch.num_tokens()), plan.cluster.num_workers,
             with_thousands(summary.tokens_min), with_thousands(summary.tokens_max),
             plan.cluster.num_servers());
  fmt::print("layout {}, scheduler {}, tolerance {:g}: {} tasks; before = plain packing\n\n",
             plan.options.layout, name_of(plan.options), tolerance(plan),
             with_thousands(static_cast<int64_t>(plan.tasks.size())));
  print_bars(before, plan);
  print_evenness(planned, summary, before);
  print_bytes(planned, summary);
  if (plan.cluster.num_servers() <= kMostServersInMatrix && summary.qkv_bytes > 0) {
    fmt::print("\nexchange, MiB of Q, K, V\n{}", exchange_matrix(plan));
  }
  if (request != nullptr && plan.cluster.num_servers() <= kMostServersForWhatIf) {
    fmt::print("\nwhat another tolerance would cost\n{}", what_if(*request, plan));
  }
  fmt::print("\nhash        {}\nvalid{}\n", plan_hash(plan),
             planned.by_time() && !planned.profile ? " (time not checked: give --profile)" : "");
}

void print_summary_json(const Planned& planned) {
  fmt::print("{}", canonical_json(summary_json(planned)));
}

void print_comparison(const PlanRequest& request, const AskedShape& asked, bool as_json) {
  Json list = Json::array();
  PlanTable table({"scheduler", "layout", "tol.", "max/mean", "met", "tokens", "QKV MiB", "O MiB",
                   "out MiB", "in MiB", "tasks", "plan ms"});
  for (const PlanOptions& options : all_options(request.options)) {
    PlanRequest one = request;
    one.options = options;
    try {
      const Planned planned = make_and_check(one, asked);
      const PlanSummary summary = summarize(planned.plan);
      table.add_row({short_name_of(options), planned.plan.options.layout,
                     fmt::format("{:g}", tolerance(planned.plan)), ratio(summary.max_over_share),
                     summary.tolerance_met ? "yes" : "no", with_thousands(summary.tokens_max),
                     mebibytes(summary.qkv_bytes), mebibytes(summary.o_bytes),
                     mebibytes(summary.max_send_bytes), mebibytes(summary.max_receive_bytes),
                     std::to_string(planned.plan.tasks.size()),
                     fmt::format("{:.3f}", planned.plan_time->seconds * 1e3)});
      list.push_back(summary_json(planned));
    } catch (const Error& error) {
      table.add_refusal(short_name_of(options), options.layout, error);
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
      "{} documents, {} tokens, {} servers; bytes of one layer, forward, all "
      "servers\n{}\n{}\n{}"
      "+k: with split-KV, +s: with spread; tol.: tolerance; {}; tokens: of the worker that "
      "has most;\nout, in: of the server that sends, receives most; plan ms: best of 3 where a "
      "call "
      "takes less than 50 ms\n",
      with_thousands(static_cast<int64_t>(request.nano_batch.documents.size())),
      with_thousands(request.nano_batch.num_tokens()), request.cluster.num_servers(),
      shape_line(request.shape, asked), profile_note(request.shape, request.profile.get()),
      table.to_string(), balanced_unit(request.profile != nullptr));
}

}  // namespace distca::cli
