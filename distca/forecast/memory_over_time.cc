#include "distca/forecast/memory_over_time.h"

#include <algorithm>

#include "distca/base/error.h"
#include "distca/forecast/memory.h"
#include "distca/forecast/memory_walk.h"

namespace distca {

std::vector<MemoryPoint> memory_over_time(const Config& config, const Program& program, int rank,
                                          int num_workers, std::span<const TimedOp> played) {
  MemoryParts standing = standing_memory(config, num_workers, {.first = rank, .count = 1});
  if (config.train.steps > 0) {
    for (const Buffer& buffer : program.buffers)
      standing.at(MemoryPart::kBuffers) += static_cast<double>(buffer.bytes);
  }
  std::vector<MemoryPoint> points;
  int64_t now_ps = 0;
  const auto reach = [&](int64_t at_ps, double bytes) {
    now_ps = std::max(now_ps, at_ps);
    if (points.empty() || points.back().bytes != bytes) points.push_back({now_ps, bytes});
  };
  std::vector<HeldInOp> of_ops;
  peak_of_step(config, program, standing, kernels::FlashDevice().multiprocessors, &of_ops);
  for (const HeldInOp& held : of_ops) {
    if (held.op == nullptr) {
      reach(0, held.most);
      continue;
    }
    const TimedOp& timed = played[static_cast<size_t>(held.op - program.ops.data())];
    const bool computes = held.op->stream == Stream::kCompute;
    reach(held.lands ? timed.end_ps : timed.begin_ps, held.most);
    reach(computes ? timed.end_ps : now_ps, held.after);
  }
  return points;
}

MemoryPoint highest(std::span<const MemoryPoint> points) {
  DISTCA_CHECK(!points.empty(), "no point");
  return *std::ranges::max_element(points, {}, &MemoryPoint::bytes);
}

std::vector<MemoryPoint> thinned(std::span<const MemoryPoint> points, size_t most) {
  DISTCA_CHECK(most >= 4, "{} points", most);
  if (points.size() <= most) return {points.begin(), points.end()};
  const auto lengths = static_cast<int64_t>((most - 2) / 2);
  const int64_t end_ps = points.back().at_ps + 1;
  std::vector<MemoryPoint> kept = {points.front()};
  for (size_t first = 1, next = first; first + 1 < points.size(); first = next) {
    const auto length_of = [&](size_t i) {
      return static_cast<int64_t>(static_cast<double>(points[i].at_ps) /
                                  static_cast<double>(end_ps) * static_cast<double>(lengths));
    };
    while (next + 1 < points.size() && length_of(next) == length_of(first)) ++next;
    const auto of_length = points.subspan(first, next - first);
    const auto low = std::ranges::min_element(of_length, {}, &MemoryPoint::bytes);
    const auto high = std::ranges::max_element(of_length, {}, &MemoryPoint::bytes);
    for (const MemoryPoint& point : {*std::min(low, high), *std::max(low, high)}) {
      if (point.bytes != kept.back().bytes) kept.push_back(point);
    }
  }
  kept.push_back(points.back());
  return kept;
}

}  // namespace distca
