#include "bench/attention_report.h"

#include <fmt/format.h>

#include "bench/attention_torch.h"
#include "distca/base/build_info.h"
#include "distca/base/machine.h"
#include "distca/base/text.h"

namespace distca::bench {
namespace {

using kernels::Isa;

std::string number(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

std::string percents(const Estimate& shares) {
  return fmt::format("{:.1f}-{:.1f}", 100 * shares.low, 100 * shares.high);
}
std::string times(const Estimate& ratios) {
  return fmt::format("{:.2f}-{:.2f}", ratios.low, ratios.high);
}

std::string instruction_sets() {
  std::string names;
  for (const Isa isa : {Isa::kAvx512Bf16, Isa::kAvx512, Isa::kAvx2, Isa::kPortable}) {
    if (!kernels::isa_available(isa)) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", isa_name(isa));
  }
  return names;
}

std::string head(const MeasureOptions& options) {
  namespace build = build_info;
  const std::string torch = torch_version();
  return fmt::format(
      "Core attention on the CPU, causal. GFLOP/s: 4 x pairs x head_dim forward, 10 x backward,\n"
      "over the pairs that the mask allows; best of {} turns (shards of some sizes {}) on one "
      "pinned\n"
      "thread, in processor time; several threads in wall-clock time. Shares and ratios: median\n"
      "over {} rounds of what stood side by side in a round, with its 95 % interval; `A/A`: the "
      "same\n"
      "figure against itself, all that it is made of measured twice in a round (shards: of the\n"
      "judged size). Not decidable here: the bar within the figure's or, about the bar, within "
      "the\n"
      "A/A interval{}.\n"
      "Lengths 2,048 and more compute the first heads only, in buffers of all\n"
      "heads. Backward starts from LSE and delta. PyTorch: its CPU scaled_dot_product_attention,\n"
      "heads contiguous, key heads expanded before the clock. Tensors of both in huge pages, as in "
      "a\n"
      "training run.\n"
      "machine {}, {} cores used; instruction sets {}\n"
      "commit {}, {} build, {}, PyTorch {}{}\n",
      2 * options.rounds, options.rounds, options.rounds,
      options.rounds < kLeastRounds
          ? fmt::format("; and everything, for it takes {} rounds to decide", kLeastRounds)
          : "",
      cpu_name(), options.cores.size(), instruction_sets(), build::kCommit, build::kBuildType,
      build::kCompiler, torch.empty() ? "absent" : torch,
      options.machine.amx ? " (bf16 through AMX: shown, not judged)" : "");
}

std::string peak_table(const MeasureOptions& options, const Results& results) {
  Table table({"multiply-add loop", "GFLOP/s", fmt::format("{} cores", options.cores.size())});
  for (const PeakResult& peak : results.peaks) {
    table.add_row(
        {std::string(isa_name(peak.isa)), number(peak.best, 1), number(peak.best_of_all_cores, 1)});
  }
  return fmt::format("\n{}", table.to_string());
}

/// Other programs on the machine make it less than 100 %.
std::string core_text(const Results& results) {
  if (results.wall_seconds == 0) return "";
  std::string text = fmt::format("\nthe measuring thread had {:.0f} % of its core\n",
                                 100 * results.processor_seconds / results.wall_seconds);
  if (results.lengths.empty()) return text;
  return text + fmt::format("in huge pages, the least of a row: kernel {:.0f} %, PyTorch {}\n",
                            100 * results.kernel_huge_pages,
                            torch_version().empty()
                                ? "-"
                                : fmt::format("{:.0f} %", 100 * results.torch_huge_pages));
}

std::string bar_text(const Figure& figure, bool share) {
  if (figure.bar == 0) return "-";
  return share ? fmt::format("{:.0f} %", 100 * figure.bar) : number(figure.bar, 1);
}

std::string verdict_text(const Figure& figure) {
  return or_dash(std::string(verdict_name(figure.verdict())));
}

/// The row's name without its first word, which is the table's.
std::string short_name(const RowSpec& row) {
  const std::string name = row.name();
  return name.substr(name.find(' ') + 1);
}

std::string lengths_table(const Results& results) {
  Table table({"one sequence", "pass", "instructions", "GFLOP/s", "of peak", "95 %", "bar",
               "verdict", "A/A 95 %", "PyTorch", "ratio", "95 %", "bar", "verdict", "A/A 95 %"});
  for (const LengthResult& r : results.lengths) {
    const bool torch = r.torch_best > 0;
    table.add_row({short_name(r.row), std::string(pass_name(r.pass)), std::string(isa_name(r.isa)),
                   number(r.best, 1), percent(r.of_peak.reached.median),
                   percents(r.of_peak.reached), bar_text(r.of_peak, true), verdict_text(r.of_peak),
                   percents(r.of_peak.control), torch ? number(r.torch_best, 1) : "-",
                   torch ? number(r.of_torch.reached.median, 2) : "-",
                   torch ? times(r.of_torch.reached) : "-", bar_text(r.of_torch, false),
                   verdict_text(r.of_torch), torch ? percents(r.of_torch.control) : "-"});
  }
  return fmt::format("\n{}", table.to_string());
}

std::string shards_table(const Results& results) {
  Table table({"shards, context about 8,192", "pass", "queries", "shards", "GFLOP/s", "long",
               "of long", "95 %", "bar", "verdict", "A/A 95 %"});
  for (const ShardResult& r : results.shards) {
    table.add_row({short_name(r.row), std::string(pass_name(r.pass)), std::to_string(r.queries),
                   std::to_string(r.shards), number(r.best, 1), number(r.long_best, 1),
                   percent(r.of_long.reached.median), percents(r.of_long.reached),
                   bar_text(r.of_long, true), verdict_text(r.of_long),
                   percents(r.of_long.control)});
  }
  return fmt::format("\n{}", table.to_string());
}

std::string threads_table(const MeasureOptions& options, const Results& results) {
  Table table({fmt::format("{} threads", options.cores.size()), "pass", "one", "all", "gain",
               "loop's gain", "share", "95 %", "bar", "verdict", "A/A 95 %"});
  for (const ThreadsResult& r : results.threads) {
    table.add_row({short_name(r.row), std::string(pass_name(r.pass)), number(r.best_of_one, 1),
                   number(r.best, 1), number(r.gain.median, 3), number(r.loop_gain.median, 3),
                   percent(r.of_loop.reached.median), percents(r.of_loop.reached),
                   bar_text(r.of_loop, true), verdict_text(r.of_loop),
                   percents(r.of_loop.control)});
  }
  return fmt::format("\n{}", table.to_string());
}

Json to_json(const Estimate& estimate) {
  return {{"median", estimate.median}, {"low", estimate.low}, {"high", estimate.high}};
}

Json to_json(const Figure& figure) {
  Json json{{"reached", to_json(figure.reached)}, {"control", to_json(figure.control)}};
  if (figure.bar > 0) {
    json["bar"] = figure.bar;
    json["verdict"] = verdict_name(figure.verdict());
  }
  return json;
}

Json row_json(const RowSpec& row, Pass pass, Isa isa) {
  return {{"name", row.name()},
          {"format", row.type == ScalarType::kFloat32 ? "fp32" : "bf16"},
          {"head_dim", row.head_dim},
          {"heads", row.heads.heads},
          {"kv_heads", row.heads.kv_heads},
          {"heads_computed", row.heads.used()},
          {"length", row.length},
          {"pass", pass_name(pass)},
          {"isa", isa_name(isa)}};
}

Json to_json(const LengthResult& r) {
  Json json = row_json(r.row, r.pass, r.isa);
  json.update({{"gflops", r.best}, {"of_peak", to_json(r.of_peak)}});
  if (r.torch_best > 0)
    json.update({{"torch_gflops", r.torch_best}, {"of_torch", to_json(r.of_torch)}});
  return json;
}

Json to_json(const ShardResult& r) {
  Json json = row_json(r.row, r.pass, r.row.isas[0]);
  json.update({{"queries", r.queries},
               {"shards", r.shards},
               {"gflops", r.best},
               {"long_gflops", r.long_best},
               {"of_long", to_json(r.of_long)}});
  return json;
}

Json to_json(const ThreadsResult& r) {
  Json json = row_json(r.row, r.pass, r.row.isas[0]);
  json.update({{"gflops_of_one", r.best_of_one},
               {"gflops", r.best},
               {"gain", to_json(r.gain)},
               {"loop_gain", to_json(r.loop_gain)},
               {"of_loop", to_json(r.of_loop)}});
  return json;
}

Json to_json(const PeakResult& peak) {
  return {{"isa", isa_name(peak.isa)},
          {"gflops", peak.best},
          {"gflops_of_all_cores", peak.best_of_all_cores}};
}

template <typename Result>
Json list(const std::vector<Result>& results) {
  Json json = Json::array();
  for (const Result& result : results) json.push_back(to_json(result));
  return json;
}

}  // namespace

Tally tally(const Results& results) {
  Tally tally;
  for (const LengthResult& r : results.lengths) {
    tally.add(r.of_peak.verdict());
    tally.add(r.of_torch.verdict());
  }
  for (const ShardResult& r : results.shards) tally.add(r.of_long.verdict());
  for (const ThreadsResult& r : results.threads) tally.add(r.of_loop.verdict());
  return tally;
}

std::string report_text(const MeasureOptions& options, const Results& results) {
  std::string text = head(options) + peak_table(options, results) + core_text(results);
  if (!results.lengths.empty()) text += lengths_table(results);
  if (!results.shards.empty()) text += shards_table(results);
  if (!results.threads.empty()) text += threads_table(options, results);
  const Tally counts = tally(results);
  return text + fmt::format("\n{} of {} bars reached, {} missed, {} not decidable here\n",
                            counts.reached, counts.judged(), counts.missed, counts.not_decidable);
}

Json report_json(const MeasureOptions& options, const Results& results) {
  const Tally counts = tally(results);
  return {{"commit", build_info::kCommit},
          {"build", build_info::kBuildType},
          {"compiler", build_info::kCompiler},
          {"torch", torch_version()},
          {"cpu", cpu_name()},
          {"instruction_sets", instruction_sets()},
          {"cores", options.cores.size()},
          {"rounds", options.rounds},
          {"processor_seconds", results.processor_seconds},
          {"wall_seconds", results.wall_seconds},
          {"kernel_huge_pages", results.kernel_huge_pages},
          {"torch_huge_pages", results.torch_huge_pages},
          {"peaks", list(results.peaks)},
          {"lengths", list(results.lengths)},
          {"shards", list(results.shards)},
          {"threads", list(results.threads)},
          {"bars",
           {{"reached", counts.reached},
            {"missed", counts.missed},
            {"not_decidable", counts.not_decidable}}}};
}

}  // namespace distca::bench
