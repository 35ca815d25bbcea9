#include "distca/cost/machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/json_field.h"

namespace distca {
namespace {

constexpr const char* kMachineFormat = "distca-machine";
constexpr int64_t kMachineVersion = 2;

struct NumberRow {
  const char* name;
  double least, most;
  bool is_whole = false;
};
constexpr std::array<NumberRow, kNumMachineNumbers> kRows{{
    {"peak_tflops", 1e-6, 1e6},
    {"linear_tflops", 1e-6, 1e6},
    {"phase_rate", 1e-3, 1e3},
    {"attention_rate", 1e-3, 1e3},
    {"attention_call_us", 0, 1e6},
    {"memory_gb_per_s", 1e-3, 1e6},
    {"copy_gb_per_s", 1e-3, 1e6},
    {"issue_us", 0, 1e6},
    {"issue_gb_per_s", 0, 1e6},
    {"core_gb_per_s", 0, 1e6},
    {"step_us", 0, 1e9},
    {"inside_gb_per_s", 1e-3, 1e6},
    {"inside_latency_us", 0, 1e6},
    {"between_gb_per_s", 1e-3, 1e6},
    {"between_latency_us", 0, 1e6},
    {"burst_kib", 0, 1e9},
    {"ranks_per_node", 1, 1 << 20, /*is_whole=*/true},
    {"in_order", 0, 1, /*is_whole=*/true},
    {"memory_gib", 1e-3, 1e6},
}};
static_assert(kRows.back().name != nullptr, "a number has no row");

/// Sources may be shown in one line of a table.
constexpr size_t kLongestText = 200;

std::string text_of(const JsonField& field) {
  const std::string& text = field.text();
  field.expect(!text.empty() && text.size() <= kLongestText && text.find('\n') == text.npos,
               fmt::format("one line of 1 to {} characters", kLongestText));
  return text;
}

bool says_source(const std::string& text) {
  return text.starts_with("measured") || text.starts_with("stated: ") ||
         text.starts_with("assumed: ");
}

std::array<Machine::Number, kNumMachineNumbers> numbers_of(const JsonField& numbers) {
  std::array<Machine::Number, kNumMachineNumbers> all;
  std::vector<std::string_view> names;
  for (const NumberRow& row : kRows) names.push_back(row.name);
  numbers.only(names, kMachineVersion);
  for (size_t i = 0; i < kRows.size(); ++i) {
    const NumberRow& row = kRows[i];
    const JsonField field = numbers[row.name];
    field.only({"value", "source"}, kMachineVersion);
    const double value = field["value"].number();
    const bool is_right =
        value >= row.least && value <= row.most &&
        (!row.is_whole || value == static_cast<double>(static_cast<int64_t>(value)));
    field["value"].expect(
        is_right, fmt::format("{} in {:g} .. {:g}", row.is_whole ? "a whole number" : "a number",
                              row.least, row.most));
    all[i] = {value, text_of(field["source"])};
    field["source"].expect(says_source(all[i].source),
                           "a text that begins with \"measured\", \"stated: \" or \"assumed: \"");
  }
  return all;
}

PhaseTimes phase_of(const JsonField& field) {
  constexpr int64_t kMost = int64_t{1} << 60;
  field.only({"phase", "pass", "flops_per_token", "tokens", "ns"}, kMachineVersion);
  const std::string& word = field["pass"].text();
  const Pass pass = word == pass_name(Pass::kForward) ? Pass::kForward : Pass::kBackward;
  field["pass"].expect(word == pass_name(pass), "\"forward\" or \"backward\"");
  PhaseTimes times{.phase = text_of(field["phase"]),
                   .pass = pass,
                   .flops_per_token = field["flops_per_token"].integer(0, kMost),
                   .tokens = field["tokens"].integers(),
                   .ns = field["ns"].integers()};
  bool ascends = times.tokens.size() > 1;
  for (size_t i = 0; i < times.tokens.size(); ++i)
    ascends = ascends && times.tokens[i] > (i == 0 ? 0 : times.tokens[i - 1]);
  field["tokens"].expect(ascends, "two or more ascending numbers above 0");
  field["ns"].expect(times.ns.size() == times.tokens.size() &&
                         std::ranges::all_of(times.ns, [](int64_t ns) { return ns > 0; }),
                     fmt::format("{} numbers above 0", times.tokens.size()));
  return times;
}

Machine::Check check_of(const JsonField& field) {
  field.only({"predicted_s", "measured_s"}, kMachineVersion);
  const Machine::Check check{.predicted_s = field["predicted_s"].number(),
                             .measured_s = field["measured_s"].number()};
  for (const char* name : {"predicted_s", "measured_s"})
    field[name].expect(field[name].number() >= 0 && field[name].number() <= 1e9,
                       "a number in 0 .. 1e+09");
  return check;
}

/// Constants of DGX nodes with eight GPUs and an InfiniBand port of 400 Gb/s for each.
Machine dgx(const std::string& name, Machine::Number memory_rate, Machine::Number memory) {
  Machine machine{.name = name, .attention = profile_by_name("h200")};
  const auto set = [&](MachineNumber number, double value, const char* source) {
    machine.at(number) = {value, source};
  };
  set(MachineNumber::kPeakTflops, 989, "stated: data sheet, bf16 without sparsity");
  set(MachineNumber::kLinearTflops, 643,
      "assumed: 65 % of the peak; the best product measured on an H100 reaches 80 %");
  set(MachineNumber::kPhaseRate, 1, "stated: no phase was measured");
  set(MachineNumber::kAttentionRate, 1,
      "assumed: FlashAttention 2 on an H200 by the paper's Fig. 5, backward at 80 % of that rate");
  set(MachineNumber::kAttentionCallUs, 25, "assumed: a launch, by the paper's published profile");
  machine.at(MachineNumber::kMemoryGbPerS) = std::move(memory_rate);
  set(MachineNumber::kCopyGbPerS, 2000, "assumed: read and written");
  set(MachineNumber::kIssueUs, 10, "assumed: a grouped call of NCCL");
  set(MachineNumber::kIssueGbPerS, 0, "assumed: a launch takes as long for any bytes");
  set(MachineNumber::kCoreGbPerS, 0, "assumed: kernels of NCCL take nothing of the host's thread");
  set(MachineNumber::kStepUs, 0, "assumed: nothing besides operations");
  set(MachineNumber::kInsideGbPerS, 360, "assumed: NVLink's 450 GB/s, of which NCCL reaches 370");
  set(MachineNumber::kInsideLatencyUs, 20, "assumed: a message of NCCL");
  set(MachineNumber::kBetweenGbPerS, 50, "stated: InfiniBand of 400 Gb/s a GPU, as in the paper");
  set(MachineNumber::kBetweenLatencyUs, 20, "assumed: a message of NCCL");
  set(MachineNumber::kBurstKib, 0, "assumed: no token bucket");
  set(MachineNumber::kRanksPerNode, 8, "stated: a DGX node");
  set(MachineNumber::kInOrder, 1, "stated: NCCL with one communicator");
  machine.at(MachineNumber::kMemoryGib) = std::move(memory);
  return machine;
}

}  // namespace

const char* machine_number_name(MachineNumber number) {
  return kRows[static_cast<size_t>(number)].name;
}

const std::vector<std::string>& known_machines() {
  static const std::vector<std::string> known = {"h100", "h200"};
  return known;
}

Machine machine_by_name(const std::string& name) {
  if (name == "h100") {
    return dgx(name, {3350, "stated: data sheet, H100 SXM"},
               {78, "stated: what a driver shows of 80 GB, less 1 GiB of its own"});
  }
  if (name == "h200") {
    return dgx(name, {4800, "stated: data sheet"},
               {139, "stated: what a driver shows of 141 GB, less 1 GiB of its own"});
  }
  std::error_code denied;  // set if the file cannot be looked at; read_file() then says why
  if (!std::filesystem::exists(name, denied) && !denied) {
    throw Error(ErrorKind::kData, "machine {}: no such file, and the known names are {}", name,
                fmt::join(known_machines(), ", "));
  }
  return machine_from_json(read_file(name, ErrorKind::kData), name);
}

std::string machine_to_json(const Machine& machine) {
  Json numbers = Json::object(), phases = Json::array();
  for (const PhaseTimes& times : machine.phases) {
    phases.push_back({{"phase", times.phase},
                      {"pass", pass_name(times.pass)},
                      {"flops_per_token", times.flops_per_token},
                      {"tokens", times.tokens},
                      {"ns", times.ns}});
  }
  for (size_t i = 0; i < kRows.size(); ++i)
    numbers[kRows[i].name] = {{"value", machine.numbers[i].value},
                              {"source", machine.numbers[i].source}};
  return canonical_json(
      {{"format", kMachineFormat},
       {"version", kMachineVersion},
       {"name", machine.name},
       {"attention", Json::parse(profile_to_json(*machine.attention))},
       {"numbers", std::move(numbers)},
       {"phases", std::move(phases)},
       {"settings", machine.settings},
       {"check",
        {{"predicted_s", machine.check.predicted_s}, {"measured_s", machine.check.measured_s}}}});
}

Machine machine_from_json(std::string_view json, std::string_view name) {
  const Json parsed = parse_json(json, name);
  const JsonField root(parsed, name, ErrorKind::kData);
  root["format"].expect(root["format"].text() == kMachineFormat,
                        fmt::format("\"{}\"", kMachineFormat));
  root["version"].expect(root["version"].integer() == kMachineVersion,
                         fmt::format("{}", kMachineVersion));
  root.only({"format", "version", "name", "attention", "numbers", "phases", "settings", "check"},
            kMachineVersion);
  Machine machine{
      .name = text_of(root["name"]), .attention = nullptr, .numbers = numbers_of(root["numbers"])};
  if (parsed["attention"].is_string()) {
    const std::string& known = root["attention"].text();
    root["attention"].expect(known == "h200", "\"h200\" or a profile");
    machine.attention = profile_by_name(known);
  } else {
    machine.attention = std::make_shared<const AttentionProfile>(
        profile_from_json(canonical_json(parsed["attention"]), std::string(name) + ": attention"));
  }
  if (root.has("check")) machine.check = check_of(root["check"]);
  if (!root.has("phases")) return machine;
  const JsonField phases = root["phases"], settings = root["settings"];
  for (size_t i = 0; i < phases.size(); ++i) {
    machine.phases.push_back(phase_of(phases.at(i)));
    const auto same = [&](const PhaseTimes& other) {
      return other.phase == machine.phases[i].phase && other.pass == machine.phases[i].pass;
    };
    phases.at(i).expect(std::ranges::count_if(machine.phases, same) == 1,
                        "of another phase or pass than those before");
  }
  settings.expect(parsed["settings"].is_object(), "an object");
  for (const auto& [setting, value] : parsed["settings"].items())
    machine.settings[setting] = text_of(settings[setting]);
  return machine;
}

double PhaseTimes::seconds(int64_t num_tokens) const {
  const auto at = std::ranges::lower_bound(tokens, num_tokens) - tokens.begin();
  const auto last = static_cast<int64_t>(tokens.size()) - 1;
  const auto after = static_cast<size_t>(std::clamp<int64_t>(at, 1, last)), before = after - 1;
  const auto t0 = static_cast<double>(tokens[before]), t1 = static_cast<double>(tokens[after]);
  const auto ns0 = static_cast<double>(ns[before]), ns1 = static_cast<double>(ns[after]);
  const auto t = static_cast<double>(num_tokens);
  const double slope = (ns1 - ns0) / (t1 - t0);
  // Beyond what was measured, more tokens never take less: noise alone makes a line fall.
  if (slope < 0 && t < t0) return 1e-9 * ns0;
  if (slope < 0 && t > t1) return 1e-9 * ns1;
  const bool is_below_zero = at == 0 && ns0 < slope * t0;
  return 1e-9 * (is_below_zero ? ns0 * t / t0 : ns0 + slope * (t - t0));
}

}  // namespace distca
