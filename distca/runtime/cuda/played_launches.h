#pragma once
// The launches of kernels/varlen_launches.h that TaskLaunches keeps, with the rows that they move,
// and with their lists on the device. Include <ATen/ATen.h> before this header.
// Thread rule: as TaskLaunches.

#include <cstdint>
#include <functional>
#include <vector>

#include "distca/comm/thread_group.h"
#include "distca/kernels/varlen_launches.h"
#include "distca/runtime/cuda/task_launches.h"
#include "distca/runtime/cuda/varlen_attention.h"

namespace distca {

/// A launch, and where its rows come from and go to.
struct PlayedLaunch {
  kernels::VarlenLaunch launch;
  std::vector<kernels::RowRun> queries;
  bool queries_overlap = false, gradients_overlap = false;
  LaunchLists lists{};
};

/// VarlenOperator::query_tile of launches that are a backward's; null for those of a forward.
using QueryTile = std::function<int64_t(const kernels::VarlenLaunch&)>;

struct TaskLaunches::Made {
  /// Brings the lists of all launches to the device in one transfer, behind what the current stream
  /// was given.
  Made(const kernels::TaskList& list, kernels::VarlenPlan plan, std::vector<bool> aligned,
       const QueryTile& query_tile, const at::Device& device);
  /// Lets the current stream wait for that transfer, whichever stream it went through.
  void follow(const at::Device& device) const;

  std::vector<bool> aligned;  // the result of aligned_keys()
  std::vector<kernels::RowRun> gathered;
  int64_t gathered_rows;
  std::vector<kernels::RowRun> without_keys;
  std::vector<PlayedLaunch> launches;
  DeviceMark brought;  // null on a CPU
};

}  // namespace distca
