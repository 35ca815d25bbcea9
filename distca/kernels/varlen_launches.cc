#include "distca/kernels/varlen_launches.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "distca/base/error.h"
#include "distca/kernels/varlen_keys.h"

namespace distca::kernels {
namespace {

/// Adds a run, as a part of the last one where it adjoins that.
void add_run(const RowRun& run, std::vector<RowRun>& runs) {
  if (!runs.empty()) {
    RowRun& last = runs.back();
    if (last.buffer == run.buffer && last.from + last.tokens == run.from &&
        last.row + last.tokens == run.row) {
      last.tokens += run.tokens;
      return;
    }
  }
  runs.push_back(run);
}

// --- forward -------------------------------------------------------------------------------------

/// The properties that parts of one launch have in common, except the class of their lengths.
auto launch_kind(const VarlenPart& part) {
  return std::tuple(part.region, !part.right_limited, part.window_left);
}

void add_sequence(VarlenLaunch& launch, int64_t queries, int64_t key_start, int64_t keys) {
  const int64_t rows = launch.cu_seqlens_q.back() + queries;
  DISTCA_CHECK(rows <= kMostRows && key_start + keys <= kMostRows,
               "a launch of {} queries, {} keys: more than 32 bits count", rows, key_start + keys);
  launch.cu_seqlens_q.push_back(static_cast<int32_t>(rows));
  launch.key_starts.push_back(static_cast<int32_t>(key_start));
  launch.keys_used.push_back(static_cast<int32_t>(keys));
  if (queries == 0) return;
  launch.max_queries = std::max(launch.max_queries, queries);
  launch.max_keys = std::max(launch.max_keys, keys);
  // With a left limit alone the operator limits the right by max_keys, too little for a sequence of
  // more queries than keys.
  if (!launch.right_limited && launch.window_left >= 0) {
    launch.max_keys = std::max(launch.max_keys, launch.max_queries);
  }
}

VarlenLaunch empty_launch(const VarlenPart& like, const Range& key_rows) {
  return {.buffer = like.buffer,
          .key_rows = key_rows,
          .right_limited = like.right_limited,
          .window_left = like.window_left,
          .cu_seqlens_q = {0}};
}

/// Ends the launch's lists. A window that reaches all keys of its sequences is no limit any more:
/// operators add windows to rows in 32 bits.
void end_launch(VarlenLaunch& launch, int64_t key_rows) {
  launch.key_starts.push_back(static_cast<int32_t>(key_rows));
  if (launch.window_left >= launch.max_keys - 1) launch.window_left = -1;
}

VarlenLaunch forward_launch(std::span<const VarlenPart> parts) {
  Range rows{parts[0].row, parts[0].row};
  for (const VarlenPart& part : parts) {
    rows = {std::min(rows.begin, part.row), std::max(rows.end, part.row + part.keys.size())};
  }
  VarlenLaunch launch = empty_launch(parts[0], rows);
  for (const VarlenPart& part : parts) {
    launch.pieces.push_back({part.task, part.queries});
    add_sequence(launch, part.queries.size(), part.row - rows.begin, part.keys.size());
  }
  end_launch(launch, rows.size());
  return launch;
}

/// Calls `body(parts)` for each run of parts of one kind; parts of a kind keep their order.
template <typename Kind, typename Body>
void for_kinds(std::vector<VarlenPart>& parts, const Kind& kind, Body body) {
  std::ranges::stable_sort(parts, {}, kind);
  for (size_t begin = 0, end; begin < parts.size(); begin = end) {
    end = begin + 1;
    while (end < parts.size() && kind(parts[end]) == kind(parts[begin])) ++end;
    body(std::span(parts).subspan(begin, end - begin));
  }
}

// --- backward ------------------------------------------------------------------------------------

/// Parts that one sequence computes, their queries one after another.
struct Sequence {
  std::vector<QueryPiece> pieces;
  VarlenPart whole;  // the last part, with the keys of all parts
  int64_t query_rows = 0;
};

/// Merges parts of one kind: those of the same document's rows, from the same first key on, the one
/// beginning where the other ends.
std::vector<Sequence> merged(std::span<const VarlenPart> parts) {
  std::vector<Sequence> sequences;
  std::multimap<std::tuple<int64_t, int64_t, int64_t>, size_t> open;  // by where their queries end
  for (const VarlenPart& part : parts) {
    const bool limited = part.right_limited;
    if (limited || part.window_left < 0) {
      const auto key = [&](int64_t end) {
        return std::tuple(part.row - part.keys.begin, limited ? part.first_key : part.keys.begin,
                          end);
      };
      // Queries that see all of the same keys may stand in any order.
      const int64_t begin = limited ? part.queries.begin : part.keys.end;
      const int64_t end = limited ? part.queries.end : part.keys.end;
      if (auto before = open.extract(key(begin))) {
        Sequence& sequence = sequences[before.mapped()];
        sequence.pieces.push_back({part.task, part.queries});
        sequence.query_rows += part.queries.size();
        const VarlenPart first = std::exchange(sequence.whole, part);
        sequence.whole.row = first.row;
        sequence.whole.keys.begin = first.keys.begin;
        before.key() = key(end);
        open.insert(std::move(before));
        continue;
      }
      open.emplace(key(end), sequences.size());
    }
    sequences.push_back({{{part.task, part.queries}}, part, part.queries.size()});
  }
  return sequences;
}

void add_gradients(VarlenLaunch& launch, const TaskList& list, const VarlenPart& whole) {
  for (const KeyRange& range : key_ranges(list.tasks[whole.task], whole.keys)) {
    const int64_t row = whole.row + range.position - whole.keys.begin - launch.key_rows.begin;
    add_run({range.buffer, range.row, range.tokens, row}, launch.gradients);
  }
}

/// Sequences of one launch, whose keys are disjoint and ascend.
VarlenLaunch backward_launch(const TaskList& list, std::span<const Sequence* const> sequences) {
  const VarlenPart& last = sequences.back()->whole;
  VarlenLaunch launch =
      empty_launch(sequences[0]->whole, {sequences[0]->whole.row, last.row + last.keys.size()});
  int64_t row = 0;
  for (const Sequence* sequence : sequences) {
    const VarlenPart& whole = sequence->whole;
    const int64_t start = whole.row - launch.key_rows.begin;
    if (row < start) add_sequence(launch, 0, row, start - row);
    launch.pieces.insert(launch.pieces.end(), sequence->pieces.begin(), sequence->pieces.end());
    add_sequence(launch, sequence->query_rows, start, whole.keys.size());
    add_gradients(launch, list, whole);
    row = start + whole.keys.size();
  }
  end_launch(launch, row);
  return launch;
}

/// Divides sequences of one class of lengths into as few launches as their keys' overlaps allow: in
/// ascending order of their keys, each sequence goes into the first launch whose keys end before
/// its own begin.
std::vector<std::vector<const Sequence*>> disjoint(std::vector<const Sequence*> order) {
  std::ranges::stable_sort(order, {}, [](const Sequence* one) { return one->whole.row; });
  std::vector<std::vector<const Sequence*>> launches;
  for (const Sequence* sequence : order) {
    const auto fits = [&](const std::vector<const Sequence*>& launch) {
      const VarlenPart& last = launch.back()->whole;
      return last.row + last.keys.size() <= sequence->whole.row;
    };
    auto launch = std::ranges::find_if(launches, fits);
    if (launch == launches.end()) launch = launches.insert(launch, std::vector<const Sequence*>());
    launch->push_back(sequence);
  }
  return launches;
}

/// Calls `body(sequences)` for each run of them, with the gaps between them, that a launch takes.
template <typename Body>
void for_runs(std::span<const Sequence* const> sequences, const LaunchLimits& limits, Body body) {
  size_t begin = 0;
  int64_t count = 0, queries = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    int64_t more = 1;
    if (i > begin) {
      const VarlenPart& before = sequences[i - 1]->whole;
      if (before.row + before.keys.size() < sequences[i]->whole.row) ++more;
      const int64_t rows = std::max(limits.padding_rows, queries + sequences[i]->query_rows);
      if (count + more > limits.sequences || (count + more) * kPaddingRows > rows) {
        body(sequences.subspan(begin, i - begin));
        begin = i, count = 0, queries = 0, more = 1;
      }
    }
    count += more, queries += sequences[i]->query_rows;
  }
  body(sequences.subspan(begin));
}

}  // namespace

int length_class(int64_t rows, const LaunchLimits& limits) {
  int length = 0;
  for (int64_t most = limits.short_rows; most < rows; most *= 4) ++length;
  return length;
}

std::vector<RowRun> query_runs(const TaskList& list, const VarlenLaunch& launch) {
  std::vector<RowRun> runs;
  int64_t row = 0;
  for (const QueryPiece& piece : launch.pieces) {
    const Task& task = list.tasks[piece.task];
    const int64_t from = task.q_row + piece.queries.begin - task.q_position;
    add_run({task.query_buffer, from, piece.queries.size(), row}, runs);
    row += piece.queries.size();
  }
  return runs;
}

VarlenPlan plan_forward_launches(ScalarType type, const TaskList& list,
                                 const LaunchLimits& limits) {
  VarlenPlan plan;
  std::vector<VarlenPart> parts = cut_tasks(list.tasks);
  place_keys(type, list, parts, /*over_gaps=*/true, plan);
  const auto kind_of = [&limits](const VarlenPart& part) {
    return std::tuple_cat(launch_kind(part), std::tuple(length_class(part.queries.size(), limits)));
  };
  for_kinds(parts, kind_of, [&](std::span<const VarlenPart> kind) {
    const auto most = static_cast<size_t>(limits.sequences);
    for (; !kind.empty(); kind = kind.subspan(std::min(most, kind.size()))) {
      const auto run = kind.first(std::min(most, kind.size()));
      plan.launches.push_back(forward_launch(run));
    }
  });
  return plan;
}

VarlenPlan plan_backward_launches(ScalarType type, const TaskList& list,
                                  const LaunchLimits& limits) {
  VarlenPlan plan;
  std::vector<VarlenPart> parts = cut_tasks(list.tasks);
  place_keys(type, list, parts, /*over_gaps=*/false, plan);
  for_kinds(parts, launch_kind, [&](std::span<VarlenPart> kind) {
    std::ranges::stable_sort(kind, {}, [](const VarlenPart& part) { return part.queries.begin; });
    const std::vector<Sequence> sequences = merged(kind);
    std::map<int, std::vector<const Sequence*>> by_length;
    for (const Sequence& sequence : sequences) {
      const int64_t rows = std::max(sequence.query_rows, sequence.whole.keys.size());
      by_length[length_class(rows, limits)].push_back(&sequence);
    }
    for (const auto& [length, of_length] : by_length) {
      for (const std::vector<const Sequence*>& launch : disjoint(of_length)) {
        for_runs(launch, limits, [&](std::span<const Sequence* const> run) {
          plan.launches.push_back(backward_launch(list, run));
        });
      }
    }
  });
  return plan;
}

}  // namespace distca::kernels
