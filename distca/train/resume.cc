#include "distca/train/resume.h"

#include <ATen/Version.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <algorithm>
#include <charconv>
#include <random>
#include <string_view>

#include "distca/base/build_info.h"
#include "distca/base/console.h"
#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/hash.h"
#include "distca/base/machine.h"
#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/reader.h"
#include "distca/comm/collectives.h"
#include "distca/comm/long_work.h"
#include "distca/forecast/memory_cap.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

constexpr size_t kRunIdDigits = 16;

/// Returns true if the learning rate depends on train.steps.
bool decays_over_the_run(const std::map<std::string, std::string>& config) {
  return config.at("optimizer.decay_steps") == "0" &&
         config.at("optimizer.schedule") != "'constant'";
}

/// Keys under which even two runs of one command differ.
std::vector<std::string> varies_between_runs(const std::map<std::string, std::string>& config) {
  std::vector<std::string> keys;
  if (config.at("train.deterministic") == "true") return keys;
  if (config.at("servers.reweight") == "true") keys.emplace_back("servers.reweight is true");
  if (config.at("plan.tolerance") == "'auto'") keys.emplace_back("plan.tolerance is 'auto'");
  if (config.at("train.device") == "'cuda'") keys.emplace_back("train.deterministic is false");
  return keys;
}

void warn_passed_over(const Error& damage) {
  standard_error().line(
      fmt::format("warning: {}; the checkpoint before it is looked at", damage.what()));
}

/// The newest of a run's checkpoints whose index and files are right; nothing if there is none.
std::optional<fs::path> newest_whole(const fs::path& run, const std::string& run_id,
                                     int64_t before_step, bool warns) {
  std::vector<CheckpointPlace> places = complete_checkpoints(run);
  for (; !places.empty(); places.pop_back()) {
    if (places.back().step >= before_step) continue;
    try {
      const CheckpointReader reader(places.back().folder);
      if (run_id.empty() || reader.index().run_id == run_id) return places.back().folder;
    } catch (const Error& error) {
      if (warns) warn_passed_over(error);
    }
  }
  return {};
}

}  // namespace

Launch this_launch() {
  Launch launch{.run_id = env_string("DISTCA_RUN_ID").value_or("").substr(0, kRunIdDigits)};
  const std::string restart = env_string("DISTCA_RESTART").value_or("0");
  std::from_chars(restart.data(), restart.data() + restart.size(), launch.restart);
  return launch;
}

std::optional<fs::path> choose_checkpoint(const ResumeRequest& request, const Config& config,
                                          const Launch& launch, bool warns, int64_t before_step) {
  using Kind = ResumeRequest::Kind;
  const fs::path run = config.train.output_dir;
  if (launch.restart > 0 && !launch.run_id.empty()) {
    if (auto own = newest_whole(run, launch.run_id, before_step, warns)) return own;
  }
  if (request.kind == Kind::kNo) return {};
  if (request.kind == Kind::kPath) return find_checkpoints(request.path).newest();
  auto newest = newest_whole(run, "", before_step, warns);
  DISTCA_THROW_IF(!newest && request.kind == Kind::kNewest, ErrorKind::kCheckpoint,
                  "--resume: {} holds no complete checkpoint: leave --resume out, or give --resume "
                  "if-any",
                  run.string());
  return newest;
}

std::unique_ptr<CheckpointReader> open_checkpoint(Communicator& comm, const Config& config,
                                                  const std::optional<fs::path>& chosen) {
  // Another rank may see the run's folder under another name.
  constexpr const char* kOperation = "opening the checkpoint";
  const fs::path run = config.train.output_dir;
  const bool own = chosen && is_checkpoint_of(run, *chosen);
  const std::string mine =
      comm.rank() > 0 || !chosen ? "" : (own ? chosen->filename() : *chosen).string();
  const bool is_own = all_gather(comm, uint8_t(own), kOperation)[0] == 1;
  const std::string reported = all_gather_texts(comm, mine, kOperation)[0];
  if (reported.empty()) return nullptr;
  const fs::path folder = is_own ? checkpoints_folder(run) / reported : fs::path(reported);
  std::unique_ptr<CheckpointReader> reader;
  const auto open = [&] { reader = std::make_unique<CheckpointReader>(folder); };
  // No rank waits for a checkpoint to appear that rank 0 cannot open.
  do_on_rank_0(comm, config.comm.timeout_s, kOperation, open);
  do_long_work(comm, config.comm.timeout_s, kOperation, [&] {
    if (comm.rank() == 0) return;
    appears(folder / kIndexFile, late_folder_s(config));
    open();
  });
  return reader;
}

std::optional<fs::path> choose_older(Communicator& comm, const Config& config,
                                     const std::function<std::optional<fs::path>(int64_t)>& older,
                                     const DamagedCheckpoint& damage) {
  std::optional<fs::path> chosen;
  do_on_rank_0(comm, config.comm.timeout_s, "looking for the checkpoint before", [&] {
    if (!older) throw Error(damage);
    warn_passed_over(damage);
    chosen = older(damage.step);
    if (chosen == damage.folder) throw Error(damage);
  });
  return chosen;
}

double late_folder_s(const Config& config) { return std::min(90.0, config.comm.startup_timeout_s); }

std::map<std::string, std::string> config_texts(const Config& config) {
  Config copy = config;
  std::map<std::string, std::string> texts;
  for (const ConfigKey& key : config_keys(copy)) texts[key.name] = shown_value(key);
  texts.erase("train.overwrite");  // a permission, given once
  return texts;
}

std::string agreed_run_id(Communicator& comm, const std::string& mine) {
  const auto drawn = [] {
    std::random_device device;
    return fmt::format("{:08x}{:08x}", device(), device());
  };
  const std::string id = mine.empty() ? drawn() : mine;
  return all_gather_texts(comm, id, "agreeing on the run's id")[0].substr(0, kRunIdDigits);
}

ResolvedConfig resolved_config(const Config& config, const std::string& kernel,
                               const std::string& data, bool on_device,
                               const CheckpointReader* checkpoint) {
  // This text is the same wherever the checkpoint lies.
  const auto describe = [](const CheckpointIndex& index) {
    return fmt::format("step {} of run {}, {}", index.step, index.run_id,
                       hash_hex(canonical_json(to_json(index))));
  };
  return {.price = config.attention_profile ? profile_name(*config.attention_profile) : "pairs",
          .kernel = kernel,
          .data = data,
          .isa = on_device ? std::string() : at::get_cpu_capability(),
          .checkpoint = checkpoint ? describe(checkpoint->index()) : "none"};
}

RunFacts run_facts(const Config& config, const ResolvedConfig& resolved, int num_workers) {
  std::map<std::string, std::string> machine = {
      {"number of workers", std::to_string(num_workers)},
      {"attention kernel", resolved.kernel},
      {"price of loads", resolved.price},
      {"instructions of PyTorch", resolved.isa},
      {"version of PyTorch", TORCH_VERSION},
      {"version of distca", fmt::format("{} ({})", build_info::kVersion, build_info::kCommit)},
      {"processor", config.on_cuda() ? "" : cpu_name()}};
  // Recorded where there is one: a run on the CPU has none to compare with.
  if (config.device_cap_bytes > 0)
    machine["cap of activations and kept keys by the devices' memory"] =
        describe_device_cap(config.device_cap_bytes);
  return {.config = config_texts(config), .machine = std::move(machine), .data = resolved.data};
}

std::vector<std::string> check_resume(const CheckpointIndex& index, const RunFacts& now) {
  DISTCA_THROW_IF(index.data != now.data, ErrorKind::kConfig,
                  "--resume: data.prefix holds {} now, and the checkpoint was made with {}: give "
                  "the same data set",
                  now.data, index.data);
  const int64_t steps = std::stoll(now.config.at("train.steps"));
  DISTCA_THROW_IF(steps < index.step, ErrorKind::kConfig,
                  "--resume: train.steps = {}, and the checkpoint has {} steps already", steps,
                  index.step);
  // A checkpoint of an earlier version lacks keys, which then did what their defaults do.
  Config defaults;
  const std::vector<ConfigKey> keys = config_keys(defaults);
  std::map<std::string, std::string> before = config_texts(defaults);
  for (const auto& [key, value] : index.config) before[key] = value;
  std::vector<std::string> lines, reasons;
  for (const auto& [key, value] : now.config) {
    const std::string& was = before[key];
    if (was == value) continue;
    const OnResume change = std::ranges::find(keys, key, &ConfigKey::name)->on_resume;
    DISTCA_THROW_IF(change == OnResume::kFixed, ErrorKind::kConfig,
                    "--resume: {} = {}, and the checkpoint was made with {}: give the same, or "
                    "start a new run",
                    key, value, was);
    if (change == OnResume::kTrain)
      lines.push_back(fmt::format("{} was {} and is {} from step {} on{}", key, was, value,
                                  index.step + 1,
                                  key == "train.steps" && decays_over_the_run(now.config)
                                      ? ": the learning rate follows the new length from there"
                                      : ""));
    if (change == OnResume::kBits)
      reasons.push_back(fmt::format("{} was {} and is {}", key, was, value));
  }
  for (const auto& [what, value] : now.machine) {
    const auto was = index.machine.find(what);
    if (was != index.machine.end() && was->second != value)
      reasons.push_back(fmt::format("the {} was {} and is {}", what, was->second, value));
  }
  for (const std::string& why : varies_between_runs(now.config)) reasons.push_back(why);
  const std::string_view apart = lines.empty() ? "it" : "otherwise it";
  lines.push_back(reasons.empty() ? fmt::format("{} goes on bit for bit", apart)
                                  : fmt::format("{} goes on to rounding, not bit for bit: {}",
                                                apart, fmt::join(reasons, "; ")));
  return lines;
}

}  // namespace distca
