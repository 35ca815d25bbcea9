#include "distca/plan/attention_parts.h"

#include <algorithm>
#include <cstddef>

#include "distca/plan/cuts.h"

namespace distca {

int64_t pairs_of(const AttentionExchange& exchange, const TaskPiece& piece) {
  const ServerTask& task = exchange.rows.tasks[piece.task];
  const int64_t first = task.q.position;
  return pairs_of(task, {first + piece.queries.begin, first + piece.queries.end},
                  exchange.shape.mask);
}

namespace {

/// Pieces in an order, from which the first ones are taken.
class Pieces {
 public:
  explicit Pieces(const AttentionExchange& exchange) : exchange_(exchange) {}

  void add(const std::vector<TaskPiece>& pieces) {
    pieces_.insert(pieces_.end(), pieces.begin(), pieces.end());
  }
  size_t size() const { return pieces_.size(); }

  /// Takes the pieces before this index of those that were added.
  void take_until(size_t index, AttentionPart& into) {
    for (; next_ < index; ++next_) {
      into.pieces.push_back(front());
      into.pairs += pairs_of(exchange_, front());
    }
  }
  /// Takes as many rows as bring the pairs of `into` nearest to this number.
  void take(int64_t pairs, AttentionPart& into) {
    while (next_ < size()) {
      const int64_t wanted = pairs - into.pairs;
      if (wanted <= 0) return;
      const int64_t rows = rows_for(wanted);
      if (rows == front().queries.size()) {
        take_until(next_ + 1, into);
        continue;
      }
      if (rows == 0) return;
      TaskPiece first = front();
      first.queries.end = pieces_[next_].queries.begin = first.queries.begin + rows;
      into.pieces.push_back(first);
      into.pairs += pairs_of(exchange_, first);
      return;
    }
  }

 private:
  const TaskPiece& front() const { return pieces_[next_]; }
  int64_t pairs_of_first(int64_t rows) const {
    TaskPiece piece = front();
    piece.queries.end = piece.queries.begin + rows;
    return pairs_of(exchange_, piece);
  }
  /// Rows of the front piece, all or a multiple of kCutRows, with about so many pairs.
  int64_t rows_for(int64_t pairs) const {
    const int64_t all = front().queries.size();
    if (pairs_of_first(all) <= pairs) return all;
    const int64_t blocks = bisect(1, ceil_div(all, kCutRows), [&](int64_t count) {
      return pairs_of_first(count * kCutRows) > pairs;
    });
    const int64_t less = (blocks - 1) * kCutRows, more = std::min(all, blocks * kCutRows);
    return pairs - pairs_of_first(less) <= pairs_of_first(more) - pairs ? less : more;
  }

  const AttentionExchange& exchange_;
  std::vector<TaskPiece> pieces_;
  size_t next_ = 0;
};

/// A rank's tasks in the order of a pass.
struct Ordered {
  Pieces pieces;
  int64_t pairs = 0;
  // Pieces that must be in the first kSharesBeforeCombine shares, and their pairs.
  size_t needed = 0;
  int64_t needed_pairs = 0;
};

Ordered ordered(const AttentionExchange& exchange, Pass pass) {
  std::vector<TaskPiece> returned, kept;
  Pieces home(exchange);
  AttentionPart of_returned, home_first, home_rest;
  Ordered result{.pieces = Pieces(exchange)};
  for (int32_t i = 0; i < static_cast<int32_t>(exchange.rows.tasks.size()); ++i) {
    const ServerTask& task = exchange.rows.tasks[i];
    const TaskPiece whole{i, {0, task.q.tokens}};
    const int64_t pairs = pairs_of(exchange, whole);
    result.pairs += pairs;
    if (is_returned(task)) {
      returned.push_back(whole);
      of_returned.pairs += pairs;
    } else if (is_home(task)) {
      home.add({whole});
    } else {
      kept.push_back(whole);
    }
  }
  if (pass == Pass::kBackward) {
    home.take_until(home.size(), home_rest);
    for (const auto* pieces : {&kept, &home_rest.pieces, &returned}) result.pieces.add(*pieces);
    return result;
  }
  home.take(result.pairs / 2 - of_returned.pairs, home_first);
  home.take_until(home.size(), home_rest);
  for (const auto* pieces : {&home_first.pieces, &returned, &home_rest.pieces, &kept})
    result.pieces.add(*pieces);
  if (returned.empty()) return result;
  result.needed = home_first.pieces.size() + returned.size();
  result.needed_pairs = home_first.pairs + of_returned.pairs;
  return result;
}

}  // namespace

AttentionShares::AttentionShares(const AttentionExchange& exchange, Pass pass,
                                 int64_t least_pairs) {
  auto [pieces, pairs, needed, needed_pairs] = ordered(exchange, pass);
  // In forward, both sides of a combine are divided evenly.
  const int before = pass == Pass::kForward ? kSharesBeforeCombine : 0;
  const int64_t pairs_before = before == 0 ? 0 : std::max(pairs / 2, needed_pairs);
  int64_t taken = 0;
  for (int i = 0; i < kAttentionShares; ++i) {
    AttentionPart& share = shares_[i];
    const int64_t until = i < before ? pairs_before * (i + 1) / before
                                     : pairs_before + (pairs - pairs_before) * (i + 1 - before) /
                                                          (kAttentionShares - before);
    if (until - taken >= least_pairs) pieces.take(until - taken, share);
    if (i + 1 == before) pieces.take_until(needed, share);
    if (i + 1 == kAttentionShares) pieces.take_until(pieces.size(), share);
    taken += share.pairs;
  }
}

AttentionPart AttentionShares::part(const Range& shares) const {
  AttentionPart part;
  for (int64_t i = shares.begin; i < shares.end; ++i) {
    for (const TaskPiece& piece : shares_[i].pieces) {
      TaskPiece* const last = part.pieces.empty() ? nullptr : &part.pieces.back();
      if (last != nullptr && last->task == piece.task && last->queries.end == piece.queries.begin) {
        last->queries.end = piece.queries.end;
      } else {
        part.pieces.push_back(piece);
      }
    }
    part.pairs += shares_[i].pairs;
  }
  return part;
}

}  // namespace distca
