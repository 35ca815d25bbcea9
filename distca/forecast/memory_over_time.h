#pragma once
// The memory of a rank over a step that was played by prices (sim/player.h): what its tensors take
// from each moment on, by the walk that predicts its peak (forecast/memory_walk.h).
//
//     const std::vector<MemoryPoint> points =
//         memory_over_time(config, program, rank, num_workers, step.ops[i]);
//     const MemoryPoint peak = highest(points);  // as many bytes as PeakOfRank says
//
// An operation holds the most that it ever takes from its begin to its end. Rows that a message
// brings are counted once the rank has waited for them. Any thread may call the functions.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "distca/config/config.h"
#include "distca/program/program.h"
#include "distca/sim/player.h"

namespace distca {

/// Bytes that are held from a moment until that of the next point.
struct MemoryPoint {
  int64_t at_ps = 0;  // since the step began
  double bytes = 0;
  bool operator==(const MemoryPoint&) const = default;
};

/// The points of a rank with this program, ascending by their time, the first at 0. Neighbours
/// differ; of two at the same time, the first is a moment. `played`: [operation].
std::vector<MemoryPoint> memory_over_time(const Config& config, const Program& program, int rank,
                                          int num_workers, std::span<const TimedOp> played);

/// The first of the points with most bytes. There is a point (CHECK).
MemoryPoint highest(std::span<const MemoryPoint> points);

/// At most so many of the points (four or more, CHECK): the first, the last, and of equal lengths
/// of time the lowest and the highest. So highest() stays the same.
std::vector<MemoryPoint> thinned(std::span<const MemoryPoint> points, size_t most);

}  // namespace distca
