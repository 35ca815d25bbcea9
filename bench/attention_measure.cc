#include "bench/attention_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "bench/attention_peak.h"
#include "bench/attention_torch.h"
#include "bench/main.h"
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

using NamedContenders = std::vector<std::pair<std::string, Contender>>;

/// By name: the rates of each round.
Json named_rates(const NamedContenders& contenders, int rounds) {
  std::vector<Contender> all;
  for (const auto& [name, contender] : contenders) all.push_back(contender);
  const std::vector<Rates> rates = interleaved_rates(all, rounds, kLeastSeconds);
  Json named = Json::object();
  for (size_t i = 0; i < rates.size(); ++i) named[contenders[i].first] = rates[i];
  return named;
}

/// All contenders one after another, then all again: what lies between two turns of one is what
/// lies between it and the others. The second turn's rates are those of "NAME again".
Json rates_twice(NamedContenders contenders, int rounds) {
  for (size_t i = 0, once = contenders.size(); i < once; ++i)
    contenders.emplace_back(contenders[i].first + " again", contenders[i].second);
  return named_rates(contenders, rounds);
}

Contender kernel(Problem& problem, Pass pass, ThreadPool& pool, Isa isa, Clock clock) {
  return {problem.flops(pass),
          timed(clock, [&problem, pass, &pool, isa] { problem.run(pass, pool, isa); })};
}

/// One pass of a row. `more`: what else its line says.
void write_row(const char* line, const RowSpec& row, Pass pass, Json rates, Json more = {}) {
  Json isas = Json::array();
  for (const Isa isa : row.isas) isas.push_back(isa_name(isa));
  more.update({{"name", row.name()},
               {"format", row.type == ScalarType::kFloat32 ? "fp32" : "bf16"},
               {"heads", row.heads.heads},
               {"kv_heads", row.heads.kv_heads},
               {"heads_computed", row.heads.used()},
               {"head_dim", row.head_dim},
               {"length", row.length},
               {"pass", pass_name(pass)},
               {"isas", isas},
               {"gflops", std::move(rates)}});
  write_line(line, std::move(more));
}

}  // namespace

Measurer::Measurer(const MeasureOptions& options) : options_(options), one_(1) {
  const std::span<const int> cores(options_.cores);
  if (cores.size() == 1) return;
  pin_to(cores.subspan(1));  // the pool's threads inherit these cores
  all_.emplace(static_cast<int>(cores.size()));
  pin_to(cores.first(1));
}

void Measurer::peaks() {
  NamedContenders contenders;
  for (const auto& [isa, type] : kPeaks) {
    if (!kernels::isa_available(isa)) continue;
    const std::string name(isa_name(isa));
    contenders.emplace_back(name, peak_loop(isa, type, Clock::kThread));
    contenders.emplace_back(name + " on all cores",
                            parallel_peak_loop(isa, type, options_.cores, kLeastSeconds));
  }
  // Twice as many rounds: the best of as many turns as the kernel's.
  write_line("peaks", {{"gflops", named_rates(contenders, 2 * options_.rounds)}});
}

void Measurer::row(const RowSpec& row) {
  if (row.kind == RowKind::kThreads) return threads(row);
  const Stopwatch watch;
  const double start = thread_processor_seconds();
  row.kind == RowKind::kLength ? length(row) : shards(row);
  write_line("core", {{"processor_seconds", thread_processor_seconds() - start},
                      {"wall_seconds", watch.seconds()}});
}

void Measurer::length(const RowSpec& row) {
  Problem problem(row.type, row.heads, row.head_dim, {{0, row.length}});
  const std::unique_ptr<TorchAttention> torch = make_torch_attention(problem);
  for (auto isa = row.isas.rbegin(); isa != row.isas.rend(); ++isa) {
    problem.prepare(one_, *isa);
    const double distance = torch ? torch->distance(problem) : 0;
    DISTCA_CHECK(distance < kMostDistance, "{}, {}: O is off PyTorch's by {:.2e}", row.name(),
                 isa_name(*isa), distance);
  }
  Json pages{{"kernel_huge_pages", huge_page_share(problem.q.rows().data)}};
  if (torch) pages["torch_huge_pages"] = torch->huge_pages();
  for (const Pass pass : kPasses) {
    NamedContenders contenders;
    for (const Isa isa : row.isas) {
      const std::string name(isa_name(isa));
      contenders.emplace_back(name + " loop", peak_loop(isa, row.type, Clock::kThread));
      contenders.emplace_back(name, kernel(problem, pass, one_, isa, Clock::kThread));
    }
    if (torch) {
      const Contender rival{problem.flops(pass), timed(Clock::kThread, [&] { torch->run(pass); })};
      contenders.emplace_back("torch", rival);
    }
    write_row("length", row, pass, rates_twice(contenders, options_.rounds), pages);
  }
}

void Measurer::shards(const RowSpec& row) {
  const Isa isa = row.isas[0];
  Problem whole(row.type, row.heads, row.head_dim, {{0, row.length}});
  whole.prepare(one_, isa);
  std::deque<Problem> problems;
  for (const int64_t size : kShardSizes)
    problems.emplace_back(row.type, row.heads, row.head_dim, shards_of(size));
  for (Problem& problem : problems) problem.prepare(one_, isa);
  for (const Pass pass : kPasses) {
    // The judged size, which is the last, and the long sequence twice, apart.
    const Contender of_whole = kernel(whole, pass, one_, isa, Clock::kThread);
    NamedContenders contenders = {
        {"judged again", kernel(problems.back(), pass, one_, isa, Clock::kThread)},
        {"long", of_whole}};
    Json shards = Json::array();
    for (size_t i = 0; i < problems.size(); ++i) {
      const int64_t size = kShardSizes[i];
      contenders.emplace_back(std::to_string(size),
                              kernel(problems[i], pass, one_, isa, Clock::kThread));
      shards.push_back({{"queries", size}, {"shards", problems[i].q.tokens() / size}});
    }
    contenders.emplace_back("long again", of_whole);
    write_row("shards", row, pass, named_rates(contenders, options_.rounds),
              {{"sizes", shards}, {"judged", kJudgedShard}});
  }
}

void Measurer::threads(const RowSpec& row) {
  if (!all_) return;
  const Isa isa = row.isas[0];
  Problem problem(row.type, row.heads, row.head_dim, {{0, row.length}});
  problem.prepare(one_, isa);
  for (const Pass pass : kPasses) {
    // The loop runs as long as the kernel, so that other programs disturb both alike.
    const Contender on_all = kernel(problem, pass, *all_, isa, Clock::kWall);
    const double seconds = std::clamp(on_all.seconds(), kLeastSeconds, kLongestLoop);
    const NamedContenders contenders = {
        {"loop", peak_loop(isa, row.type, Clock::kThread)},
        {"loop on all", parallel_peak_loop(isa, row.type, options_.cores, seconds)},
        {"one", kernel(problem, pass, one_, isa, Clock::kThread)},
        {"all", on_all}};
    write_row("threads", row, pass, rates_twice(contenders, options_.rounds));
  }
}

}  // namespace distca::bench
