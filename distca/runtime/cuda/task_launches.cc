#include <ATen/ATen.h>
#include <c10/core/Stream.h>

#include "distca/runtime/cuda/played_launches.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "distca/base/integers.h"
#include "distca/comm/device_stream.h"
#include "distca/comm/host_read.h"

namespace distca {
namespace {

using kernels::QueryPiece;
using kernels::RowRun;
using kernels::TaskList;
using kernels::VarlenLaunch;
using kernels::VarlenPlan;

/// Returns true if two runs have a row of a buffer in common.
bool overlap(std::vector<RowRun> runs) {
  std::ranges::sort(runs, {}, [](const RowRun& run) { return std::pair(run.buffer, run.from); });
  const auto meets = [](const RowRun& run, const RowRun& next) {
    return run.buffer == next.buffer && run.from + run.tokens > next.from;
  };
  return std::ranges::adjacent_find(runs, meets) != runs.end();
}

/// Tasks, or parts of them, that see no key.
std::vector<RowRun> runs_without_keys(const TaskList& list, const VarlenPlan& plan) {
  std::vector<int64_t> missing;
  for (const kernels::Task& task : list.tasks) missing.push_back(task.q_tokens);
  for (const VarlenLaunch& launch : plan.launches) {
    for (const QueryPiece& piece : launch.pieces) missing[piece.task] -= piece.queries.size();
  }
  std::vector<RowRun> runs;
  for (size_t i = 0; i < missing.size(); ++i) {
    const kernels::Task& task = list.tasks[i];
    if (missing[i] > 0) runs.push_back({task.query_buffer, task.q_row, task.q_tokens, 0});
  }
  return runs;
}

/// Adds the lists of padded rows (LaunchLists), the second as the bits of fp32.
void add_padded(const VarlenLaunch& launch, int64_t tile, std::vector<int32_t>& all) {
  const auto count =
      static_cast<size_t>(padded_rows(launch.query_rows(), launch.sequences(), tile));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<int32_t> row(count, 0), padding(count, std::bit_cast<int32_t>(kInfinity));
  for (int64_t b = 0; b < launch.sequences(); ++b) {
    const int32_t begin = launch.cu_seqlens_q[b], end = launch.cu_seqlens_q[b + 1];
    const int64_t first = round_down(begin + b * tile, tile);
    for (int32_t query = begin; query < end; ++query) {
      row[first + query - begin] = query;
      padding[first + query - begin] = 0;
    }
  }
  for (const auto* list : {&row, &padding}) all.insert(all.end(), list->begin(), list->end());
}

/// The lists of all launches in one transfer.
void bring_lists(std::vector<PlayedLaunch>& launches, const QueryTile& query_tile,
                 const at::Device& device) {
  const auto tile_of = [&](const VarlenLaunch& launch) {
    return query_tile ? query_tile(launch) : 0;
  };
  std::vector<int32_t> all;
  for (const PlayedLaunch& played : launches) {
    for (const auto* list :
         {&played.launch.cu_seqlens_q, &played.launch.key_starts, &played.launch.keys_used})
      all.insert(all.end(), list->begin(), list->end());
    if (const int64_t tile = tile_of(played.launch); tile > 0) add_padded(played.launch, tile, all);
  }
  const at::Tensor brought = upload(at::tensor(all, at::kInt), device);
  int64_t begin = 0;
  const auto next = [&](int64_t size) {
    return brought.narrow(0, std::exchange(begin, begin + size), size);
  };
  for (auto& [launch, queries, queries_overlap, gradients_overlap, lists] : launches) {
    lists[0] = next(launch.sequences() + 1);
    lists[1] = next(launch.sequences() + 1);
    lists[2] = next(launch.sequences());
    const int64_t tile = tile_of(launch);
    if (tile == 0) continue;
    const int64_t rows = padded_rows(launch.query_rows(), launch.sequences(), tile);
    lists[3] = next(rows);
    lists[4] = next(rows).view(at::kFloat);
  }
}

}  // namespace

TaskLaunches::Made::Made(const TaskList& list, VarlenPlan plan, std::vector<bool> aligned_in,
                         const QueryTile& query_tile, const at::Device& device)
    : aligned(std::move(aligned_in)),
      gathered(plan.gathered),
      gathered_rows(plan.gathered_rows()),
      without_keys(runs_without_keys(list, plan)) {
  for (VarlenLaunch& launch : plan.launches) {
    PlayedLaunch& played = launches.emplace_back(PlayedLaunch{std::move(launch)});
    played.queries = query_runs(list, played.launch);
    played.queries_overlap = overlap(played.queries);
    played.gradients_overlap = overlap(played.launch.gradients);
  }
  bring_lists(launches, query_tile, device);
  if (device.is_cpu()) return;
  brought = end_of(current_stream(device));
}

void TaskLaunches::Made::follow(const at::Device& device) const {
  if (brought) distca::follow(current_stream(device), brought);
}

}  // namespace distca
