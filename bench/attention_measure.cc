#include "bench/attention_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <span>

#include "bench/attention_peak.h"
#include "bench/attention_torch.h"
#include "bench/timing.h"
#include "distca/base/error.h"

namespace distca::bench {
namespace {

using kernels::Isa;
using kernels::ThreadPool;

constexpr double kLeastSeconds = 5e-3;
constexpr double kLongestLoop = 50e-3;  // on several threads
constexpr std::pair<Isa, ScalarType> kPeaks[] = {{Isa::kAvx512Bf16, ScalarType::kBFloat16},
                                                 {Isa::kAvx512, ScalarType::kFloat32},
                                                 {Isa::kAvx2, ScalarType::kFloat32},
                                                 {Isa::kPortable, ScalarType::kFloat32}};
constexpr Pass kPasses[] = {Pass::kForward, Pass::kBackward};
/// O rounded to bf16 is off by 2e-3, two of them by 3e-3.
constexpr double kMostDistance = 1e-2;

double best(const Rates& rates) { return *std::max_element(rates.begin(), rates.end()); }

/// A contender's rates in its first and in its second turn of each round.
struct Twice {
  Rates first, second;
};

double best(const Twice& rates) { return std::max(best(rates.first), best(rates.second)); }

Twice quotient(const Twice& left, const Twice& right) {
  return {bench::quotient(left.first, right.first), bench::quotient(left.second, right.second)};
}

Figure figure(const Twice& numerator, const Twice& denominator, double bar) {
  const Twice ratio = quotient(numerator, denominator);
  return figure_of(ratio.first, ratio.second, bar);
}

/// All contenders one after another, then all again: what lies between two turns of one is what
/// lies between it and the others.
std::vector<Twice> rates_twice(const std::vector<Contender>& once, int rounds) {
  std::vector<Contender> twice(once);
  twice.insert(twice.end(), once.begin(), once.end());
  std::vector<Rates> rates = interleaved_rates(twice, rounds, kLeastSeconds);
  std::vector<Twice> result;
  for (size_t i = 0; i < once.size(); ++i)
    result.push_back({std::move(rates[i]), std::move(rates[once.size() + i])});
  return result;
}

Contender kernel(Problem& problem, Pass pass, ThreadPool& pool, Isa isa, Clock clock) {
  return {problem.flops(pass),
          timed(clock, [&problem, pass, &pool, isa] { problem.run(pass, pool, isa); })};
}

std::string result_name(const RowSpec& row, Pass pass, std::string_view which) {
  return fmt::format("{} {} {}", row.name(), pass_name(pass), which);
}

}  // namespace

std::string LengthResult::name() const { return result_name(row, pass, isa_name(isa)); }
std::string ShardResult::name() const {
  return result_name(row, pass, fmt::format("shards of {}", queries));
}
std::string ThreadsResult::name() const { return result_name(row, pass, isa_name(row.isas[0])); }

Measurer::Measurer(const MeasureOptions& options) : options_(options), one_(1) {
  const std::span<const int> cores(options_.cores);
  if (cores.size() == 1) return;
  pin_to(cores.subspan(1));  // what the pool's threads inherit
  all_.emplace(static_cast<int>(cores.size()));
  pin_to(cores.first(1));
}

void Measurer::peaks(Results& results) {
  std::vector<Contender> contenders;
  for (const auto& [isa, type] : kPeaks) {
    if (!kernels::isa_available(isa)) continue;
    results.peaks.push_back({.isa = isa, .type = type});
    contenders.push_back(peak_loop(isa, type, Clock::kThread));
    contenders.push_back(parallel_peak_loop(isa, type, options_.cores, kLeastSeconds));
  }
  // Twice as many rounds: the best of as many turns as the kernel's.
  const auto rates = interleaved_rates(contenders, 2 * options_.rounds, kLeastSeconds);
  for (size_t i = 0; i < results.peaks.size(); ++i) {
    results.peaks[i].best = best(rates[2 * i]);
    results.peaks[i].best_of_all_cores = best(rates[2 * i + 1]);
  }
}

void Measurer::row(const RowSpec& row, Results& results) {
  if (row.kind == RowKind::kThreads) return threads(row, results);
  const Stopwatch watch;
  const double start = thread_processor_seconds();
  row.kind == RowKind::kLength ? length(row, results) : shards(row, results);
  results.processor_seconds += thread_processor_seconds() - start;
  results.wall_seconds += watch.seconds();
}

void Measurer::length(const RowSpec& row, Results& results) {
  Problem problem(row.type, row.heads, row.head_dim, {{0, row.length}});
  const std::unique_ptr<TorchAttention> torch = make_torch_attention(problem);
  for (auto isa = row.isas.rbegin(); isa != row.isas.rend(); ++isa) {
    problem.prepare(one_, *isa);
    const double distance = torch ? torch->distance(problem) : 0;
    DISTCA_CHECK(distance < kMostDistance, "{}, {}: O is off PyTorch's by {:.2e}", row.name(),
                 isa_name(*isa), distance);
  }
  results.kernel_huge_pages =
      std::min(results.kernel_huge_pages, huge_page_share(problem.q.rows().data));
  if (torch) results.torch_huge_pages = std::min(results.torch_huge_pages, torch->huge_pages());
  for (const Pass pass : kPasses) {
    std::vector<Contender> contenders;
    for (const Isa isa : row.isas) {
      contenders.push_back(peak_loop(isa, row.type, Clock::kThread));
      contenders.push_back(kernel(problem, pass, one_, isa, Clock::kThread));
    }
    if (torch)
      contenders.push_back({problem.flops(pass), timed(Clock::kThread, [&] { torch->run(pass); })});
    const auto rates = rates_twice(contenders, options_.rounds);
    for (size_t i = 0; i < row.isas.size(); ++i) {
      const Twice &peak = rates[2 * i], &ours = rates[2 * i + 1];
      LengthResult result{
          .row = row,
          .pass = pass,
          .isa = row.isas[i],
          .best = best(ours),
          .of_peak = figure(ours, peak, peak_bar(row.type, row.isas[i], row.length))};
      if (torch) {
        result.torch_best = best(rates.back());
        // The instruction set that the kernel chooses on this machine.
        const double bar = i == 0 ? torch_bar(row.type, row.length, options_.machine) : 0;
        result.of_torch = figure(ours, rates.back(), bar);
      }
      results.lengths.push_back(result);
    }
  }
}

void Measurer::shards(const RowSpec& row, Results& results) {
  const Isa isa = row.isas[0];
  const std::vector<int64_t> sizes = shard_sizes(row, options_.quick);
  std::deque<Problem> problems;
  problems.emplace_back(row.type, row.heads, row.head_dim, std::vector<QueryRun>{{0, row.length}});
  for (const int64_t size : sizes)
    problems.emplace_back(row.type, row.heads, row.head_dim, shards_of(size));
  for (Problem& problem : problems) problem.prepare(one_, isa);
  const auto judged = static_cast<size_t>(std::ranges::find(sizes, kJudgedShard) - sizes.begin());
  for (const Pass pass : kPasses) {
    // The judged size and the long sequence twice, apart: [again, whole, sizes..., whole again].
    std::vector<Contender> contenders;
    for (Problem& problem : problems)
      contenders.push_back(kernel(problem, pass, one_, isa, Clock::kThread));
    contenders.insert(contenders.begin(), contenders[judged + 1]);
    contenders.insert(contenders.begin() + static_cast<int64_t>(judged) + 3, contenders[1]);
    auto rates = interleaved_rates(contenders, options_.rounds, kLeastSeconds);
    const Rates again = rates[0], whole = rates[1], whole_again = rates[judged + 3];
    rates.erase(rates.begin() + static_cast<int64_t>(judged) + 3);
    rates.erase(rates.begin(), rates.begin() + 2);
    const Figure control =
        figure_of(quotient(rates[judged], whole), quotient(again, whole_again), 0);
    for (size_t i = 0; i < sizes.size(); ++i) {
      results.shards.push_back(
          {.row = row,
           .pass = pass,
           .queries = sizes[i],
           .shards = problems[i + 1].q.tokens() / sizes[i],
           .best = i == judged ? std::max(best(rates[i]), best(again)) : best(rates[i]),
           .long_best = std::max(best(whole), best(whole_again)),
           .of_long = {.reached = estimate_ratio(rates[i], whole),
                       .control = control.control,
                       .bar = shard_bar(pass, sizes[i], row.heads.group()),
                       .rounds = options_.rounds}});
    }
  }
}

void Measurer::threads(const RowSpec& row, Results& results) {
  if (!all_) return;
  const Isa isa = row.isas[0];
  Problem problem(row.type, row.heads, row.head_dim, {{0, row.length}});
  problem.prepare(one_, isa);
  for (const Pass pass : kPasses) {
    // The loop runs as long as the kernel, so that other programs disturb both alike.
    const Contender on_all = kernel(problem, pass, *all_, isa, Clock::kWall);
    const double seconds = std::clamp(on_all.seconds(), kLeastSeconds, kLongestLoop);
    const auto rates = rates_twice({peak_loop(isa, row.type, Clock::kThread),
                                    parallel_peak_loop(isa, row.type, options_.cores, seconds),
                                    kernel(problem, pass, one_, isa, Clock::kThread), on_all},
                                   options_.rounds);
    const Twice gain = quotient(rates[3], rates[2]), loop_gain = quotient(rates[1], rates[0]);
    results.threads.push_back({.row = row,
                               .pass = pass,
                               .best_of_one = best(rates[2]),
                               .best = best(rates[3]),
                               .gain = estimate(gain.first),
                               .loop_gain = estimate(loop_gain.first),
                               .of_loop = figure(gain, loop_gain, kThreadsBar)});
  }
}

}  // namespace distca::bench
