#include "bench/plan_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "distca/base/build_info.h"
#include "distca/base/json.h"
#include "distca/base/machine.h"
#include "distca/base/text.h"

namespace distca::bench {
namespace {

std::string number(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }
std::string mib(int64_t bytes) { return number(static_cast<double>(bytes) / (1 << 20), 0); }

void print_head(const Report& report) {
  namespace build = build_info;
  fmt::print(
      "Plans for Llama-8B, one of 8 tensor-parallel ranks, bf16: bytes of Q, K, V and O of one\n"
      "layer, forward, over all servers. Shares are of the original's: the released planner\n"
      "(greedy-original) at tolerance 0.05, run here. `of bound`: bytes over the lower bound of\n"
      "whole-context plans on any layout at the same tolerance. `send`, `receive`: the largest of\n"
      "any server, Q, K, V in MiB, and as a share of the original's largest send. Metadata: all\n"
      "ranks' exchange; one structure serves forward and backward. Times: best of {} on one\n"
      "pinned thread.\n"
      "commit {}, {} build, {}, {}\n",
      report.rounds, build::kCommit, build::kBuildType, build::kCompiler, cpu_name());
}

void print_rows(const Report& report) {
  std::string workload;
  Table table({""});
  std::string refused;
  const auto flush = [&] {
    if (!workload.empty()) fmt::print("{}{}", table.to_string(), refused);
    refused.clear();
  };
  for (const Row& row : report.rows) {
    if (row.workload != workload) {
      flush();
      workload = row.workload;
      fmt::print("\n{}: the original {} + {} MiB, max/mean {:.3f}, largest send {}, receive {}\n",
                 workload, mib(row.original.summary.qkv_bytes), mib(row.original.summary.o_bytes),
                 row.original.summary.max_over_mean, mib(row.original.summary.max_send_bytes),
                 mib(row.original.summary.max_receive_bytes));
      table = Table({report.scheduler, "max/mean", "share", "of bound", "send", "share", "receive",
                     "share", "plan ms", "metadata ms", "tasks", "violations"});
    }
    const Measured& m = row.measured;
    if (!m.refusal.empty()) {
      refused += fmt::format("{}: refused: {}\n", row.name, m.refusal);
      continue;
    }
    const Shares of = shares(m, row.original);
    table.add_row({row.name, number(m.summary.max_over_mean, 4), number(of.bytes, 3),
                   m.lower_bound_bytes > 0 ? number(share(m.bytes, m.lower_bound_bytes), 3) : "-",
                   mib(m.summary.max_send_bytes), number(of.send, 3),
                   mib(m.summary.max_receive_bytes), number(of.receive, 3), number(m.plan_ms, 2),
                   number(m.metadata_ms, 2), std::to_string(m.tasks),
                   std::to_string(m.violations)});
  }
  flush();
}

void print_rivals(const Report& report) {
  fmt::print("\nAll schedulers, each on its own layout at its own tolerance:\n");
  Table table({"workload", "scheduler", "before", "after", "MiB QKV", "MiB O", "share", "send",
               "receive", "most tokens", "fewest", "tasks", "violations"});
  std::string refused;
  for (const Row& row : report.rivals) {
    const Measured& m = row.measured;
    if (!m.refusal.empty()) {
      refused += fmt::format("{}, {}: refused: {}\n", row.workload, row.name, m.refusal);
      continue;
    }
    table.add_row({row.workload, row.name, number(m.summary.max_over_mean_before, 3),
                   number(m.summary.max_over_mean, 3), mib(m.summary.qkv_bytes),
                   mib(m.summary.o_bytes), number(shares(m, row.original).bytes, 3),
                   mib(m.summary.max_send_bytes), mib(m.summary.max_receive_bytes),
                   with_thousands(m.summary.tokens_max), with_thousands(m.summary.tokens_min),
                   std::to_string(m.tasks), std::to_string(m.violations)});
  }
  fmt::print("{}{}", table.to_string(), refused);
}

void print_samples(const Report& report) {
  if (report.samples.empty()) {
    fmt::print("\nNo sampled nano-batches: {}\n", report.no_samples);
    return;
  }
  fmt::print("\nSampled nano-batches, 131,072 tokens per server, seed {} (median / worst):\n",
             report.seed);
  Table table({"servers", "source", report.scheduler, "batches", "refused", "share", "of bound",
               "send share", "receive share", "max/mean worst", "violations"});
  const auto pair = [](double median, double worst) {
    return fmt::format("{:.3f} / {:.3f}", median, worst);
  };
  for (const SampleRow& row : report.samples) {
    if (row.planned == 0) {
      fmt::print("{} servers, {}, {}: all refused\n", row.servers, row.source,
                 report.variants[row.variant].name);
      continue;
    }
    table.add_row({std::to_string(row.servers), row.source, report.variants[row.variant].name,
                   std::to_string(row.planned), std::to_string(row.refused),
                   pair(row.median.bytes, row.worst.bytes), number(row.median_of_bound, 3),
                   pair(row.median.send, row.worst.send),
                   pair(row.median.receive, row.worst.receive), number(row.worst_max_over_mean, 4),
                   std::to_string(row.violations)});
  }
  fmt::print("{}", table.to_string());
}

/// Every failure; of those that pass the worst one for each variant, figure and bar.
void print_verdicts(const Report& report) {
  size_t passed = 0;
  std::vector<const Verdict*> shown;
  for (const Verdict& verdict : report.verdicts) {
    passed += verdict.pass() ? 1 : 0;
    const auto same = std::find_if(shown.begin(), shown.end(), [&](const Verdict* other) {
      return verdict.pass() && other->pass() && other->variant == verdict.variant &&
             other->figure == verdict.figure && other->bar == verdict.bar;
    });
    if (same == shown.end()) {
      shown.push_back(&verdict);
    } else if (verdict.reached > (*same)->reached) {
      *same = &verdict;
    }
  }
  Table table({"", "figure", "worst", "bar", "aim", "variant", "where"});
  for (const Verdict* verdict : shown) {
    table.add_row({verdict->pass() ? "PASS" : "FAIL", verdict->figure, number(verdict->reached, 4),
                   number(verdict->bar, 2), verdict->aim > 0 ? number(verdict->aim, 2) : "-",
                   verdict->variant, verdict->where});
  }
  fmt::print("\n{}\n{} of {} bars reached\n", table.to_string(), passed, report.verdicts.size());
}

Json to_json(const Row& row) {
  const Measured& m = row.measured;
  Json json{{"workload", row.workload}, {"servers", row.servers}, {"name", row.name}};
  if (!m.refusal.empty()) {
    json["refusal"] = m.refusal;
    return json;
  }
  const Shares of = shares(m, row.original);
  json.update({{"max_over_mean_before", m.summary.max_over_mean_before},
               {"max_over_mean", m.summary.max_over_mean},
               {"qkv_bytes", m.summary.qkv_bytes},
               {"o_bytes", m.summary.o_bytes},
               {"max_send_bytes", m.summary.max_send_bytes},
               {"max_recv_bytes", m.summary.max_receive_bytes},
               {"tokens_max", m.summary.tokens_max},
               {"tokens_min", m.summary.tokens_min},
               {"share_of_original", of.bytes},
               {"send_share", of.send},
               {"recv_share", of.receive},
               {"lower_bound_bytes", m.lower_bound_bytes},
               {"tasks", m.tasks},
               {"plan_ms", m.plan_ms},
               {"metadata_ms", m.metadata_ms},
               {"violations", m.violations}});
  return json;
}

Json to_json(const Shares& shares) {
  return {{"bytes", shares.bytes}, {"send", shares.send}, {"recv", shares.receive}};
}

Json to_json(const SampleRow& row, const Report& report) {
  return {{"servers", row.servers},
          {"source", row.source},
          {"name", report.variants[row.variant].name},
          {"planned", row.planned},
          {"refused", row.refused},
          {"median", to_json(row.median)},
          {"worst", to_json(row.worst)},
          {"median_of_bound", row.median_of_bound},
          {"worst_max_over_mean", row.worst_max_over_mean},
          {"violations", row.violations}};
}

Json to_json(const Verdict& verdict) {
  return {{"where", verdict.where},     {"figure", verdict.figure}, {"name", verdict.variant},
          {"reached", verdict.reached}, {"bar", verdict.bar},       {"aim", verdict.aim},
          {"pass", verdict.pass()}};
}

}  // namespace

void print_tables(const Report& report) {
  print_head(report);
  print_rows(report);
  print_rivals(report);
  print_samples(report);
  print_verdicts(report);
}

void print_json(const Report& report) {
  Json json{{"commit", build_info::kCommit},
            {"build", build_info::kBuildType},
            {"compiler", build_info::kCompiler},
            {"cpu", cpu_name()},
            {"scheduler", report.scheduler},
            {"rounds", report.rounds},
            {"seed", report.seed},
            {"no_samples", report.no_samples}};
  for (const char* list : {"rows", "rivals", "samples", "verdicts"}) json[list] = Json::array();
  for (const Row& row : report.rows) json["rows"].push_back(to_json(row));
  for (const Row& row : report.rivals) json["rivals"].push_back(to_json(row));
  for (const SampleRow& row : report.samples) json["samples"].push_back(to_json(row, report));
  for (const Verdict& verdict : report.verdicts) json["verdicts"].push_back(to_json(verdict));
  fmt::print("{}", canonical_json(json));
}

}  // namespace distca::bench
