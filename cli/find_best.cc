#include "cli/find_best.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/console.h"
#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/base/text.h"
#include "distca/forecast/find_best.h"

namespace distca::cli {
namespace {

/// The parts of a step by which settings are compared, on average over all ranks.
struct Loss {
  const char* name;
  double (*seconds)(const PlayedSetting&);
};
constexpr std::array<Loss, 6> kLosses{{
    {"attention", [](const PlayedSetting& of) { return of.mean.attention; }},
    {"linear", [](const PlayedSetting& of) { return of.mean.linear - of.recomputed_s; }},
    {"recomputed", [](const PlayedSetting& of) { return of.recomputed_s; }},
    {"copies, issues", [](const PlayedSetting& of) { return of.mean.copied + of.mean.issued; }},
    {"waits for peers", [](const PlayedSetting& of) { return of.mean.late + of.mean.idle; }},
    {"waits for bytes", [](const PlayedSetting& of) { return of.mean.exposed; }},
}};

/// All that is printed.
struct Search {
  const Config& config;
  const Machine& machine;
  int gpus = 1;
  int64_t step = 1;
  int64_t nano_batches = 1;  // the most that a setting has
  std::string notes;
  std::vector<Found> found;
  /// [found] The step of the best setting with the documents that its own run would have. Not set
  /// if there is no best one, or if it cannot be planned for them.
  std::vector<std::optional<double>> own_s;

  int64_t tokens() const { return config.batch.nano_batches * config.batch.nano_batch_tokens; }
  double memory_gib() const { return machine.of(MachineNumber::kMemoryGib); }
};

constexpr size_t kColumns = 100;  // text is broken there

std::string gib_text(double bytes) { return fmt::format("{:.1f}", bytes / 0x1p30); }
std::string percent_text(double share) { return fmt::format("{:.1f}", 100 * share); }

std::string factors_text(int tensor, int stages, int replicas) {
  return fmt::format("{} x {} x {}", tensor, stages, replicas);
}
std::string factors_text(const Setting& setting) {
  return factors_text(setting.tensor, setting.stages, setting.replicas);
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
          gib_text(played.peak.total())};
}
std::vector<std::string> cells_of(std::initializer_list<std::string> before,
                                  std::vector<std::string> cells,
                                  std::initializer_list<std::string> behind) {
  cells.insert(cells.begin(), before);
  cells.insert(cells.end(), behind);
  return cells;
}

void print_best_of_ours(const Search& search) {
  std::vector<std::string> header = cells_of({"best"}, kSettingHeader, {"tokens/s", "% of peak"});
  for (const Loss& loss : kLosses) header.push_back(fmt::format("% {}", loss.name));
  Table table(header);
  const std::vector<PlayedSetting>& best = search.found[0].best;
  for (size_t i = 0; i < best.size(); ++i) {
    std::vector<std::string> cells = cells_of(
        {std::to_string(i + 1)}, setting_cells(best[i]),
        {with_thousands(std::llround(best[i].tokens_per_s)), percent_text(best[i].share_of_peak)});
    for (const Loss& loss : kLosses)
      cells.push_back(percent_text(loss.seconds(best[i]) / best[i].seconds));
    table.add_row(std::move(cells));
  }
  fmt::print("\n{}\n", table.to_string());
  for (size_t i = 0; i < best.size(); ++i)
    fmt::print("{:>4}  {}\n", i + 1, words_text(search, best[i].setting));
}

/// The part of a step that grew most against another one: "waits for peers +0.120 s".
std::string main_loss(const PlayedSetting& played, const PlayedSetting& best) {
  const auto more = [&](const Loss& loss) { return loss.seconds(played) - loss.seconds(best); };
  const auto most = std::ranges::max_element(kLosses, {}, more);
  return fmt::format("{} {:+.4f} s", most->name, more(*most));
}

std::string too_large_text(const TooLarge& nearest) {
  const MemoryParts& bytes = nearest.bytes;
  const auto most = std::ranges::max_element(bytes.bytes) - bytes.bytes.begin();
  return fmt::format("does not fit: {} GiB at least, {} of them {}", gib_text(bytes.total()),
                     gib_text(bytes.bytes[static_cast<size_t>(most)]),
                     memory_part_name(static_cast<MemoryPart>(most)));
}

std::string counts_text(const Search& search, const Found& found) {
  std::vector<std::string> parts = {
      fmt::format("{} predicted whole", with_thousands(found.played))};
  if (found.too_large > 0)
    parts.push_back(fmt::format("{} do not fit {:g} GiB", with_thousands(found.too_large),
                                search.memory_gib()));
  if (found.ruled_out > 0)
    parts.push_back(fmt::format("{} take longer even if no rank waits for another",
                                with_thousands(found.ruled_out)));
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
      table.add_row({factors_text(of.tensor, of.stages, of.replicas), "-", "-", "-", "-", "-", "-",
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
                       {"% of peak", "step of ours", "own cuts s", "of ours", "mainly"}));
  for (size_t i = 0; i < search.found.size(); ++i) {
    const Found& found = search.found[i];
    if (found.best.empty()) continue;
    const PlayedSetting& best = found.best[0];
    table.add_row(cells_of(
        {found.contestant.name}, setting_cells(best),
        {percent_text(best.share_of_peak), fmt::format("{:.3f}", best.seconds / ours.seconds),
         search.own_s[i] ? fmt::format("{:.4f}", *search.own_s[i]) : "-",
         search.own_s[i] && search.own_s[0]
             ? fmt::format("{:.3f}", *search.own_s[i] / *search.own_s[0])
             : "-",
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
    fmt::print("    {}\n", words_text(search, found.best[0].setting));
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
      "Ours is best with {}, {} nano-batches, {}: {:.4f} s. Ranks compute in {} % of the step, and "
      "the largest loss, {}, takes {} %.",
      division_text(best.setting), best.setting.nano_batches, order_of(best.setting), best.seconds,
      percent_text(best.mean.computed() / best.seconds), largest->name,
      percent_text(largest->seconds(best) / best.seconds));
  const PlayedSetting* next = next_division(ours);
  if (next == nullptr) return text;
  return text + fmt::format(" The next division, {}, takes {} % longer, mainly {}.",
                            division_text(next->setting),
                            percent_text(next->seconds / best.seconds - 1), main_loss(*next, best));
}

/// Best against best, in sentences.
std::string headline(const Search& search) {
  const PlayedSetting& ours = search.found[0].best[0];
  std::vector<std::string> sentences = {wrap(reasons(search.found[0]), kColumns)};
  for (const Found& found : search.found) {
    if (found.contestant.is_ours() || found.best.empty()) continue;
    const PlayedSetting& best = found.best[0];
    const char* pipeline = best.setting.stages == 1 ? ", and its best has no pipeline" : "";
    sentences.push_back(
        wrap(fmt::format("{} at its best ({}) takes {:.3f} times the step of ours at its best{}.",
                         found.contestant.name, division_text(best.setting),
                         best.seconds / ours.seconds, pipeline),
             kColumns));
  }
  return fmt::format("{}", fmt::join(sentences, "\n"));
}

void print_limits(const Search& search) {
  const auto measured = std::ranges::count_if(search.machine.numbers, [](const auto& number) {
    return number.source.starts_with("measured");
  });
  fmt::print(
      "\n{}\n{}\n{}\n{}\n",
      wrap(
          fmt::format("Documents: all settings have the same, cut at {} tokens and where one of "
                      "{} nano-batches ends. A run with fewer nano-batches cuts fewer documents: "
                      "\"own cuts\" is its step, which distca simulate predicts for the words.",
                      with_thousands(search.config.batch.max_document_tokens), search.nano_batches),
          kColumns),
      wrap("Kept from the configuration: all other keys, parallel.use_distributed_optimizer among "
           "them. Recomputation is the least that fits.",
           kColumns),
      wrap("Rivals are those that this program has as plans, with its overlap; in pipelines 1F1B, "
           "plain and with weight gradients in idle ticks (up to P outstanding, as ZB-H1 has it). "
           "Documents stay in their nano-batch. Not compared: interleaved 1F1B.",
           kColumns),
      wrap(fmt::format("The numbers of {}: {} of {} are measured, the others stated or assumed; "
                       "distca simulate says of each where it is from, and what it decides.",
                       search.machine.name, measured, search.machine.numbers.size()),
           kColumns));
}

void print_search(const Search& search) {
  fmt::print(
      "The best setting of {} GPUs of machine {} for step {}: {} tokens in up to {} "
      "nano-batches\n{}\n{}\n",
      search.gpus, search.machine.name, search.step, with_thousands(search.tokens()),
      search.nano_batches, search.notes, headline(search));
  print_best_of_ours(search);
  print_divisions(search);
  print_best_against_best(search);
  print_limits(search);
}

Json setting_json(const Search& search, const PlayedSetting& played) {
  const Setting& setting = played.setting;
  Json parts = Json::object();
  for (const Loss& loss : kLosses) {
    std::string key = loss.name;
    std::erase(key, ',');
    std::ranges::replace(key, ' ', '_');
    parts[key] = loss.seconds(played);
  }
  return {{"tensor", setting.tensor},
          {"stages", setting.stages},
          {"replicas", setting.replicas},
          {"nano_batches", setting.nano_batches},
          {"order", order_of(setting)},
          {"recompute", recompute_name(setting.recompute)},
          {"step_s", played.seconds},
          {"tokens_per_s", played.tokens_per_s},
          {"share_of_peak", played.share_of_peak},
          {"peak_bytes", std::llround(played.peak.total())},
          {"peak_where", played.peak.where},
          {"plan_hash", fmt::format("{:016x}", played.plan_hash)},
          {"parts_s", std::move(parts)},
          {"words", words_of(search.config, setting)}};
}

Json search_json(const Search& search) {
  Json all = Json::array();
  for (size_t i = 0; i < search.found.size(); ++i) {
    const Found& found = search.found[i];
    Json best = Json::array(), divisions = Json::array();
    for (const PlayedSetting& played : found.best) best.push_back(setting_json(search, played));
    for (const Division& of : found.divisions) {
      Json json{{"tensor", of.tensor}, {"stages", of.stages}, {"replicas", of.replicas}};
      if (of.best) json["best"] = setting_json(search, *of.best);
      if (!of.best && of.nearest) json["least_bytes"] = std::llround(of.nearest->bytes.total());
      divisions.push_back(std::move(json));
    }
    all.push_back({{"name", found.contestant.name},
                   {"settings", found.settings},
                   {"predicted", found.played},
                   {"too_large", found.too_large},
                   {"ruled_out", found.ruled_out},
                   {"refused", found.refused},
                   {"best", std::move(best)},
                   {"divisions", std::move(divisions)}});
    if (search.own_s[i]) all.back()["own_cuts_step_s"] = *search.own_s[i];
  }
  return {{"gpus", search.gpus},
          {"machine", search.machine.name},
          {"step", search.step},
          {"tokens", search.tokens()},
          {"most_nano_batches", search.nano_batches},
          {"contestants", std::move(all)}};
}

/// Shows how far the search is: on one line of a terminal ten times a second, elsewhere a line
/// every ten seconds.
class FindProgress {
 public:
  void operator()(const Contestant& contestant, int64_t tried, int64_t left) {
    if (since_shown_.seconds() < (standard_error().is_terminal() ? 0.1 : 10)) return;
    since_shown_.restart();
    standard_error().progress(
        fmt::format("{}: {} settings tried, at most {} left", contestant.name, tried, left));
  }

 private:
  Stopwatch since_shown_;
};

/// The configuration whose batch is that of all settings: as many nano-batches as any has.
Config finest(Config config) {
  const int64_t tokens = config.batch.nano_batches * config.batch.nano_batch_tokens;
  config.batch.nano_batches = most_nano_batches(config.batch);
  config.batch.nano_batch_tokens = tokens / config.batch.nano_batches;
  return config;
}

/// The step of a contestant's best setting with the documents that `distca train` would have.
std::optional<double> own_seconds(const Search& search, const Found& found,
                                  const StepArguments& asked) {
  if (found.best.empty()) return std::nullopt;
  const PlayedSetting& best = found.best[0];
  if (best.setting.nano_batches == search.nano_batches) return best.seconds;
  const Config own = config_of(search.config, best.setting);
  try {
    const Batch batch = asked_step(own, asked).batch;
    return simulate_step(own, batch, search.gpus, search.machine,
                         {.sensitivities = false, .plain_packing = false})
        .seconds;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kPlan) throw;
    return std::nullopt;  // its cap is below a document that is whole there
  }
}

}  // namespace

void find_best_setting(const StepArguments& asked, const Config& config, const Machine& machine,
                       int gpus, bool json) {
  StepArguments of_gpus = asked;
  of_gpus.workers = gpus;
  Config alone = finest(config);  // every GPU a server: nothing is larger
  alone.parallel.tensor_model_parallel_size = alone.parallel.pipeline_model_parallel_size = 1;
  const AskedStep step = asked_step(alone, of_gpus);
  check_sizes_of(alone, step);
  Search search{.config = config,
                .machine = machine,
                .gpus = gpus,
                .step = asked.step,
                .nano_batches = std::ssize(step.batch),
                .notes = step.notes,
                .found = {},
                .own_s = {}};
  search.found = find_best(
      {.config = config, .batch = step.batch, .gpus = gpus, .machine = machine}, FindProgress());
  for (const Found& found : search.found)
    search.own_s.push_back(own_seconds(search, found, of_gpus));
  standard_error().keep_progress();
  standard_error().finish(kConsolePatience);
  if (json) return fmt::print("{}", canonical_json(search_json(search)));
  print_search(search);
}

}  // namespace distca::cli
