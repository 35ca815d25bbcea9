// distca trace: where the time of traced steps went.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "distca/base/json.h"
#include "distca/base/text.h"
#include "distca/trace/analysis.h"

namespace distca::cli {
namespace {

struct TraceArguments {
  std::filesystem::path file;
  bool json = false;
};

/// Sums over ranks and steps, seen as means of one rank and step in milliseconds.
class Report {
 public:
  Report(const Trace& trace, const TraceAnalysis& analysis)
      : trace_(trace),
        analysis_(analysis),
        num_ranks_(static_cast<int>(trace.ranks.size())),
        num_steps_(static_cast<int>(analysis.ranks[0].size())) {
    for (const RankStep& rank : analysis.totals) all_ += rank;
  }

  void print() const {
    print_head();
    print_ranks();
    print_lost();
    print_steps();
    print_slowest();
    print_operations();
    print_exchanges();
    print_nano_batches();
  }

  Json json() const;

 private:
  double per_step(int64_t ns) const { return static_cast<double>(ns) * 1e-6 / num_steps_; }
  double mean(int64_t ns) const { return per_step(ns) / num_ranks_; }
  static std::string ms(double value) { return fmt::format("{:.{}f}", value, value < 10 ? 2 : 1); }
  double lost_ms() const { return mean(all_.parts.total() - all_.parts.of(StepPart::kCompute)); }

  void print_head() const;
  void print_ranks() const;
  void print_lost() const;
  void print_steps() const;
  void print_slowest() const;
  void print_operations() const;
  void print_exchanges() const;
  void print_nano_batches() const;
  std::vector<std::string> rank_row(const std::string& name, const RankStep& sum, int ranks) const;

  const Trace& trace_;
  const TraceAnalysis& analysis_;
  int num_ranks_, num_steps_;
  RankStep all_;
};

std::string clocks(const Trace& trace) {
  double most = 0;
  for (const TraceRank& rank : trace.ranks) most = std::max(most, rank.clock_uncertainty_s);
  return most > 0 ? fmt::format("clocks agree to within {:.0f} us", most * 1e6) : "one clock";
}

void Report::print_head() const {
  const std::vector<RankStep>& steps = analysis_.ranks[0];
  fmt::print("{} rank{}, step{} {}, overlap {}, commit {}; {}\n", num_ranks_,
             num_ranks_ > 1 ? "s" : "", num_steps_ > 1 ? "s" : "",
             num_steps_ > 1 ? fmt::format("{} to {}", steps.front().step, steps.back().step)
                            : fmt::format("{}", steps.front().step),
             trace_.overlap, trace_.commit, clocks(trace_));
  if (analysis_.unmatched_waits > 0) {
    fmt::print("{} waits for messages whose issue is not in the trace count as exposed\n",
               analysis_.unmatched_waits);
  }
}

std::vector<std::string> Report::rank_row(const std::string& name, const RankStep& sum,
                                          int ranks) const {
  const auto cell = [&](int64_t ns) { return ms(per_step(ns) / ranks); };
  const StepParts& parts = sum.parts;
  return {name,
          cell(parts.total()),
          cell(parts.of(StepPart::kCompute)),
          cell(parts.of(StepPart::kCopy)),
          cell(parts.launch()),
          cell(parts.idle()),
          fmt::format("{:.1f} %", 100.0 * static_cast<double>(parts.idle()) /
                                      static_cast<double>(std::max<int64_t>(1, parts.total()))),
          cell(parts.of(StepPart::kImbalance)),
          cell(parts.of(StepPart::kExposed)),
          cell(parts.of(StepPart::kSum)),
          cell(parts.of(StepPart::kOther)),
          cell(sum.hidden_ns),
          human_bytes(sum.bytes / num_steps_ / ranks)};
}

void Report::print_ranks() const {
  fmt::print("\nms a step{}\n", num_steps_ > 1 ? ", mean of the steps" : "");
  Table table({"rank", "step", "compute", "copies", "launch", "idle", "of step", "imbalance",
               "exposed", "sums", "other", "hidden", "sent"});
  for (int rank = 0; rank < num_ranks_; ++rank) {
    table.add_row(
        rank_row(fmt::format("{} {}", rank, trace_.ranks[rank].server ? "server" : "worker"),
                 analysis_.totals[rank], 1));
  }
  if (num_ranks_ > 1) table.add_row(rank_row("mean", all_, num_ranks_));
  fmt::print(
      "{}step = compute + copies + launch + idle; idle = imbalance + exposed + sums + other\n"
      "  launch     handing messages over, and the gaps between operations\n"
      "  imbalance  waiting for a rank that had not issued its message yet\n"
      "  exposed    waiting for messages that all ranks had issued and that were still under way\n"
      "  sums       waiting in sums over ranks\n"
      "  other      waiting for a plan\n"
      "  hidden     exchanges that were under way while the rank did something else (at most)\n",
      table.to_string());
}

void Report::print_lost() const {
  const double step = mean(all_.parts.total()), lost = lost_ms();
  fmt::print("\nLost: {} ms of a step's {} ({:.1f} %), the step but for the ranks' mean compute\n",
             ms(lost), ms(step), step > 0 ? 100 * lost / step : 0);
  const std::vector<std::pair<std::string, int64_t>> causes = {
      {"imbalance", all_.parts.of(StepPart::kImbalance)},
      {"exposed", all_.parts.of(StepPart::kExposed)},
      {"sums", all_.parts.of(StepPart::kSum)},
      {"copies", all_.parts.of(StepPart::kCopy)},
      {"launch: issues", all_.parts.of(StepPart::kIssue)},
      {"launch: gaps", all_.parts.of(StepPart::kGap)},
      {"other", all_.parts.of(StepPart::kOther)}};
  Table table({"", "ms", "of the step", ""});
  constexpr int kBarWidth = 30;
  for (const auto& [name, ns] : causes) {
    const double share = step > 0 ? mean(ns) / step : 0;
    table.add_row({"  " + name, ms(mean(ns)), fmt::format("{:.1f} %", 100 * share),
                   bar(lost > 0 ? mean(ns) / lost : 0, kBarWidth)});
  }
  fmt::print("{}", table.to_string());
}

void Report::print_steps() const {
  if (num_steps_ < 2) return;
  Table table({"step", "ms", "mean compute", "idle", "imbalance", "exposed"});
  for (int i = 0; i < num_steps_; ++i) {
    StepParts sum;
    for (const auto& steps : analysis_.ranks) sum += steps[i].parts;
    const auto cell = [&](int64_t ns) { return ms(static_cast<double>(ns) * 1e-6 / num_ranks_); };
    table.add_row({fmt::format("{}", analysis_.ranks[0][i].step), cell(sum.total()),
                   cell(sum.of(StepPart::kCompute)), cell(sum.idle()),
                   cell(sum.of(StepPart::kImbalance)), cell(sum.of(StepPart::kExposed))});
  }
  fmt::print("\nMean of the ranks\n{}", table.to_string());
}

int64_t sum_of(const OperationTimes& operation) {
  return std::accumulate(operation.rank_ns.begin(), operation.rank_ns.end(), int64_t{0});
}

/// Ranks that do it at all: servers have no linear operations.
int64_t num_having(const OperationTimes& operation) {
  return std::max<int64_t>(
      1, std::ranges::count_if(operation.rank_ns, [](int64_t ns) { return ns > 0; }));
}

/// What the rank that computes longest spends more time on than the mean of those that do it.
void Report::print_slowest() const {
  if (num_ranks_ < 2) return;
  const auto compute = [&](int rank) {
    return analysis_.totals[rank].parts.of(StepPart::kCompute);
  };
  int slowest = 0;
  for (int rank = 1; rank < num_ranks_; ++rank) {
    if (compute(rank) > compute(slowest)) slowest = rank;
  }
  std::vector<std::pair<double, std::string>> more;
  for (const OperationTimes& operation : analysis_.operations) {
    const double usual =
        static_cast<double>(sum_of(operation)) / static_cast<double>(num_having(operation));
    more.emplace_back((static_cast<double>(operation.rank_ns[slowest]) - usual) * 1e-6 / num_steps_,
                      operation.name);
  }
  std::ranges::sort(more, std::greater());
  std::vector<std::string> reasons;
  constexpr size_t kMostReasons = 3;
  for (const auto& [difference, name] : more) {
    if (reasons.size() == kMostReasons || difference < 0.05) break;
    reasons.push_back(fmt::format("{} +{}", name, ms(difference)));
  }
  const auto mine = static_cast<double>(compute(slowest));
  const double mean_ns = static_cast<double>(all_.parts.of(StepPart::kCompute)) / num_ranks_;
  fmt::print("\nRank {} computes longest: {:+.1f} % of the mean{}{}\n", slowest,
             mean_ns > 0 ? 100 * (mine / mean_ns - 1) : 0,
             reasons.empty() ? "" : "\n  ms a step more than the mean: ", fmt::join(reasons, ", "));
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const int64_t ns = all_.waited_for_ns[rank];
    if (ns > 0) {
      fmt::print("Rank {} came last: others waited {} ms a step for it (imbalance)\n", rank,
                 ms(per_step(ns)));
    }
  }
}

void Report::print_operations() const {
  Table table({"operation", "times a step", "ms a rank", "max/mean", "GFLOP/s a rank"});
  for (const OperationTimes& operation : analysis_.operations) {
    const int64_t sum = sum_of(operation), having = num_having(operation);
    const int64_t most = *std::ranges::max_element(operation.rank_ns);
    const bool rated = operation.flops > 0 && sum > 0;
    table.add_row({operation.name, fmt::format("{}", operation.count / num_steps_ / having),
                   ms(per_step(sum) / static_cast<double>(having)),
                   sum > 0 ? fmt::format("{:.2f}", static_cast<double>(most * having) /
                                                       static_cast<double>(sum))
                           : "",
                   rated ? fmt::format("{:.1f}", operation.flops / static_cast<double>(sum)) : ""});
  }
  fmt::print("\n{}", table.to_string());
}

void Report::print_exchanges() const {
  Table table({"most exposed", "exposed ms", "imbalance ms", "sent"});
  constexpr size_t kMostRows = 8;
  for (size_t i = 0; i < std::min(kMostRows, analysis_.exchanges.size()); ++i) {
    const ExchangeTimes& exchange = analysis_.exchanges[i];
    if (exchange.exposed_ns + exchange.imbalance_ns == 0) continue;
    table.add_row({exchange.layer < 0 ? exchange.name
                                      : fmt::format("{} layer {} of nano-batch {}", exchange.name,
                                                    exchange.layer, exchange.nano_batch),
                   ms(per_step(exchange.exposed_ns)), ms(per_step(exchange.imbalance_ns)),
                   human_bytes(exchange.bytes / num_steps_)});
  }
  if (num_ranks_ > 1) fmt::print("\nWaits, ms a step of all ranks together\n{}", table.to_string());
}

/// Sums over layers and kinds: a nano-batch with a small or empty partner stands out.
void Report::print_nano_batches() const {
  std::map<int, ExchangeTimes> sums;
  for (const ExchangeTimes& exchange : analysis_.exchanges) {
    if (exchange.nano_batch < 0) continue;
    ExchangeTimes& sum = sums[exchange.nano_batch];
    sum.exposed_ns += exchange.exposed_ns;
    sum.imbalance_ns += exchange.imbalance_ns;
    sum.bytes += exchange.bytes;
  }
  if (sums.size() < 2) return;
  Table table({"exchanges of", "exposed ms", "imbalance ms", "sent"});
  for (const auto& [nano_batch, sum] : sums) {
    table.add_row({fmt::format("nano-batch {}", nano_batch), ms(per_step(sum.exposed_ns)),
                   ms(per_step(sum.imbalance_ns)), human_bytes(sum.bytes / num_steps_)});
  }
  fmt::print("\n{}", table.to_string());
}

Json parts_json(const RankStep& step) {
  Json parts = Json::object();
  for (int part = 0; part < kNumStepParts; ++part) {
    parts[fmt::format("{}_ns", step_part_name(StepPart(part)))] = step.parts.ns[part];
  }
  return {{"step_ns", step.parts.total()},
          {"idle_ns", step.parts.idle()},
          {"parts", parts},
          {"hidden_ns", step.hidden_ns},
          {"bytes", step.bytes},
          {"received_bytes", step.received_bytes},
          {"waited_for_ns", step.waited_for_ns}};
}

Json Report::json() const {
  Json ranks = Json::array(), operations = Json::array(), exchanges = Json::array();
  for (int rank = 0; rank < num_ranks_; ++rank) {
    Json steps = Json::array();
    for (const RankStep& step : analysis_.ranks[rank]) {
      steps.push_back(parts_json(step));
      steps.back()["step"] = step.step;
    }
    ranks.push_back({{"role", trace_.ranks[rank].server ? "server" : "worker"},
                     {"clock_offset_s", trace_.ranks[rank].clock_offset_s},
                     {"clock_uncertainty_s", trace_.ranks[rank].clock_uncertainty_s},
                     {"steps", steps},
                     {"total", parts_json(analysis_.totals[rank])}});
  }
  for (const OperationTimes& operation : analysis_.operations) {
    operations.push_back({{"name", operation.name},
                          {"count", operation.count},
                          {"rank_ns", operation.rank_ns},
                          {"flops", operation.flops}});
  }
  for (const ExchangeTimes& exchange : analysis_.exchanges) {
    exchanges.push_back({{"name", exchange.name},
                         {"layer", exchange.layer},
                         {"nano_batch", exchange.nano_batch},
                         {"exposed_ns", exchange.exposed_ns},
                         {"imbalance_ns", exchange.imbalance_ns},
                         {"bytes", exchange.bytes}});
  }
  return {{"version", trace_.version}, {"commit", trace_.commit},
          {"overlap", trace_.overlap}, {"unmatched_waits", analysis_.unmatched_waits},
          {"lost_ms", lost_ms()},      {"ranks", ranks},
          {"operations", operations},  {"exchanges", exchanges}};
}

void run_trace(const TraceArguments& arguments) {
  const Trace trace = read_trace(arguments.file);
  const TraceAnalysis analysis = analyse(trace, arguments.file.string());
  const Report report(trace, analysis);
  if (arguments.json) {
    std::fputs(canonical_json(report.json()).c_str(), stdout);
  } else {
    report.print();
  }
}

}  // namespace

void add_trace(CLI::App& app) {
  auto arguments = std::make_shared<TraceArguments>();
  CLI::App* verb = app.add_subcommand(
      "trace", "Where each millisecond of traced steps went: a file of distca train --trace");
  verb->add_option("file", arguments->file, "What distca train --trace wrote")
      ->required()
      ->type_name("FILE");
  verb->add_flag("--json", arguments->json, "For machines; times in nanoseconds");
  verb->footer("Example:  distca trace runs/demo/trace.json");
  verb->callback([arguments] { run_trace(*arguments); });
}

}  // namespace distca::cli
