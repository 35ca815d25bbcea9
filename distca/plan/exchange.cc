#include "distca/plan/exchange.h"

#include <algorithm>
#include <span>
#include <tuple>

#include "distca/base/error.h"

namespace distca {
namespace {

/// Union of one side of tasks of one server and one document: disjoint, ascending, touching ranges
/// joined.
std::vector<Range> merged(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<Range> result;
  for (const Range& range : ranges) {
    if (range.empty()) continue;
    if (!result.empty() && range.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, range.end);
    } else {
      result.push_back(range);
    }
  }
  return result;
}

/// A range that travels, before it is sorted into its message.
struct Travel {
  int peer;
  bool key;
  RowRange rows;
};

/// One message for each peer.
std::vector<PeerTransfer> messages(std::vector<Travel> travels) {
  std::ranges::sort(travels, {}, [](const Travel& travel) {
    return std::tie(travel.peer, travel.key, travel.rows.document, travel.rows.tokens);
  });
  std::vector<PeerTransfer> result;
  for (Travel& travel : travels) {
    if (result.empty() || result.back().peer != travel.peer) {
      result.push_back({.peer = travel.peer});
    }
    PeerTransfer& message = result.back();
    int64_t& tokens = travel.key ? message.kv_tokens : message.q_tokens;
    travel.rows.message_row = tokens;
    tokens += travel.rows.tokens.size();
    (travel.key ? message.kv : message.q).push_back(travel.rows);
  }
  return result;
}

/// The place of tokens that this rank has received: Q rows, or `key`: K and V rows.
BufferRows received_rows(const std::vector<PeerTransfer>& receives, int home, bool key,
                         int64_t document, const Range& tokens) {
  const auto message = std::ranges::lower_bound(receives, home, {}, &PeerTransfer::peer);
  DISTCA_CHECK(message != receives.end() && message->peer == home, "nothing comes from {}", home);
  const std::vector<RowRange>& ranges = key ? message->kv : message->q;
  const auto range = std::partition_point(ranges.begin(), ranges.end(), [&](const RowRange& r) {
    return std::tie(r.document, r.tokens.end) <= std::tie(document, tokens.begin);
  });
  DISTCA_CHECK(
      range != ranges.end() && range->document == document && range->tokens.contains(tokens),
      "document {} [{}, {}) is not in the buffer", document, tokens.begin, tokens.end);
  return {.buffer = static_cast<int32_t>(message - receives.begin()) + 1,
          .row = range->message_row + tokens.begin - range->tokens.begin,
          .position = tokens.begin,
          .tokens = tokens.size()};
}

/// A result of some Q rows of a buffer.
struct Result {
  int32_t buffer;
  Range rows;
  MergePart part;     // part for the first of the rows
  int64_t first_key;  // first key of a task; 0 for a result that has arrived
};

/// Its place in the order of summation.
constexpr auto kMergeOrder = [](const Result& result) {
  return std::tie(result.part.arrived, result.first_key, result.part.index);
};

/// Results of a buffer of which each overlaps another, sorted by first row: cuts their rows where
/// the set of results changes.
void merge_overlapping(std::span<const Result> results, std::vector<RowMerge>& merges) {
  std::vector<int64_t> cuts;
  for (const Result& result : results) {
    cuts.push_back(result.rows.begin);
    cuts.push_back(result.rows.end);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<Result> active;  // in the order of summation
  auto next = results.begin();
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const Range rows{cuts[i], cuts[i + 1]};
    std::erase_if(active, [&rows](const Result& result) { return result.rows.end <= rows.begin; });
    for (; next != results.end() && next->rows.begin == rows.begin; ++next) {
      active.insert(std::ranges::upper_bound(active, kMergeOrder(*next), {}, kMergeOrder), *next);
    }
    if (active.size() == 1 && active[0].part.arrived) continue;  // comes home as it is
    RowMerge& merge = merges.emplace_back();
    merge = {.buffer = results[0].buffer, .row = rows.begin, .tokens = rows.size()};
    for (const Result& result : active) {
      merge.parts.push_back(result.part);
      merge.parts.back().row += rows.begin - result.rows.begin;
    }
  }
}

/// Finds the rows of which there are several results, on this rank or at other servers.
void add_merges(const Plan& plan, RankExchange& rank) {
  std::vector<Result> results;
  for (size_t i = 0; i < rank.tasks.size(); ++i) {
    const ServerTask& task = rank.tasks[i];
    results.push_back({.buffer = task.q.buffer,
                       .rows = {task.q.row, task.q.row + task.q.tokens},
                       .part = {.arrived = false, .index = static_cast<int32_t>(i), .row = 0},
                       .first_key = plan.tasks[task.task].kv.begin});
  }
  for (size_t i = 0; i < rank.sends.size(); ++i) {
    for (const RowRange& range : rank.sends[i].q) {
      results.push_back(
          {.buffer = 0,
           .rows = {range.row, range.row + range.tokens.size()},
           .part = {.arrived = true, .index = static_cast<int32_t>(i), .row = range.message_row},
           .first_key = 0});
    }
  }
  std::ranges::sort(results, {}, [](const Result& result) {
    return std::tie(result.buffer, result.rows.begin, result.part.arrived, result.part.index);
  });
  for (size_t begin = 0, end = 0; begin < results.size(); begin = end) {
    int64_t reach = results[begin].rows.end;
    for (end = begin + 1; end < results.size() && results[end].buffer == results[begin].buffer &&
                          results[end].rows.begin < reach;
         ++end) {
      reach = std::max(reach, results[end].rows.end);
    }
    if (end - begin == 1) continue;
    merge_overlapping(std::span(results).subspan(begin, end - begin), rank.merges);
  }
  for (const RowMerge& merge : rank.merges) {
    for (const MergePart& part : merge.parts) {
      if (!part.arrived) rank.tasks[part.index].partial = true;
    }
  }
}

constexpr auto kFirstToken = [](const auto& read) { return read.tokens.begin; };

}  // namespace

int64_t PlanIndex::Reads::fill_reach(size_t begin, size_t end) {
  if (begin == end) return 0;
  const size_t root = begin + (end - begin) / 2;
  reach[root] =
      std::max({keys[root].tokens.end, fill_reach(begin, root), fill_reach(root + 1, end)});
  return reach[root];
}

template <typename Visit>
void PlanIndex::Reads::for_each_keys(size_t begin, size_t end, const Range& tokens,
                                     const Visit& visit) const {
  if (begin == end) return;
  const size_t root = begin + (end - begin) / 2;
  if (reach[root] <= tokens.begin) return;
  for_each_keys(begin, root, tokens, visit);
  if (keys[root].tokens.begin >= tokens.end) return;
  if (keys[root].tokens.end > tokens.begin) visit(keys[root]);
  for_each_keys(root + 1, end, tokens, visit);
}

PlanIndex::PlanIndex(const Plan& plan)
    : plan_(plan),
      homes_(plan.layout, plan.nano_batch.documents.size()),
      reads_(plan.nano_batch.documents.size()) {
  DISTCA_CHECK(std::ranges::is_sorted(plan.tasks, {}, &Task::server),
               "tasks are not sorted by server");
  for (int server = 0; server < plan.cluster.num_servers(); ++server) {
    for (const Need& need : needs(server)) {
      Reads& reads = reads_[need.document];
      for (const Range& range : need.kv) reads.keys.push_back({range, server});
      for (const Range& range : need.q) {
        homes_.for_each_part(need.document, range, [&](const HomeSegment&, const Range& part) {
          reads.q.push_back({part, server});
        });
      }
    }
  }
  for (Reads& reads : reads_) {
    std::ranges::sort(reads.q, {}, kFirstToken);
    std::ranges::sort(reads.keys, {}, &Read::tokens);
    reads.reach.resize(reads.keys.size());
    reads.fill_reach(0, reads.keys.size());
  }
  rows_shared_ = any_row_shared();
}

bool PlanIndex::any_row_shared() const {
  const auto of_servers = [](const Read& a, const Read& b) {
    return b.tokens.begin < a.tokens.end;
  };
  for (const Reads& reads : reads_) {
    if (std::ranges::adjacent_find(reads.q, of_servers) != reads.q.end()) return true;
  }
  const auto of_one_server = [](const Task& a, const Task& b) {
    return a.server == b.server && a.document == b.document && b.q.begin < a.q.end;
  };
  return std::ranges::adjacent_find(plan_.tasks, of_one_server) != plan_.tasks.end();
}

std::vector<PlanIndex::Need> PlanIndex::needs(int server) const {
  std::vector<Need> result;
  for (const Task& task : tasks_of(server)) {
    if (result.empty() || result.back().document != task.document) {
      result.push_back({task.document, {}, {}});
    }
    result.back().q.push_back(task.q);
    result.back().kv.push_back(task.kv);
  }
  for (Need& need : result) {
    need.q = merged(std::move(need.q));
    need.kv = merged(std::move(need.kv));
  }
  return result;
}

std::vector<PeerTransfer> PlanIndex::sends(int rank) const {
  std::vector<Travel> travels;
  if (rank >= plan_.layout.num_workers()) return {};
  int64_t row = 0;
  for (const Segment& segment : plan_.layout.workers[rank]) {
    const Range& home = segment.tokens;
    const auto send = [&](const Read& read, bool key) {
      const Range part = intersect(read.tokens, home);
      if (read.server == rank || part.empty()) return;
      travels.push_back(
          {read.server, key, {segment.document, part, row + part.begin - home.begin}});
    };
    const Reads& reads = reads_[segment.document];
    auto read = std::ranges::lower_bound(reads.q, home.begin, {}, kFirstToken);
    for (; read != reads.q.end() && read->tokens.begin < home.end; ++read) send(*read, false);
    reads.for_each_keys(0, reads.keys.size(), home, [&](const Read& keys) { send(keys, true); });
    row += home.size();
  }
  return messages(std::move(travels));
}

std::vector<PeerTransfer> PlanIndex::receives(int rank) const {
  std::vector<Travel> travels;
  for (const Need& need : needs(rank)) {
    const auto receive = [&](const std::vector<Range>& ranges, bool key) {
      for (const Range& range : ranges) {
        homes_.for_each_part(need.document, range, [&](const HomeSegment& home, const Range& part) {
          if (home.worker == rank) return;
          travels.push_back(
              {home.worker, key, {need.document, part, home.row + part.begin - home.tokens.begin}});
        });
      }
    };
    receive(need.q, false);
    receive(need.kv, true);
  }
  return messages(std::move(travels));
}

RankExchange PlanIndex::exchange(int rank) const {
  RankExchange result;
  if (rank < plan_.layout.num_workers()) result.local_tokens = plan_.layout.num_tokens(rank);
  result.sends = sends(rank);
  result.receives = receives(rank);

  const auto rows_of = [&](const HomeSegment& home, bool key, const Range& part) {
    if (home.worker != rank)
      return received_rows(result.receives, home.worker, key, home.document, part);
    return BufferRows{.buffer = 0,
                      .row = home.row + part.begin - home.tokens.begin,
                      .position = part.begin,
                      .tokens = part.size()};
  };
  for (const Task& task : tasks_of(rank)) {
    ServerTask resolved{.task = &task - plan_.tasks.data()};
    homes_.for_each_part(task.document, task.q, [&](const HomeSegment& home, const Range& part) {
      resolved.q = rows_of(home, false, part);
    });
    homes_.for_each_part(task.document, task.kv, [&](const HomeSegment& home, const Range& part) {
      resolved.kv.push_back(rows_of(home, true, part));
    });
    DISTCA_CHECK_EQ(resolved.q.tokens, task.q.size());
    result.tasks.push_back(std::move(resolved));
  }
  if (rows_shared_) add_merges(plan_, result);
  return result;
}

}  // namespace distca
