#include "cli/paper.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cli/options.h"
#include "distca/base/console.h"
#include "distca/base/error.h"
#include "distca/base/text.h"
#include "distca/forecast/paper_tables.h"
#include "distca/plan/plan_batch_input.h"

namespace distca::cli {
namespace {

std::string percent_of(double share) { return fmt::format("{:.1f} %", 100 * share); }

/// "1.07-1.20", "to 1.15".
std::string range_text(const PaperRange& range) {
  if (range.least == 0) return fmt::format("to {:.2f}", range.most);
  return fmt::format("{:.2f}-{:.2f}", range.least, range.most);
}

std::string factor_text(double factor) {
  return factor > 0 ? fmt::format("{:.2f}", factor) : std::string("-");
}

/// Where there is no best setting: a refusal stands below the table.
const char* missing_text(const PaperResult& of) {
  return of.refusals.empty() ? "no room" : "not played";
}

std::string setting_text(const PaperResult& of, const std::optional<PaperBest>& best) {
  return best ? best->words() : missing_text(of);
}

void print_constants(const Machine& machine) {
  Table table({"constant", "value", "from"});
  for (const PaperConstant& one : paper_constants())
    table.add_row({one.name, one.value, one.source});
  fmt::print("Played on machine {}, by these constants:\n{}\n", machine.name, table.to_string());
}

std::vector<PaperRow> asked_rows(const std::vector<PaperRow>& all, const std::string& text) {
  std::vector<PaperRow> rows = all;
  std::erase_if(rows,
                [&](const PaperRow& row) { return row.name().find(text) == std::string::npos; });
  DISTCA_THROW_IF(rows.empty(), ErrorKind::kUsage,
                  "--rows {}: no row has this in its name; one is "
                  "{}",
                  text, all[0].name());
  return rows;
}

PaperStudy study_of(const PaperArguments& asked, const std::filesystem::path& lengths,
                    const Machine& machine) {
  DISTCA_THROW_IF(lengths.empty(), ErrorKind::kUsage,
                  "--paper {}: give --lengths FOLDER, which has lengths_pretrain.json and "
                  "lengths_prolong.json, such as distca/plan/testdata",
                  asked.experiment);
  return {.machine = machine,
          .lengths = {{SampleKind::kPretrain, read_lengths(lengths / "lengths_pretrain.json")},
                      {SampleKind::kProlong, read_lengths(lengths / "lengths_prolong.json")}},
          .batches = asked.batches,
          .progress = PacedProgress()};
}

/// "linear_tflops a fifth better: 1.09"
std::string move_text(const std::optional<PaperMove>& move) {
  if (!move) return "";
  return fmt::format("{} a fifth {}: {:.2f}", machine_number_name(move->number),
                     move->is_better ? "better" : "worse", move->ratio);
}

/// "in", "below", "above"; "?" if the paper's planner does not fit.
std::string place_text(const std::optional<int>& place) {
  if (!place) return "?";
  return *place == 0 ? "in" : *place < 0 ? "below" : "above";
}

/// The row of a result, a cell under each name of a column.
struct ResultRow {
  std::vector<std::string> names, cells;
};

ResultRow row_of(const PaperResult& of) {
  const PaperTable table = of.row.table;
  const bool is_published = table != PaperTable::kBeyond;
  ResultRow row;
  const auto add = [&](std::string name, std::string cell) {
    row.names.push_back(std::move(name));
    row.cells.push_back(std::move(cell));
  };
  const auto seconds = [&](const std::optional<PaperBest>& best) {
    return best ? fmt::format("{:.3f}", best->seconds) : std::string(missing_text(of));
  };
  const auto bound = [&](double PaperBest::*bound_s) {
    return factor_text(of.ours && of.wlb ? of.wlb->seconds / ((*of.ours).*bound_s) : 0);
  };
  add("row", of.row.name());
  if (is_published) add("paper", range_text(of.row.published));
  add("its planner", factor_text(of.speedup(of.original)));
  if (is_published) add("", place_text(of.place()));
  add("ours", factor_text(of.speedup(of.ours)));
  add("no wait", bound(&PaperBest::busy_s));
  add("even CA", bound(&PaperBest::even_attention_s));
  add("WLB-ideal s", seconds(of.wlb));
  if (table != PaperTable::kThreeDimensions) {
    for (const int stages : paper_stages(table))
      add(fmt::format("its planner, P {}", stages), factor_text(of.speedup_of_stages(stages)));
    add("WLB, P 1, s", seconds(of.wlb_alone));
    add("ours, P 1, s", seconds(of.ours_alone));
    add("best/best", factor_text(of.best_against_best()));
  }
  if (is_published) add("moved most by", move_text(of.move));
  return row;
}

void print_results(const std::vector<PaperResult>& results, int batches) {
  const PaperTable kind = results[0].row.table;
  Table table(row_of(results[0]).names),
      settings({"row", "WLB-ideal", "the paper's planner", "ours"});
  std::array<int64_t, 3> places{};
  for (const PaperResult& of : results) {
    if (const std::optional<int> place = of.place()) ++places[static_cast<size_t>(*place + 1)];
    table.add_row(row_of(of).cells);
    settings.add_row({of.row.name(), setting_text(of, of.wlb), setting_text(of, of.original),
                      setting_text(of, of.ours)});
  }
  fmt::print(
      "WLB-ideal's step over others, {} a row. The bounds are ours: if no rank ever waited, and if "
      "only core attention were even.",
      batches == 1 ? std::string("1 batch") : fmt::format("{} batches", batches));
  if (kind != PaperTable::kThreeDimensions) {
    fmt::print(
        " Its planner, P: both with so many stages; P 1: steps without a pipeline; best/best: with "
        "or without one.");
  }
  if (kind != PaperTable::kBeyond) {
    fmt::print(
        " Moved most by: the number of the machine that moves a row most towards the paper's "
        "range, to first order.");
  }
  fmt::print("\n{}\n", table.to_string());
  if (kind != PaperTable::kBeyond) {
    fmt::print(
        "The paper's planner is in the paper's range in {} of {} rows, below in {}, above in "
        "{}.\n\n",
        places[1], results.size(), places[0], places[2]);
  }
  fmt::print("Settings: stages P, nano-batches N, context parallelism CP\n{}",
             settings.to_string());
  for (const PaperResult& of : results) {
    for (const std::string& refusal : of.refusals)
      fmt::print("Not played: {}, {}\n", of.row.name(), refusal);
  }
}

void play_all_gathers(const Machine& machine) {
  Table table({"nodes", "paper", "played", "apart, points"});
  double most = 0;
  for (const AllGatherPoint& point : kAllGatherShares) {
    const double share = all_gather_share(point.nodes, machine);
    most = std::max(most, std::abs(share - point.published));
    table.add_row({fmt::format("{}", point.nodes), percent_of(point.published), percent_of(share),
                   fmt::format("{:+.1f}", 100 * (share - point.published))});
  }
  fmt::print(
      "Figure 3a: the share of all-gathers in a step of per-document context parallelism\n"
      "{}\nAt most {:.1f} points apart.\n",
      table.to_string(), 100 * most);
}

void play_one_stream(const std::vector<PaperRow>& rows, const PaperStudy& study) {
  Table table(
      {"row", "paper", "one stream longer by", "", "free bytes shorter by", "moved most by"});
  int64_t inside = 0;
  for (const PaperRow& row : rows) {
    const OneStreamCost cost = one_stream_cost(row, study);
    inside += cost.place() == 0 ? 1 : 0;
    table.add_row({row.name(), "10-17 %", percent_of(cost.longer), place_text(cost.place()),
                   percent_of(cost.bytes_cost), move_text(cost.move)});
  }
  fmt::print(
      "Figure 11: the paper's planner on one stream, and with messages that take no time for "
      "their bytes. Moved most by: the number of the machine that brings one stream's step over "
      "that "
      "of two nearest to the paper's 1.10 to 1.17, to first order.\n{}\nIn the paper's range in {} "
      "of {} rows.\n",
      table.to_string(), inside, rows.size());
}

/// The rows that figure 11 shows.
std::vector<PaperRow> figure_11_rows() {
  std::vector<PaperRow> rows = paper_rows(PaperTable::kThreeDimensions);
  std::erase_if(rows, [](const PaperRow& row) {
    return row.data != SampleKind::kPretrain || row.max_document_tokens != 131'072 ||
           row.gpus > 128;
  });
  return rows;
}

}  // namespace

void play_paper(const PaperArguments& asked, const std::filesystem::path& lengths,
                const Machine& machine) {
  DISTCA_THROW_IF(!machine.phases.empty(), ErrorKind::kConfig,
                  "--paper with machine {}: its phases were measured for another model; take a "
                  "machine without such phases",
                  machine.name);
  if (asked.experiment == "fig3a") {
    DISTCA_THROW_IF(!asked.rows.empty() || asked.batches > 1 || !lengths.empty(), ErrorKind::kUsage,
                    "--paper fig3a: its documents are alike and it has one batch; leave --rows, "
                    "--batches and --lengths out");
    print_constants(machine);
    return play_all_gathers(machine);
  }
  const PaperStudy study = study_of(asked, lengths, machine);
  const bool is_figure = asked.experiment == "fig11";
  const PaperTable table = asked.experiment == "table4"   ? PaperTable::kFourDimensions
                           : asked.experiment == "beyond" ? PaperTable::kBeyond
                                                          : PaperTable::kThreeDimensions;
  const std::vector<PaperRow> rows =
      asked_rows(is_figure ? figure_11_rows() : paper_rows(table), asked.rows);
  std::vector<PaperResult> results;
  print_constants(machine);
  if (is_figure) return play_one_stream(rows, study);
  for (const PaperRow& row : rows) results.push_back(play_row(row, study));
  standard_error().keep_progress();
  standard_error().finish(kConsolePatience);
  print_results(results, asked.batches);
}

}  // namespace distca::cli
