#include "distca/forecast/dry_run.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "distca/base/scalar_type.h"
#include "distca/base/text.h"
#include "distca/config/run_grid.h"
#include "distca/forecast/batch_programs.h"
#include "distca/forecast/checked_data.h"
#include "distca/forecast/memory_cap.h"

namespace distca {
namespace {

constexpr size_t kColumns = 100;

const char* plural(int64_t number) { return number == 1 ? "" : "s"; }

std::string mebibytes(double bytes) { return fmt::format("{:.1f}", bytes / 0x1p20); }

constexpr size_t kMostColumns = 8;

/// The local ranks that are shown or left out, in their order.
struct Shown {
  std::vector<size_t> ranks;     // one a stage and one of dedicated servers, with the highest peak
  std::vector<size_t> left_out;  // taken from them if there are too many: the lowest but the ends
};

/// The stage of a local rank, -1 of a dedicated server. Neighbours have the same, or the next.
int stage_of(const RunGrid& grid, const DryRun& run, size_t local) {
  return grid.grid.stage(grid.server_of(run.local.first + static_cast<int>(local)));
}

Shown shown_ranks(const RunGrid& grid, const DryRun& run) {
  const auto is_lower = [&](size_t a, size_t b) {
    return run.peaks[a].total() < run.peaks[b].total();
  };
  Shown shown;
  for (size_t local = 0; local < run.peaks.size(); ++local) {
    if (local == 0 || stage_of(grid, run, local) != stage_of(grid, run, local - 1)) {
      shown.ranks.push_back(local);
    } else if (is_lower(shown.ranks.back(), local)) {
      shown.ranks.back() = local;
    }
  }
  while (shown.ranks.size() > kMostColumns) {
    const int servers = stage_of(grid, run, shown.ranks.back()) < 0 ? 1 : 0;
    const auto lowest =
        std::min_element(shown.ranks.begin() + 1, shown.ranks.end() - 1 - servers, is_lower);
    shown.left_out.push_back(*lowest);
    shown.ranks.erase(lowest);
  }
  std::ranges::sort(shown.left_out);
  return shown;
}

std::string column_name(const RunGrid& grid, int rank) {
  const int stage = grid.grid.stage(grid.server_of(rank));
  if (stage < 0) return fmt::format("{} {}", grid.tensor == 1 ? "server" : "serving rank", rank);
  return grid.is_pipeline() ? fmt::format("stage {}", stage) : fmt::format("worker {}", rank);
}

/// Where the peaks lie, and what is not in the table.
std::string below_the_table(const RunGrid& grid, const DryRun& run, const Shown& shown) {
  std::string text;
  for (const size_t local : shown.ranks) {
    std::string name = grid.name_of(run.local.first + static_cast<int>(local));
    name[0] = 'R';  // it begins a sentence
    text += fmt::format("{} reaches its peak in {}.\n", name, run.peaks[local].where);
  }
  if (shown.left_out.empty()) return text;
  std::vector<std::string> others;
  for (const size_t local : shown.left_out) {
    others.push_back(fmt::format("{} ({} MiB)", stage_of(grid, run, local),
                                 mebibytes(run.peaks[local].total())));
  }
  return text +
         wrap(fmt::format("Left out: the peaks of stages {}.", fmt::join(others, ", ")), kColumns) +
         "\n";
}

std::string memory_table(const RunGrid& grid, const DryRun& run) {
  const Shown shown = shown_ranks(grid, run);
  std::vector<std::string> header = {"MiB"};
  for (const size_t local : shown.ranks)
    header.push_back(column_name(grid, run.local.first + static_cast<int>(local)));
  Table table(header);
  const auto add_row = [&](const char* name, const auto& cell) {
    std::vector<std::string> row = {name};
    for (const size_t local : shown.ranks) row.push_back(cell(local));
    table.add_row(row);
  };
  for (int i = 0; i < kNumMemoryParts; ++i) {
    const auto part = static_cast<MemoryPart>(i);
    add_row(memory_part_name(part), [&](size_t at) { return mebibytes(run.peaks[at].of(part)); });
  }
  add_row("peak", [&](size_t at) { return mebibytes(run.peaks[at].total()); });
  if (grid.is_pipeline())
    add_row("nano-batches in flight", [&](size_t at) { return std::to_string(run.in_flight[at]); });
  return table.to_string() + below_the_table(grid, run, shown);
}

/// Describes the limits that the devices set to a run on CUDA.
std::string describe_device(const DryRun& run) {
  if (run.devices.empty()) {
    return fmt::format(
        " There is no CUDA device here: attention's operators are predicted for {} "
        "multiprocessors, nothing is refused for a device's memory, and which cap plans take "
        "from it is not known (plan.max_memory_gib gives one).",
        kernels::FlashDevice().multiprocessors);
  }
  std::string text = fmt::format(
      " A run is refused where the least that the ranks of a device need is more than its memory, "
      "which is {} of the first one.",
      human_bytes(run.devices[0].bytes));
  if (run.device_cap_bytes > 0)
    text += fmt::format(
        " Keys are kept for backward if they and activations take at most {} of a rank by the "
        "devices here, else they travel again (plan.max_memory_gib sets another cap).",
        describe_device_cap(run.device_cap_bytes));
  return text;
}

/// Describes the peaks of all ranks of this machine together, and when a run is refused.
std::string machine_text(const Config& config, const DryRun& run) {
  double sum = 0;
  for (const PeakMemory& peak : run.peaks) sum += peak.total();
  std::string text = fmt::format(
      "The tensors of the {} rank{} on this machine take {} MiB if all are at their peak at the "
      "same "
      "time; programs, PyTorch's libraries and the allocator come on top.",
      run.local.count, plural(run.local.count), mebibytes(sum));
  if (config.on_cuda()) return wrap(text + describe_device(run), kColumns);
  const MemoryLimit limit = memory_limit();
  text += fmt::format(
      " They cannot do with less than {} MiB, and a run is refused where that is "
      "more than the {} MiB that {}.",
      mebibytes(run.needed.total()), mebibytes(static_cast<double>(limit.bytes)),
      limit.of_group ? "the control group of this process allows" : "this machine has");
  const auto most = static_cast<double>(limit.bytes);
  if (sum > most && run.needed.total() <= most)
    text += " This run would not be refused, but it would run out of memory.";
  return wrap(text, kColumns);
}

}  // namespace

DryRun dry_run(const Config& config, int num_workers, LocalRanks local,
               const std::filesystem::path& lengths, const std::vector<DeviceFacts>& devices) {
  PlannedAhead ahead = check_dry_run(config, num_workers, lengths);
  DryRun run{.local = local, .devices = devices};
  run.device_cap_bytes = device_cap(config, ahead.plans[0], num_workers, local, devices);
  if (run.device_cap_bytes > 0) {
    Config capped = config;
    capped.device_cap_bytes = run.device_cap_bytes;
    ahead = check_dry_run(capped, num_workers, lengths);
  }
  run.batches = ahead.words;
  run.plans = ahead.plans[0];
  std::vector<PeakOfRank> ranks;
  const kernels::FlashDevice usual;
  for (int i = 0; i < local.count; ++i) {
    const int rank = local.first + i;
    ranks.emplace_back(config, rank, num_workers,
                       devices.empty() ? usual.multiprocessors
                                       : device_of(config, rank, local, devices).multiprocessors);
  }
  for (const BatchPlans& plans : ahead.plans) {
    const BatchPrograms programs(config, plans, ProgramRequest::Kind::kTrain, num_workers);
    for (int i = 0; i < local.count; ++i) {
      const Program program = programs.of(local.first + i);
      ranks[i].add(program);
      if (&plans != &ahead.plans.front()) continue;
      run.in_flight.push_back(most_in_flight(program));
      const int64_t all = bytes_between_nodes(program, local.first + i, /*ranks_per_node=*/1);
      const int64_t between = bytes_between_nodes(program, local.first + i, config.tensor_ranks());
      run.sent_bytes += between;
      run.tensor_bytes += all - between;
    }
  }
  add_plan_figures(config, ahead.first, ahead.plans.front(), num_workers, &run.first);
  for (const PeakOfRank& rank : ranks) run.peaks.push_back(rank.peak());
  run.needed = least_together(run.peaks);
  return run;
}

std::string dry_run_text(const Config& config, int num_workers, const DryRun& run) {
  const LlamaConfig& model = config.model;
  const std::string parameters = fmt::format(
      "The model has {} parameters: {} layer{}, hidden size {}, vocabulary {}, computed in {}.",
      with_thousands(model.num_parameters()), model.num_hidden_layers,
      plural(model.num_hidden_layers), with_thousands(model.hidden_size),
      with_thousands(model.vocab_size), long_name(model.dtype));
  const RunGrid grid = run_grid(config, num_workers);
  const std::string dedicated = grid.describe_dedicated();
  const std::string ranks = fmt::format(
      "{}{} would train on {} x {} = {} tokens a step; ranks on this machine: {}.", grid.describe(),
      dedicated.empty() ? "" : " and " + dedicated, config.batch.nano_batches,
      with_thousands(config.batch.nano_batch_tokens),
      with_thousands(config.batch.nano_batches * config.batch.nano_batch_tokens), run.local.count);
  const std::string between_partners =
      grid.tensor > 1 ? fmt::format(", and {} to those that divide layers with them",
                                    human_bytes(run.tensor_bytes))
                      : "";
  const std::string plan = fmt::format(
      "Memory is predicted for {}. Core attention of the first batch has max/mean {:.3f} before "
      "balancing and {:.3f} after; the ranks on this machine send {} for it{}, forward and "
      "backward{}.",
      run.batches, run.first.imbalance_before, run.first.imbalance_after,
      human_bytes(run.sent_bytes), grid.grid.stages > 1 ? " and from stage to stage" : "",
      between_partners);
  return fmt::format("{}\n{}\n{}\n\n{}\n{}\n", wrap(parameters, kColumns), wrap(ranks, kColumns),
                     wrap(plan, kColumns), memory_table(grid, run), machine_text(config, run));
}

}  // namespace distca
