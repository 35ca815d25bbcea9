#include "distca/forecast/predicted_trace.h"

#include <cmath>
#include <cstddef>
#include <numeric>
#include <string>

#include "distca/forecast/memory_over_time.h"
#include "distca/program/overlap.h"
#include "distca/sim/step_events.h"

namespace distca {
namespace {

/// The most lines of a rank's operations in the file: up to five events of a communication, an
/// arrow's end for each message, and the memory at the begin and the end of an operation, of a
/// communication also where it lands.
int64_t most_lines_of(const Program& program) {
  int64_t lines = 0;
  for (const Op& op : program.ops) {
    if (op.stream == Stream::kCompute) {
      lines += 3;
      continue;
    }
    const auto messages = static_cast<int64_t>(program.sends(op).messages.size() +
                                               program.receives(op).messages.size());
    if (messages > 0) lines += 9 + messages;
  }
  return lines;
}

/// The program of the rank that computes longest in each stage. Dedicated servers count as one.
std::vector<size_t> longest_of_each_stage(const PlayedStep& played, const std::vector<int>& ranks) {
  const auto stage_of = [&](size_t i) {
    return played.run.grid.stage(played.run.server_of(ranks[i]));
  };
  std::vector<size_t> longest;
  for (size_t i = 0; i < ranks.size(); ++i) {  // a stage has neighbours
    if (i == 0 || stage_of(i) != stage_of(i - 1)) {
      longest.push_back(i);
    } else if (played.step.ranks[i].computed_ps > played.step.ranks[longest.back()].computed_ps) {
      longest.back() = i;
    }
  }
  return longest;
}

/// The bytes of a rank's tensors over the step.
std::string memory_lines(const Config& config, const PlayedStep& played, size_t program, int rank) {
  TraceCounter counter{.name = "memory", .unit = "bytes"};
  for (const MemoryPoint& point :
       memory_over_time(config, played.programs[program], rank, played.run.num_workers(),
                        played.step.ops[program]))
    counter.values.push_back(
        {.at_s = 1e-12 * static_cast<double>(point.at_ps), .value = std::llround(point.bytes)});
  return chrome_counter(rank, counter);
}

}  // namespace

TraceRank trace_rank(const RunGrid& run, int rank) {
  const int stage = run.grid.stage(run.server_of(rank));
  return {.server = stage < 0,
          .stage = run.is_pipeline() ? stage : -1,
          .tensor = run.tensor > 1 ? run.tensor_index(rank) : -1};
}

std::vector<int> write_trace(const Config& config, const Machine& machine, const PlayedStep& played,
                             const TraceRequest& request) {
  const std::vector<int> numbers = ranks_of(played.programs);
  std::vector<size_t> programs(numbers.size());
  std::iota(programs.begin(), programs.end(), size_t{0});
  int64_t lines = 0;
  for (const Program& program : played.programs) lines += most_lines_of(program);
  if (lines > request.most_lines) programs = longest_of_each_stage(played, numbers);

  std::vector<int> written;
  std::vector<TraceRank> ranks;
  for (const size_t program : programs) {
    written.push_back(numbers[program]);
    ranks.push_back(trace_rank(played.run, numbers[program]));
    if (static_cast<int>(programs.size()) < played.run.num_ranks())
      ranks.back().number = numbers[program];
  }
  const bool plays_firsts = static_cast<int>(numbers.size()) < played.run.num_ranks();
  const TracePrediction predicted{.machine = machine.name,
                                  .num_ranks = played.run.num_ranks(),
                                  .alike = plays_firsts ? played.run.tensor : 1};
  request.write(chrome_head(overlap_name(config.train.overlap), {}, ranks, &predicted));
  for (size_t i = 0; i < programs.size(); ++i) {
    if (i > 0) request.write(kChromeBetween);
    request.write(chrome_events(
        written[i], ranks[i],
        step_events(played.programs, programs[i], played.step, played.prices, request.step)));
    request.write(kChromeBetween);
    request.write(memory_lines(config, played, programs[i], written[i]));
  }
  request.write(kChromeTail);
  return written;
}

}  // namespace distca
