#include "cli/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/base/text.h"
#include "distca/plan/exchange.h"
#include "distca/plan/lower_bound.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/summary.h"
#include "distca/plan/validate.h"

namespace distca::cli {
namespace {

constexpr size_t kMostServersShown = 32;
constexpr size_t kShownOfMore = 16;  // the most loaded ones
constexpr int kMostServersInMatrix = 16;
constexpr int kMostServersForWhatIf = 1024;  // planning again takes a while on more

std::string mebibytes(int64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20));
}
double tolerance(const Plan& plan) {
  return static_cast<double>(plan.options.tolerance_ppm) * 1e-6;
}

/// Plain packing of the same nano-batch: what everything is compared with.
Plan plain_packing(const Plan& plan) {
  PlanRequest request{plan.nano_batch, plan.cluster, plan.shape, {.scheduler = "local"}};
  request.cluster.max_tokens_per_worker = request.cluster.max_send_bytes =
      request.cluster.max_receive_bytes = request.cluster.max_memory_bytes = 0;
  return make_plan(request);
}

/// One quantity of every server before and after, as bars on one scale.
class BarTable {
 public:
  BarTable(const std::vector<size_t>& servers, const std::string& unit)
      : servers_(servers), table_({"server", unit + " before", "", "after", ""}) {}

  std::string to_string(const std::function<double(size_t)>& before,
                        const std::function<double(size_t)>& after, const char* format) {
    constexpr int kBarWidth = 24;
    double most = 1e-9;
    for (const size_t server : servers_) most = std::max({most, before(server), after(server)});
    for (const size_t server : servers_) {
      const double was = before(server), is = after(server);
      table_.add_row({std::to_string(server), bar(was / most, kBarWidth),
                      fmt::format(fmt::runtime(format), was), bar(is / most, kBarWidth),
                      fmt::format(fmt::runtime(format), is)});
    }
    return table_.to_string();
  }

 private:
  const std::vector<size_t>& servers_;
  Table table_;
};

/// All servers, or of many the most loaded ones before balancing.
std::vector<size_t> servers_shown(const Plan& before) {
  std::vector<size_t> servers(before.load.size());
  std::iota(servers.begin(), servers.end(), size_t{0});
  if (servers.size() <= kMostServersShown) return servers;
  std::stable_sort(servers.begin(), servers.end(), [&before](size_t a, size_t b) {
    return before.load[a].pairs > before.load[b].pairs;
  });
  servers.resize(kShownOfMore);
  return servers;
}

void print_bars(const Plan& before, const Plan& after) {
  const std::vector<size_t> servers = servers_shown(before);
  double total = 0;
  for (const ServerLoad& load : after.load) total += static_cast<double>(load.pairs);
  const double mean = std::max(1.0, total / static_cast<double>(after.load.size()));
  const auto print = [&](const char* unit, const char* format, auto value) {
    fmt::print("{}{}\n",
               BarTable(servers, unit)
                   .to_string([&](size_t server) { return value(before, server); },
                              [&](size_t server) { return value(after, server); }, format),
               servers.size() < after.load.size() ? "...\n" : "");
  };
  constexpr double kMib = 1 << 20;
  print("load (of the mean)", "{:.3f}", [mean](const Plan& plan, size_t server) {
    return static_cast<double>(plan.load[server].pairs) / mean;
  });
  print("tokens", "{:.0f}", [](const Plan& plan, size_t server) {
    const bool holds = server < plan.layout.workers.size();
    return holds ? static_cast<double>(plan.layout.num_tokens(static_cast<int>(server))) : 0.0;
  });
  print("memory (MiB)", "{:.1f}", [](const Plan& plan, size_t server) {
    return static_cast<double>(plan.load[server].memory_bytes) / kMib;
  });
  print("in: Q, K, V, O (MiB)", "{:.1f}", [](const Plan& plan, size_t server) {
    const ServerLoad& load = plan.load[server];
    return static_cast<double>(load.receive_bytes + load.o_receive_bytes) / kMib;
  });
  print("out: Q, K, V, O (MiB)", "{:.1f}", [](const Plan& plan, size_t server) {
    const ServerLoad& load = plan.load[server];
    return static_cast<double>(load.send_bytes + load.o_send_bytes) / kMib;
  });
}

/// MiB of Q, K, V from each rank (row) to each (column).
std::string matrix(const Plan& plan) {
  const PlanIndex index(plan);
  const size_t ranks = plan.load.size();
  std::vector<std::string> header = {"from \\ to"};
  for (size_t to = 0; to < ranks; ++to) header.push_back(std::to_string(to));
  Table table(header);
  for (size_t from = 0; from < ranks; ++from) {
    std::vector<std::string> row = {std::to_string(from)};
    row.resize(ranks + 1, "-");
    for (const PeerTransfer& transfer : index.exchange(static_cast<int>(from)).sends) {
      row[transfer.peer + 1] = mebibytes(transfer.q_tokens * plan.shape.q_token_bytes() +
                                         transfer.kv_tokens * plan.shape.kv_token_bytes());
    }
    table.add_row(row);
  }
  return table.to_string();
}

std::string what_if(const PlanRequest& request, const Plan& chosen) {
  std::vector<int64_t> tolerances = {0, 5'000, 20'000, 50'000, 100'000, 200'000};
  tolerances.push_back(chosen.options.tolerance_ppm);
  std::sort(tolerances.begin(), tolerances.end());
  tolerances.erase(std::unique(tolerances.begin(), tolerances.end()), tolerances.end());
  Table table({"tolerance", "max/mean", "QKV MiB", "O MiB", "largest in", "tasks"});
  for (const int64_t ppm : tolerances) {
    PlanRequest other = request;
    other.options.tolerance_ppm = ppm;
    const bool is_chosen = ppm == chosen.options.tolerance_ppm;
    std::string name =
        fmt::format("{:g}{}", static_cast<double>(ppm) * 1e-6, is_chosen ? " (chosen)" : "");
    try {
      const Plan plan = is_chosen ? chosen : make_plan(other);
      const PlanSummary summary = summarize(plan);
      table.add_row({name, fmt::format("{:.3f}", summary.max_over_mean),
                     mebibytes(summary.qkv_bytes), mebibytes(summary.o_bytes),
                     mebibytes(summary.max_receive_bytes), std::to_string(plan.tasks.size())});
    } catch (const Error& error) {
      table.add_row({name, error.what()});
    }
  }
  return table.to_string();
}

void print_times(const Planned& planned, const PlanSummary& summary) {
  const Plan& plan = planned.plan;
  fmt::print("max/mean    {:.3f} before, {:.3f} after", summary.max_over_mean_before,
             summary.max_over_mean);
  if (plan.options.price != "pairs") {
    fmt::print(" by pairs; {:.3f} by predicted time ({}), slowest {:.3f} ms a layer",
               summary.max_over_mean_time, plan.options.price,
               static_cast<double>(summary.max_time_ns) * 1e-6);
  }
  const int64_t bytes = summary.qkv_bytes + summary.o_bytes;
  fmt::print("\nbytes       Q, K, V {} there, O {} back; a layer, forward, all servers\n",
             human_bytes(summary.qkv_bytes), human_bytes(summary.o_bytes));
  const int64_t bound = lower_bound_bytes(plan);
  fmt::print(
      "            at least {} move with whole-context tasks on any layout{}\n", human_bytes(bound),
      bound > 0
          ? fmt::format(": {:.2f} x that", static_cast<double>(bytes) / static_cast<double>(bound))
          : "");
  fmt::print("one server  sends at most {}, receives at most {} of Q, K, V; keeps at most {}\n",
             human_bytes(summary.max_send_bytes), human_bytes(summary.max_receive_bytes),
             human_bytes(summary.max_memory_bytes));
  const Link& link = plan.cluster.between;
  fmt::print("wire        {:.3f} ms at {:g} GB/s for the largest send or receive\n",
             static_cast<double>(transfer_ns(
                 link, 1, std::max(summary.max_send_bytes, summary.max_receive_bytes))) *
                 1e-6,
             static_cast<double>(link.bytes_per_us) * 1e-3);
  fmt::print(
      "time        {}metadata of all ranks {:.2f} ms\n",
      planned.plan_seconds ? fmt::format("plan {:.2f} ms, ", *planned.plan_seconds * 1e3) : "",
      planned.metadata_seconds * 1e3);
}

Json summary_json(const Planned& planned) {
  const Plan& plan = planned.plan;
  const PlanSummary summary = summarize(plan);
  Json json{{"scheduler", plan.options.scheduler},
            {"layout", plan.options.layout},
            {"key_sub_ranges", plan.options.key_sub_ranges},
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
            {"lower_bound_bytes", lower_bound_bytes(plan)},
            {"metadata_us", std::llround(planned.metadata_seconds * 1e6)},
            {"hash", plan_hash(plan)},
            {"violations", Json::array()}};  // an invalid plan ends in an error
  if (planned.plan_seconds) json["plan_us"] = std::llround(*planned.plan_seconds * 1e6);
  if (plan.options.price != "pairs") {
    json["max_over_mean_time"] = summary.max_over_mean_time;
    json["max_time_ns"] = summary.max_time_ns;
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
    if (entry.key_sub_ranges) {
      options.layout = "sequential";
      all.push_back(options);
      options.key_sub_ranges = true;
      all.push_back(options);
      options.key_sub_ranges = false;
      options.layout = entry.layout;
    }
    all.push_back(options);
    if (!entry.key_sub_ranges) continue;
    options.key_sub_ranges = true;
    all.push_back(options);
    options.spread = true;
    all.push_back(options);
  }
  return all;
}

std::string name_of(const PlanOptions& options) {
  return fmt::format("{}{}{}", options.scheduler, options.key_sub_ranges ? " +key-sub-ranges" : "",
                     options.spread ? " +spread" : "");
}

}  // namespace

double metadata_seconds(const Plan& plan) {
  const Stopwatch watch;
  const PlanIndex index(plan);
  for (size_t rank = 0; rank < plan.load.size(); ++rank) index.exchange(static_cast<int>(rank));
  return watch.seconds();
}

Planned make_and_check(const PlanRequest& request) {
  const Stopwatch watch;
  Planned planned{.plan = make_plan(request)};
  planned.plan_seconds = watch.seconds();
  const std::vector<std::string> violations =
      validate(planned.plan, checks_of(find_scheduler(planned.plan.options.scheduler)));
  DISTCA_CHECK(violations.empty(), "our own plan is invalid: {}", violations.front());
  planned.metadata_seconds = metadata_seconds(planned.plan);
  return planned;
}

void print_report(const Planned& planned, const PlanRequest* request) {
  const Plan& plan = planned.plan;
  const PlanSummary summary = summarize(plan);
  const Plan before = plain_packing(plan);
  fmt::print("{} documents, {} tokens on {} workers ({} to {} each), {} servers\n",
             with_thousands(static_cast<int64_t>(plan.nano_batch.documents.size())),
             with_thousands(plan.nano_batch.num_tokens()), plan.cluster.num_workers,
             with_thousands(summary.tokens_min), with_thousands(summary.tokens_max),
             plan.cluster.num_servers());
  fmt::print("layout {}, scheduler {}, tolerance {:g}: {} tasks; before = plain packing\n\n",
             plan.options.layout, name_of(plan.options), tolerance(plan),
             with_thousands(static_cast<int64_t>(plan.tasks.size())));
  print_bars(before, plan);
  print_times(planned, summary);
  if (plan.cluster.num_servers() <= kMostServersInMatrix && summary.qkv_bytes > 0) {
    fmt::print("\nexchange, MiB of Q, K, V\n{}", matrix(plan));
  }
  if (request != nullptr && plan.cluster.num_servers() <= kMostServersForWhatIf) {
    fmt::print("\nwhat another tolerance would cost\n{}", what_if(*request, plan));
  }
  fmt::print("\nhash        {}\nvalid\n", plan_hash(plan));
}

void print_summary_json(const Planned& planned) {
  fmt::print("{}", canonical_json(summary_json(planned)));
}

void print_comparison(const PlanRequest& request, bool as_json) {
  Json list = Json::array();
  Table table({"scheduler", "layout", "tolerance", "max/mean", "tokens max", "QKV MiB", "O MiB",
               "largest out", "largest in", "tasks", "plan ms"});
  for (const PlanOptions& options : all_options(request.options)) {
    PlanRequest one = request;
    one.options = options;
    try {
      const Planned planned = make_and_check(one);
      const PlanSummary summary = summarize(planned.plan);
      table.add_row({name_of(options), planned.plan.options.layout,
                     fmt::format("{:g}", tolerance(planned.plan)),
                     fmt::format("{:.3f}", summary.max_over_mean),
                     with_thousands(summary.tokens_max), mebibytes(summary.qkv_bytes),
                     mebibytes(summary.o_bytes), mebibytes(summary.max_send_bytes),
                     mebibytes(summary.max_receive_bytes),
                     std::to_string(planned.plan.tasks.size()),
                     fmt::format("{:.2f}", *planned.plan_seconds * 1e3)});
      list.push_back(summary_json(planned));
    } catch (const Error& error) {
      table.add_row({name_of(options), options.layout, error.what()});
      list.push_back({{"scheduler", options.scheduler},
                      {"layout", options.layout},
                      {"key_sub_ranges", options.key_sub_ranges},
                      {"spread", options.spread},
                      {"refused", error.what()}});
    }
  }
  if (as_json) {
    fmt::print("{}", canonical_json(list));
    return;
  }
  fmt::print("{} documents, {} tokens, {} servers; bytes of one layer, forward, all servers\n\n{}",
             with_thousands(static_cast<int64_t>(request.nano_batch.documents.size())),
             with_thousands(request.nano_batch.num_tokens()), request.cluster.num_servers(),
             table.to_string());
}

}  // namespace distca::cli
