#include "distca/train/dry_run.h"

#include <algorithm>

#include "distca/base/scalar_type.h"
#include "distca/base/text.h"
#include "distca/train/check_run.h"
#include "distca/train/step.h"

namespace distca {
namespace {

constexpr size_t kColumns = 100;

const char* plural(int64_t number) { return number == 1 ? "" : "s"; }

std::string mebibytes(double bytes) { return fmt::format("{:.1f}", bytes / 0x1p20); }

/// The local ranks whose peaks are shown: the highest of a worker, and of a dedicated server.
std::vector<size_t> shown_ranks(int num_workers, const DryRun& run) {
  const auto first_server =
      static_cast<size_t>(std::clamp(num_workers - run.local.first, 0, run.local.count));
  std::vector<size_t> shown;
  const auto add_highest = [&](size_t begin, size_t end) {
    if (begin == end) return;
    const auto highest = std::max_element(
        run.peaks.begin() + static_cast<int64_t>(begin),
        run.peaks.begin() + static_cast<int64_t>(end),
        [](const PeakMemory& a, const PeakMemory& b) { return a.total() < b.total(); });
    shown.push_back(static_cast<size_t>(highest - run.peaks.begin()));
  };
  add_highest(0, first_server);
  add_highest(first_server, run.peaks.size());
  return shown;
}

std::string memory_table(int num_workers, const DryRun& run) {
  const std::vector<size_t> shown = shown_ranks(num_workers, run);
  std::vector<std::string> header = {"MiB"};
  for (const size_t local : shown) {
    const int rank = run.local.first + static_cast<int>(local);
    header.push_back(fmt::format("{} {}", rank < num_workers ? "worker" : "server", rank));
  }
  Table table(header);
  const auto add_row = [&](const char* name, const auto& bytes) {
    std::vector<std::string> row = {name};
    for (const size_t local : shown) row.push_back(mebibytes(bytes(run.peaks[local])));
    table.add_row(row);
  };
  for (int i = 0; i < kNumMemoryParts; ++i) {
    const auto part = static_cast<MemoryPart>(i);
    add_row(memory_part_name(part), [&](const PeakMemory& peak) { return peak.of(part); });
  }
  add_row("peak", [](const PeakMemory& peak) { return peak.total(); });
  std::string text = table.to_string();
  for (const size_t local : shown) {
    text += fmt::format("Rank {} reaches its peak in {}.\n",
                        run.local.first + static_cast<int>(local), run.peaks[local].where);
  }
  return text;
}

/// Of all ranks here: their peaks, and what refuses a run.
std::string machine_text(const Config& config, const DryRun& run) {
  double sum = 0;
  for (const PeakMemory& peak : run.peaks) sum += peak.total();
  std::string text = fmt::format(
      "The tensors of the {} rank{} on this machine take {} MiB if all are at their peak at the "
      "same "
      "time; programs, PyTorch's libraries and the allocator come on top.",
      run.local.count, plural(run.local.count), mebibytes(sum));
  if (config.on_cuda()) return wrap(text + " No run on CUDA is refused for its memory.", kColumns);
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

DryRun dry_run(const Config& config, int num_workers, LocalRanks local) {
  const PlannedAhead ahead = check_dry_run(config, num_workers);
  DryRun run{.local = local, .batches = ahead.words};
  run.needed = memory_needed(config, num_workers, local);
  run.needed.buffers = exchange_buffer_bytes(config, ahead.plans[0].plans,
                                             ahead.plans[0].redispatched, num_workers, local);
  std::vector<PeakOfRank> ranks;
  for (int i = 0; i < local.count; ++i) ranks.emplace_back(config, local.first + i, num_workers);
  for (const auto& [plans, redispatched] : ahead.plans) {
    const std::vector<PlanIndex> indices(plans.begin(), plans.end());
    for (int i = 0; i < local.count; ++i) {
      ranks[i].add(training_program(config, indices, redispatched, local.first + i, num_workers));
    }
  }
  for (const PeakOfRank& rank : ranks) run.peaks.push_back(rank.peak());
  return run;
}

std::string dry_run_text(const Config& config, int num_workers, const DryRun& run) {
  const LlamaConfig& model = config.model;
  const std::string parameters = fmt::format(
      "The model has {} parameters: {} layer{}, hidden size {}, vocabulary {}, computed in {}.",
      with_thousands(model.num_parameters()), model.num_hidden_layers,
      plural(model.num_hidden_layers), with_thousands(model.hidden_size),
      with_thousands(model.vocab_size), long_name(model.dtype));
  const int64_t dedicated = config.servers.dedicated;
  const std::string ranks = fmt::format(
      "{} worker{}{} would train on {} x {} tokens a step; ranks on this machine: {}.", num_workers,
      plural(num_workers),
      dedicated > 0 ? fmt::format(" and {} dedicated server{}", dedicated, plural(dedicated)) : "",
      config.batch.nano_batches, with_thousands(config.batch.nano_batch_tokens), run.local.count);
  return fmt::format("{}\n{}\n{}\n\n{}\n{}\n", wrap(parameters, kColumns), wrap(ranks, kColumns),
                     wrap("Memory is predicted for " + run.batches + ".", kColumns),
                     memory_table(num_workers, run), machine_text(config, run));
}

}  // namespace distca
