#include "cli/find_best.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "cli/best_found.h"
#include "cli/options.h"
#include "distca/base/clock.h"
#include "distca/base/console.h"
#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/base/text.h"
#include "distca/forecast/find_best.h"

namespace distca::cli {
namespace {

constexpr size_t kColumns = 100;  // text is broken there

std::string gib_text(double bytes) { return fmt::format("{:.1f}", bytes / 0x1p30); }
std::string percent_text(double share) { return fmt::format("{:.1f}", 100 * share); }

/// "8 x 1 x 4", by a Setting or a Division.
template <typename Divided>
std::string factors_text(const Divided& of) {
  return fmt::format("{} x {} x {}", of.tensor, of.stages, of.replicas);
}

std::string words_text(const Search& search, const Setting& setting) {
  return fmt::format("{}", fmt::join(words_of(search.config, setting), " "));
}

/// The columns that every table of settings has.
const std::vector<std::string> kSettingHeader = {"T x P x D", "nano-batches", "order",
                                                 "recompute", "step s",       "peak GiB"};
std::vector<std::string> setting_cells(const PlayedSetting& played) {
  const Setting& setting = played.setting;
  return {factors_text(setting),
          std::to_string(setting.nano_batches),
          order_of(setting),
          std::string(recompute_name(setting.recompute)),
          fmt::format("{:.4f}", played.seconds),
          gib_text(played.fullest().peak.total())};
}
std::vector<std::string> cells_of(std::initializer_list<std::string> before,
                                  std::vector<std::string> cells,
                                  std::initializer_list<std::string> behind) {
  cells.insert(cells.begin(), before);
  cells.insert(cells.end(), behind);
  return cells;
}

/// The first of the steps.
std::string own_text(const OwnSteps& own) {
  return own.empty() ? "-" : fmt::format("{:.4f}", own.front());
}

/// "1.101 to 1.150", or one number if both are it.
std::string range_text(const std::vector<double>& values, const char* format) {
  const auto [least, most] = std::ranges::minmax(values);
  const std::string from = fmt::format(fmt::runtime(format), least);
  const std::string to = fmt::format(fmt::runtime(format), most);
  return from == to ? from : fmt::format("{} to {}", from, to);
}

/// "steps 1 to 4"
std::string steps_text(const Search& search, size_t steps) {
  if (steps <= 1) return fmt::format("step {}", search.step);
  return fmt::format("steps {} to {}", search.step, search.step + static_cast<int64_t>(steps) - 1);
}

void print_best_of_ours(const Search& search) {
  std::vector<std::string> header =
      cells_of({"best"}, kSettingHeader, {"own cuts s", "tokens/s", "% of peak"});
  for (const Loss& loss : kLosses) header.push_back(fmt::format("% {}", loss.name));
  Table table(header);
  const std::vector<PlayedSetting>& best = search.found[0].best;
  for (size_t i = 0; i < best.size(); ++i) {
    std::vector<std::string> cells =
        cells_of({std::to_string(i + 1)}, setting_cells(best[i]),
                 {own_text(search.own[0][i]), with_thousands(std::llround(best[i].tokens_per_s)),
                  percent_text(best[i].share_of_peak)});
    for (const Loss& loss : kLosses)
      cells.push_back(percent_text(loss.seconds(best[i]) / best[i].seconds));
    table.add_row(std::move(cells));
  }
  fmt::print("\n{}\n", table.to_string());
  for (size_t i = 0; i < best.size(); ++i)
    fmt::print("{:>4}  {}\n", i + 1, words_text(search, best[i].setting));
  fmt::print("\nEach rank of the best one runs:\n    {} {}\n", search.command,
             words_text(search, best[0].setting));
}

/// The part of a step that grew most against another one: "waits for peers +0.120 s".
std::string main_loss(const PlayedSetting& played, const PlayedSetting& best) {
  const auto more = [&](const Loss& loss) { return loss.seconds(played) - loss.seconds(best); };
  const auto most = std::ranges::max_element(kLosses, {}, more);
  return fmt::format("{} {:+.4f} s", most->name, more(*most));
}

std::string too_large_text(const TooLarge& nearest) {
  const MemoryParts& bytes = nearest.bytes;
  return fmt::format("does not fit: {} GiB at least, {} of them {}", gib_text(bytes.total()),
                     gib_text(bytes.of(bytes.largest())), memory_part_name(bytes.largest()));
}

std::string counts_text(const Search& search, const Found& found) {
  std::vector<std::string> parts = {
      fmt::format("{} predicted whole", with_thousands(found.played))};
  if (found.too_large > 0)
    parts.push_back(fmt::format("{} do not fit {:g} GiB", with_thousands(found.too_large),
                                search.memory_gib()));
  if (found.ruled_out > 0)
    parts.push_back(
        fmt::format("{} ruled out, as they would take longer than {} even if no rank "
                    "waited for another",
                    with_thousands(found.ruled_out),
                    found.contestant.is_ours() ? "the tenth best" : "the best"));
  if (found.refused > 0)
    parts.push_back(fmt::format("{} cannot be planned (the first: {})",
                                with_thousands(found.refused), found.refusal));
  return fmt::format("{} settings: {}", with_thousands(found.settings), fmt::join(parts, ", "));
}

void print_divisions(const Search& search) {
  const Found& ours = search.found[0];
  const PlayedSetting& best = ours.best[0];
  fmt::print(
      "\nWhy the others lose. {}.\n"
      "For each division, the best setting that was predicted, and what of its step is most longer "
      "than the best one's:\n\n",
      counts_text(search, ours));
  Table table(cells_of({}, kSettingHeader, {"longer by %", "mainly"}));
  for (const Division& of : ours.divisions) {
    if (!of.best) {
      table.add_row({factors_text(of), "-", "-", "-", "-", "-", "-",
                     of.nearest ? too_large_text(*of.nearest) : "cannot be planned"});
      continue;
    }
    const double longer = of.best->seconds / best.seconds - 1;
    table.add_row(
        cells_of({}, setting_cells(*of.best),
                 {percent_text(longer), longer > 0 ? main_loss(*of.best, best) : "the best"}));
  }
  fmt::print("{}", table.to_string());
}

void print_best_against_best(const Search& search) {
  const PlayedSetting& ours = search.found[0].best[0];
  Table table(cells_of({"best against best"}, kSettingHeader,
                       {"% of peak", "step of ours", "own cuts s", "of ours, steps", "mainly"}));
  for (size_t i = 0; i < search.found.size(); ++i) {
    const Found& found = search.found[i];
    if (found.best.empty()) continue;
    const PlayedSetting& best = found.best[0];
    const std::vector<double> ratios = own_ratios(search, i);
    table.add_row(cells_of(
        {found.contestant.name}, setting_cells(best),
        {percent_text(best.share_of_peak), fmt::format("{:.3f}", best.seconds / ours.seconds),
         own_text(search.own[i][0]), ratios.empty() ? "-" : range_text(ratios, "{:.3f}"),
         i == 0 ? "" : main_loss(best, ours)}));
  }
  fmt::print("\n{}\n", table.to_string());
  for (const Found& found : search.found) {
    if (found.contestant.is_ours()) continue;
    fmt::print("{}: {}\n", found.contestant.name, counts_text(search, found));
    if (found.best.empty()) {
      if (found.nearest) fmt::print("    {}\n", too_large_text(*found.nearest));
      continue;
    }
    const Setting& best = found.best[0].setting;
    fmt::print("    {}\n", best.virtual_stages > 1
                               ? "predicted only: distca train plays no virtual stages"
                               : words_text(search, best));
  }
}

/// The best division but that of the best setting. Null if there is no other one that fits.
const PlayedSetting* next_division(const Found& ours) {
  const PlayedSetting* next = nullptr;
  for (const Division& of : ours.divisions) {
    const Setting& best = ours.best[0].setting;
    if (!of.best || (of.tensor == best.tensor && of.stages == best.stages)) continue;
    if (!next || of.best->seconds < next->seconds) next = &*of.best;
  }
  return next;
}

/// The reasons why the best setting is best.
std::string reasons(const Found& ours) {
  const PlayedSetting& best = ours.best[0];
  const auto largest = std::max_element(
      kLosses.begin() + 2, kLosses.end(),
      [&](const Loss& a, const Loss& b) { return a.seconds(best) < b.seconds(best); });
  std::string text = fmt::format(
      "Ours is best with {}, {} nano-batches, {}: {:.4f} s, {} tokens/s. Ranks compute in {} % of "
      "the step, and the largest loss, {}, takes {} %.",
      division_text(best.setting), best.setting.nano_batches, order_of(best.setting), best.seconds,
      with_thousands(std::llround(best.tokens_per_s)),
      percent_text(best.mean.computed() / best.seconds), largest->name,
      percent_text(largest->seconds(best) / best.seconds));
  const PlayedSetting* next = next_division(ours);
  if (next == nullptr) return text;
  return text + fmt::format(" The next division, {}, takes {} % longer, mainly {}.",
                            division_text(next->setting),
                            percent_text(next->seconds / best.seconds - 1), main_loss(*next, best));
}

/// The best setting with the documents of its own run. Empty if it cannot be planned for them.
std::string own_reasons(const Search& search) {
  const OwnSteps& own = search.own[0][0];
  if (own.empty()) return "";
  return fmt::format(
      " With the documents of the run itself, {} take {} s, {} tokens/s at the slowest.",
      steps_text(search, own.size()), range_text(own, "{:.4f}"),
      with_thousands(std::llround(static_cast<double>(search.tokens()) / std::ranges::max(own))));
}

/// Best against best, in sentences.
std::string headline(const Search& search) {
  const PlayedSetting& ours = search.found[0].best[0];
  std::vector<std::string> sentences = {
      wrap(reasons(search.found[0]) + own_reasons(search), kColumns)};
  for (size_t i = 0; i < search.found.size(); ++i) {
    const Found& found = search.found[i];
    if (found.contestant.is_ours() || found.best.empty()) continue;
    const PlayedSetting& best = found.best[0];
    std::string text = fmt::format(
        "{} at its best ({}) takes {:.3f} times the step of ours at its best",
        found.contestant.name, division_text(best.setting), best.seconds / ours.seconds);
    if (const std::vector<double> ratios = own_ratios(search, i); !ratios.empty())
      text += fmt::format(", {} times in {} of the runs themselves", range_text(ratios, "{:.3f}"),
                          steps_text(search, ratios.size()));
    if (best.setting.stages == 1) text += "; its best has no pipeline";
    sentences.push_back(wrap(text + ".", kColumns));
  }
  return fmt::format("{}", fmt::join(sentences, "\n"));
}

void print_limits(const Search& search) {
  const auto measured = std::ranges::count_if(search.machine.numbers, [](const auto& number) {
    return number.source.starts_with("measured");
  });
  fmt::print(
      "\n{}\n{}\n{}\n{}\n",
      wrap(fmt::format("Documents: all settings have the same, cut at {} tokens and where one of "
                       "{} nano-batches ends. A run with fewer nano-batches cuts fewer documents: "
                       "\"own cuts\" is its step, which distca simulate predicts for the words, "
                       "and \"of ours, steps\" the least and the most of {}.",
                       with_thousands(search.config.batch.max_document_tokens), search.nano_batches,
                       steps_text(search, search.own[0][0].size())),
           kColumns),
      wrap("Kept from the configuration: all other keys, parallel.use_distributed_optimizer among "
           "them. Recomputation is the least that fits.",
           kColumns),
      wrap("Rivals are those that this program has as plans, with its overlap; in pipelines 1F1B, "
           "plain, with weight gradients in idle ticks (up to P outstanding, as ZB-H1 has it) and "
           "interleaved (2 or 4 virtual stages, predicted only). Documents stay in their "
           "nano-batch.",
           kColumns),
      wrap(fmt::format("The numbers of {}: {} of {} are measured, the others stated or assumed; "
                       "distca simulate says of each where it is from, and what it decides.",
                       search.machine.name, measured, search.machine.numbers.size()),
           kColumns));
}

void print_search(const Search& search) {
  fmt::print(
      "The best setting of {} GPUs of machine {} for step {}: {} tokens in up to {} "
      "nano-batches\n{}\n{}\n{}\n",
      search.gpus, search.machine.name, search.step, with_thousands(search.tokens()),
      search.nano_batches, search.notes, headline(search),
      wrap("T ranks divide every layer (tensor parallelism), P stages divide the layers (a "
           "pipeline), and D replicas have all of them; T x P x D is the number of GPUs.",
           kColumns));
  print_best_of_ours(search);
  print_divisions(search);
  print_best_against_best(search);
  print_limits(search);
}

/// Shows how far the search is.
class FindProgress {
 public:
  explicit FindProgress(size_t contestants) : contestants_(contestants) {}

  void operator()(const Contestant& contestant, int64_t tried, int64_t left) {
    if (contestant.name != name_) {
      name_ = contestant.name;
      ++number_;
      of_contestant_.restart();
    }
    show_(fmt::format(
        "{}, {} of {}: {} settings tried, at most {} left, {:.0f} s", contestant.name, number_,
        contestants_, tried, left,
        of_contestant_.seconds() / static_cast<double>(tried) * static_cast<double>(left)));
  }

 private:
  size_t contestants_, number_ = 0;
  std::string name_;
  Stopwatch of_contestant_;
  PacedProgress show_;
};

/// The contestants of a search: ours, and those of the rivals that are asked for.
std::vector<Contestant> contestants_of(const FindBestArguments& asked) {
  std::vector<Contestant> all = contestants();
  if (!asked.rivals) return all;
  std::vector<std::string> names;
  for (const Contestant& contestant : all) {
    if (!contestant.is_ours()) names.push_back(contestant.name);
  }
  for (const std::string& name : *asked.rivals) {
    DISTCA_THROW_IF(name != "none" && std::ranges::count(names, name) == 0, ErrorKind::kUsage,
                    "--rivals {}: it is none of {}, none", name, fmt::join(names, ", "));
    DISTCA_THROW_IF(name == "none" && asked.rivals->size() > 1, ErrorKind::kUsage,
                    "--rivals none beside other names: give one or the other");
  }
  std::erase_if(all, [&](const Contestant& contestant) {
    return !contestant.is_ours() && std::ranges::count(*asked.rivals, contestant.name) == 0;
  });
  return all;
}

/// The word as a shell reads it.
std::string quoted(const std::string& word) {
  constexpr std::string_view kSafe =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=.,:/@%";
  if (word.find_first_not_of(kSafe) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

/// `distca train` with the file and the words of the search, without those of a setting.
std::string train_command(const StepArguments& asked, const Config& config) {
  std::string command = "distca train";
  if (!asked.config.empty()) command += " --config " + quoted(asked.config);
  for (const std::string& word : asked.overrides) command += " " + quoted(word);
  if (config.data.prefix.empty()) command += " data.prefix=PREFIX";
  return command;
}

/// The configuration whose batch is that of all settings: as many nano-batches as any has.
Config finest(Config config) {
  const int64_t tokens = config.batch.nano_batches * config.batch.nano_batch_tokens;
  config.batch.nano_batches = most_nano_batches(config.batch);
  config.batch.nano_batch_tokens = tokens / config.batch.nano_batches;
  return config;
}

}  // namespace

std::string find_best_setting(const StepArguments& asked, const Config& config,
                              const Machine& machine, const FindBestArguments& find, bool as_json) {
  StepArguments of_gpus = asked;
  of_gpus.workers = find.gpus;
  Config alone = finest(config);  // every GPU a server: nothing is larger
  alone.parallel.tensor_model_parallel_size = alone.parallel.pipeline_model_parallel_size = 1;
  const std::vector<Contestant> contestants = contestants_of(find);
  const AskedStep step = asked_step(alone, of_gpus);
  Search search{.config = config,
                .machine = machine,
                .gpus = find.gpus,
                .step = asked.step,
                .nano_batches = std::ssize(step.batch),
                .notes = step.notes,
                .command = train_command(asked, config)};
  search.found = find_best({.config = config,
                            .batch = step.batch,
                            .is_first_step = asked.step == 1,
                            .gpus = find.gpus,
                            .machine = machine,
                            .contestants = contestants},
                           FindProgress(contestants.size()));
  play_own_steps(search, of_gpus);
  standard_error().keep_progress();
  standard_error().finish(kConsolePatience);
  const std::string json = canonical_json(json_of(search));
  if (as_json) {
    fmt::print("{}", json);
  } else {
    print_search(search);
  }
  return json;
}

}  // namespace distca::cli
