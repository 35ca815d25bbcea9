#include "cli/profile_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "distca/base/build_info.h"
#include "distca/base/text.h"
#include "distca/cost/task_price.h"

namespace distca::cli {
namespace {

/// The highest GFLOP/s of one pass at any point.
double highest_rate(const AttentionProfile& profile, const std::vector<int64_t>& ns,
                    int64_t pair_flops) {
  double highest = 0;
  for (size_t i = 0; i < ns.size(); ++i) {
    const int64_t q = profile.q_tokens[i / profile.kv_tokens.size()];
    const int64_t kv = profile.kv_tokens[i % profile.kv_tokens.size()];
    if (q > kv) continue;
    const int64_t pairs = attention_pairs({kv - q, kv}, {0, kv}, MaskType::kCausal);
    highest =
        std::max(highest, static_cast<double>(pairs * pair_flops) / static_cast<double>(ns[i]));
  }
  return highest;
}

/// What the rates below are rates of, and of what limit.
void print_limit(const ProfileArguments& arguments, const AttentionProfile& profile,
                 int64_t forward_flops) {
  const double peak = static_cast<double>(profile.peak_mflops) / 1000;
  const double forward = highest_rate(profile, profile.forward_ns, forward_flops);
  const double backward = highest_rate(profile, profile.backward_ns, forward_flops * 5 / 2);
  fmt::print("\n{}, {}, {} thread{}, {}, distca {}\n", profile.machine, profile.path,
             arguments.threads, arguments.threads == 1 ? "" : "s", arguments.dtype,
             build_info::kCommit);
  fmt::print(
      "FLOP: 2 x (head_dim_qk + head_dim_v) a query head and pair that the mask allows; "
      "backward 2.5 x forward\n");
  fmt::print(
      "limit: {:.1f} GFLOP/s of multiply-adds without memory ({}); forward reaches {:.0f} % of it, "
      "backward {:.0f} %\n",
      peak, isa_name(kernels::chosen_isa()), 100 * forward / peak, 100 * backward / peak);
}

/// GFLOP/s of one pass at every point; `pair_flops` of one (query, key) pair.
void print_rates(const char* title, const AttentionProfile& profile, const std::vector<int64_t>& ns,
                 int64_t pair_flops) {
  std::vector<std::string> header{"queries"};
  for (const int64_t kv : profile.kv_tokens) header.push_back(with_thousands(kv));
  Table table(header);
  for (size_t i = 0; i < profile.q_tokens.size(); ++i) {
    std::vector<std::string> row{with_thousands(profile.q_tokens[i])};
    for (size_t j = 0; j < profile.kv_tokens.size(); ++j) {
      const int64_t q = profile.q_tokens[i], kv = profile.kv_tokens[j];
      const int64_t time = ns[i * profile.kv_tokens.size() + j];
      const int64_t pairs = attention_pairs({kv - q, kv}, {0, kv}, MaskType::kCausal);
      row.push_back(time == 0 ? ""
                              : fmt::format("{:.1f}", static_cast<double>(pairs * pair_flops) /
                                                          static_cast<double>(time)));
    }
    table.add_row(row);
  }
  fmt::print(
      "\n{}, GFLOP/s: rows are numbers of queries, columns of keys; a task's queries are the last "
      "tokens "
      "of its keys\n{}",
      title, table.to_string());
}

void print_check(const AttentionProfile& profile, std::span<const MeasuredTask> tasks) {
  const TaskPrice price(profile.shape, &profile);
  Table table({"queries", "keys", "measured us", "predicted us", "error %"});
  std::vector<double> errors;
  for (const MeasuredTask& task : tasks) {
    const auto measured = static_cast<double>(fastest(task.forward_ns) + fastest(task.backward_ns));
    const auto predicted = static_cast<double>(price(task.q, task.kv));
    errors.push_back(100 * std::fabs(predicted / measured - 1));
    table.add_row({fmt::format("{} .. {}", task.q.begin, task.q.end),
                   fmt::format("{} .. {}", task.kv.begin, task.kv.end),
                   fmt::format("{:.0f}", measured / 1000), fmt::format("{:.0f}", predicted / 1000),
                   fmt::format("{:+.1f}", 100 * (predicted / measured - 1))});
  }
  std::sort(errors.begin(), errors.end());
  fmt::print("\nforward and backward of tasks as plans cut them, predicted from the grid\n{}",
             table.to_string());
  fmt::print("error: median {:.1f} %, worst {:.1f} %\n", errors[errors.size() / 2], errors.back());
}

}  // namespace

void print_profile(const ProfileArguments& arguments, const AttentionProfile& profile,
                   std::span<const MeasuredTask> checked) {
  const AttentionShape& shape = profile.shape;
  const int64_t pair_flops = 2 * shape.num_heads * (shape.head_dim_qk + shape.head_dim_v);
  print_limit(arguments, profile, pair_flops);
  print_rates("forward", profile, profile.forward_ns, pair_flops);
  print_rates("backward", profile, profile.backward_ns, pair_flops * 5 / 2);
  print_check(profile, checked);
}

}  // namespace distca::cli
