#include "distca/forecast/memory_peak.h"

#include <algorithm>
#include <numeric>

#include "distca/forecast/memory.h"
#include "distca/forecast/memory_walk.h"

namespace distca {
namespace {

using enum MemoryPart;

constexpr std::array<const char*, kNumMemoryParts> kNames = {
    "weights",          "gradients",   "AdamW's state", "copies of weights", "checkpoint copy",
    "exchange buffers", "activations", "logits",        "phase under way"};

}  // namespace

const char* memory_part_name(MemoryPart part) { return kNames.at(static_cast<size_t>(part)); }

double PeakMemory::total() const { return std::accumulate(bytes.begin(), bytes.end(), 0.0); }

PeakOfRank::PeakOfRank(const Config& config, int rank, int num_workers, int64_t multiprocessors)
    : config_(config), rank_(rank), num_workers_(num_workers), multiprocessors_(multiprocessors) {}

void PeakOfRank::add(const Program& program) {
  const MemoryParts standing = standing_memory(config_, num_workers_, {.first = rank_, .count = 1});
  const PeakMemory peak = peak_of_step(config_, program, standing, multiprocessors_);
  const double passing = std::max(highest_.most_passing, peak.most_passing);
  if (highest_.where.empty() || peak.total() > highest_.total()) highest_ = peak;
  highest_.most_passing = passing;
  if (config_.train.steps == 0) return;
  std::map<BufferRole, int64_t> used;
  for (const Buffer& buffer : program.buffers) {
    int64_t& bytes = buffers_[{buffer.role, used[buffer.role]++}];
    bytes = std::max(bytes, buffer.bytes);
  }
}

PeakMemory PeakOfRank::peak() const {
  PeakMemory peak = highest_;
  double& bytes = peak.bytes[static_cast<size_t>(kBuffers)];
  for (const auto& [place, held] : buffers_) bytes += static_cast<double>(held);
  return peak;
}

}  // namespace distca
