#include "distca/forecast/memory_peak.h"

#include <algorithm>

#include "distca/forecast/batch_programs.h"
#include "distca/forecast/memory_walk.h"

namespace distca {

using enum MemoryPart;

PeakOfRank::PeakOfRank(const Config& config, int rank, int num_workers, int64_t multiprocessors)
    : config_(config), rank_(rank), num_workers_(num_workers), multiprocessors_(multiprocessors) {}

PeakOfRank& PeakOfRank::add(const Program& program) {
  const MemoryParts standing = standing_memory(config_, num_workers_, {.first = rank_, .count = 1});
  const PeakMemory peak = peak_of_step(config_, program, standing, multiprocessors_);
  const double passing = std::max(highest_.most_passing, peak.most_passing);
  if (highest_.where.empty() || peak.total() > highest_.total()) highest_ = peak;
  highest_.most_passing = passing;
  if (config_.train.steps == 0) return *this;
  std::map<BufferRole, int64_t> used;
  for (const Buffer& buffer : program.buffers) {
    int64_t& bytes = buffers_[{buffer.role, used[buffer.role]++}];
    bytes = std::max(bytes, buffer.bytes);
  }
  return *this;
}

PeakMemory PeakOfRank::peak() const {
  PeakMemory peak = highest_;
  for (const auto& [place, held] : buffers_) peak.at(kBuffers) += static_cast<double>(held);
  return peak;
}

std::vector<PeakMemory> peaks_of_batch(const Config& config, const BatchPlans& plans,
                                       int num_workers, LocalRanks local, int64_t multiprocessors) {
  const BatchPrograms programs(config, plans, ProgramRequest::Kind::kTrain, num_workers);
  std::vector<PeakMemory> peaks;
  for (int rank = local.first; rank < local.first + local.count; ++rank) {
    PeakOfRank of_rank(config, rank, num_workers, multiprocessors);
    peaks.push_back(of_rank.add(programs.of(rank)).peak());
  }
  return peaks;
}

MemoryParts least_together(const std::vector<PeakMemory>& peaks) {
  MemoryParts least, passing;
  for (const PeakMemory& peak : peaks) {
    MemoryParts own_passing, kept = peak;
    for (const MemoryPart part : {kLogits, kPhase})
      own_passing.at(part) = std::exchange(kept.at(part), 0.0);
    least += kept;
    if (own_passing.total() > passing.total()) passing = own_passing;
  }
  return least += passing;
}

}  // namespace distca
