#include "distca/plan/balanced/layout_fill.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "distca/plan/balanced/layout_pool.h"
#include "distca/plan/cuts.h"

namespace distca {
namespace {

constexpr int64_t kHalfBlock = kBlockTokens / 2;
constexpr size_t kTries = 4;  // documents looked at where several would do

/// The last rows, about `goal` tokens: none, or the last block (possibly short) and whole ones.
Range last_rows(const Range& rows, int64_t goal) {
  const int64_t last_block = std::max(rows.begin, round_down(rows.end - 1, kBlockTokens));
  const int64_t rest = goal - (rows.end - last_block);
  if (rest < 0 && goal * 2 <= rows.end - last_block) return {rows.end, rows.end};
  const int64_t blocks = rest < 0 ? 0 : (rest + kHalfBlock - 1) / kBlockTokens;
  return {std::max(rows.begin, last_block - blocks * kBlockTokens), rows.end};
}

/// The first rows, about `goal` tokens: whole blocks, or all.
Range first_rows(const Range& rows, int64_t goal) {
  const int64_t blocks = (std::max<int64_t>(0, goal) + kHalfBlock - 1) / kBlockTokens;
  return {rows.begin, std::min(rows.end, rows.begin + blocks * kBlockTokens)};
}

class Filler {
 public:
  Filler(const Filling& filling, const FillChoice& choice) : filling_(filling), choice_(choice) {
    layout_.workers.resize(filling.request.cluster.num_workers);
    std::vector<DocumentRemainder> light;
    for (const Document& document : filling.by_length) {
      const DocumentRemainder remainder{document.id, {0, document.length}};
      if (dense(remainder.rows, choice.heavy_permille)) {
        by_end_.emplace_hint(by_end_.end(), document.length, heavy_.size());
        heavy_.push_back(remainder);
      } else {
        light.push_back(remainder);
      }
    }
    pool_ = RemainderPool(std::move(light));
  }

  Layout run() {
    const int64_t total = filling_.request.nano_batch.num_tokens();
    const double slack = static_cast<double>(filling_.request.options.tolerance_ppm.value() *
                                             choice_.slack_permille);
    const int num_workers = layout_.num_workers();
    int64_t used = 0;
    for (worker_ = 0; worker_ < num_workers; ++worker_) {
      // Up to a boundary between workers, not a number of its own: errors do not add up.
      const int64_t goal = total * (worker_ + 1) / num_workers - used;
      tokens_ = goal;
      share_ =
          static_cast<int64_t>(static_cast<double>(filling_.shares[worker_]) * (1 + slack * 1e-9));
      room_ = share_;
      most_blocks_ = tokens_ / kBlockTokens + 1;
      if (worker_ + 1 < num_workers) {
        fill();
      } else {
        for (const DocumentRemainder& remainder : heavy_) place(remainder.document, remainder.rows);
        RemainderPool::Spot spot;
        while (const auto item = pool_.next(spot))
          place(item->remainder.document, item->remainder.rows);
      }
      used += goal - tokens_;
    }
    return std::move(layout_);
  }

 private:
  struct Cut {
    RemainderPool::Item from;
    Range rows;
  };

  int64_t load(const Range& rows) const { return filling_.price.of_rows(rows); }

  /// Does a token cost more than half this x the mean?
  bool dense(const Range& rows, int64_t permille) const {
    return load(rows) / rows.size() * 2000 > permille * filling_.mean_load;
  }

  /// The lowest row at which a piece may begin that ends at rows.end and costs at most `most`.
  int64_t first_row(const Range& rows, int64_t most) const {
    if (most <= 0) return rows.end;
    if (filling_.price.has_closed_form()) {
      const double middle = static_cast<double>(rows.end) + 0.5;
      const double square = middle * middle - 2.0 * static_cast<double>(most);
      if (square <= 0) return rows.begin;
      const auto exact = static_cast<int64_t>(std::sqrt(square) + 0.5);
      return std::clamp(round_up(exact, kBlockTokens), rows.begin, rows.end);
    }
    // Blocks before the last one, counted from where every row would cost as much as the last ones.
    const int64_t last = std::max(rows.begin, round_down(rows.end - 1, kBlockTokens));
    const int64_t blocks = ceil_div(last - rows.begin, kBlockTokens);
    const auto too_much = [&](int64_t count) {
      return load({std::max(rows.begin, last - count * kBlockTokens), rows.end}) > most;
    };
    if (rows.empty() || too_much(0)) return rows.end;
    const int64_t guess = most / std::max<int64_t>(1, load({last, rows.end})) - 1;
    int64_t low = std::clamp<int64_t>(guess, 0, blocks);
    if (too_much(low)) low = 0;
    int64_t high = low + 1;
    for (int64_t step = 1; high <= blocks && !too_much(high); step *= 2) {
      low = high;
      high = low + step;
    }
    const int64_t count = bisect(low + 1, std::min(high, blocks + 1), too_much) - 1;
    return std::max(rows.begin, last - count * kBlockTokens);
  }

  /// Tokens of the last rows of `heavy` that take the room which filler of this load leaves.
  int64_t rows_beside(const DocumentRemainder& heavy, int64_t filler) const {
    return heavy.rows.end - first_row(heavy.rows, room_ - filler);
  }
  int64_t tokens_beside(const DocumentRemainder& heavy, const Range& filler) const {
    return filler.size() + rows_beside(heavy, load(filler));
  }

  bool full_beside(const DocumentRemainder& heavy, const Range& filler) const {
    return tokens_beside(heavy, filler) >= tokens_ - kHalfBlock;
  }
  bool open() const { return tokens_ > kHalfBlock; }
  bool fits(const Range& rows) const {
    return rows.size() < tokens_ + kHalfBlock && load(rows) <= room_;
  }

  std::optional<size_t> longest_heavy() const {
    if (by_end_.empty()) return std::nullopt;
    return by_end_.lower_bound({by_end_.rbegin()->first, 0})->second;
  }

  /// The lightest whose last rows alone would take the room that is left.
  std::optional<size_t> next_heavy() const {
    if (by_end_.empty()) return std::nullopt;
    const double wanted = 1.15 * static_cast<double>(room_) / static_cast<double>(tokens_);
    const auto takes_all = [&](int64_t end) {
      const Range last{round_down(end - 1, kBlockTokens), end};
      return static_cast<double>(load(last)) >= wanted * static_cast<double>(last.size());
    };
    // Whole blocks first: those cost the more, the later they are, in a profile too.
    const int64_t most = ceil_div(by_end_.rbegin()->first, kBlockTokens);
    const int64_t block =
        bisect(1, most, [&](int64_t count) { return takes_all(count * kBlockTokens); });
    const int64_t end = bisect((block - 1) * kBlockTokens + 1, block * kBlockTokens, takes_all);
    const auto found = by_end_.lower_bound({end, 0});
    return found == by_end_.end() ? longest_heavy() : found->second;
  }

  void fill() {
    bool empty = true;
    for (; open(); empty = false) {
      if (!empty && place_densest()) continue;
      const auto heavy = empty ? longest_heavy() : next_heavy();
      if (!heavy) {
        if (!place_densest()) close_from_pool();
      } else if (fits(heavy_[*heavy].rows)) {
        place(heavy_[*heavy].document, heavy_[*heavy].rows);
        shorten(*heavy, heavy_[*heavy].rows.begin);
      } else {
        place_top(*heavy);
      }
    }
  }

  /// A whole document, the one that brings the most load per token of those that fit.
  bool place_densest() {
    const auto too_much = [&](int64_t count) { return load({0, count * kBlockTokens}) > room_; };
    most_blocks_ = std::min(most_blocks_, tokens_ / kBlockTokens + 1);
    if (most_blocks_ > 0 && too_much(most_blocks_ - 1)) {
      most_blocks_ = bisect(0, most_blocks_ - 1, too_much);
    }
    const auto item =
        pool_.heaviest(pool_.above((most_blocks_ + 1) * kBlockTokens),
                       [&](const DocumentRemainder& remainder) { return fits(remainder.rows); });
    if (item) place_whole(*item);
    return item.has_value();
  }

  /// The last rows of a long document, and filler so that the worker is full in tokens and load.
  void place_top(size_t index) {
    DocumentRemainder& heavy = heavy_[index];
    place_hot_rows(heavy);
    place_filler(heavy);
    close_gap(heavy);
    const Range top = last_rows(heavy.rows, tokens_);
    place(heavy.document, top);
    shorten(index, top.begin);
  }

  /// This worker's part of the rows that all workers of the document read.
  void place_hot_rows(DocumentRemainder& heavy) {
    if (choice_.spread_permille == 0) return;
    const Range whole{0, filling_.request.nano_batch.documents[heavy.document].length};
    const double pieces = static_cast<double>(load(whole)) / static_cast<double>(share_ + 1);
    if (pieces < 2) return;
    // The first of `pieces` pieces of equal load has length / sqrt(pieces) rows.
    const double part = static_cast<double>(whole.size()) / (pieces * std::sqrt(pieces));
    const int64_t most =
        first_rows(heavy.rows,
                   static_cast<int64_t>(part * static_cast<double>(choice_.spread_permille) * 1e-3))
            .size();
    const Range rows =
        prefix_beside(heavy, {heavy.rows.begin, heavy.rows.begin + round_down(most, kBlockTokens)});
    place(heavy.document, rows);
    heavy.rows.begin = rows.end;
  }

  /// Whole documents, lightest first; last the longest that fits, for a small gap.
  void place_filler(const DocumentRemainder& heavy) {
    while (true) {
      RemainderPool::Spot spot;
      const auto first = pool_.next(spot);
      const auto second = pool_.next(spot);
      if (!second) break;
      const int64_t beside =
          rows_beside(heavy, load(first->remainder.rows) + load(second->remainder.rows));
      if (first->remainder.rows.size() + second->remainder.rows.size() + beside > tokens_) break;
      place_whole(*first);
    }
    const auto fits_beside = [&](const Range& rows) {
      return tokens_beside(heavy, rows) < tokens_ + kHalfBlock;
    };
    const int64_t blocks = bisect(0, tokens_ / kBlockTokens + 1, [&](int64_t count) {
      return !fits_beside({0, count * kBlockTokens});
    });
    RemainderPool::Spot spot = pool_.above((blocks + 1) * kBlockTokens);
    for (size_t tries = 0; tries < 4 * kTries; ++tries) {
      const auto item = pool_.previous(spot);
      if (!item) break;
      // The remaining rows of a cut document are dense.
      if (item->remainder.rows.begin > 0 || !fits_beside(item->remainder.rows)) continue;
      place_whole(*item);
      return;
    }
    spot = {};
    const auto lightest = pool_.next(spot);
    if (lightest && fits_beside(lightest->remainder.rows)) place_whole(*lightest);
  }

  /// The worker's tokens exactly, by rows that make few keys travel and cost little.
  void close_gap(DocumentRemainder& heavy) {
    if (full_beside(heavy, {})) return;
    // Keys that travel for it, and those that other workers read for the load that it displaces.
    const double keys_per_load = static_cast<double>(choice_.load_permille) * 1e-3 *
                                 static_cast<double>(heavy.rows.end) /
                                 static_cast<double>(share_ + 1);
    const auto score = [&](int64_t keys, const Range& rows) {
      return static_cast<double>(keys) + keys_per_load * static_cast<double>(load(rows));
    };
    const Range own = prefix_beside(heavy, heavy.rows);
    const bool own_is_light =
        own.empty() || !dense({own.end - kBlockTokens, own.end}, choice_.prefix_permille * 2);
    std::optional<double> best;
    if (own_is_light && full_beside(heavy, own)) best = score(0, own);
    std::optional<Cut> chosen;
    const int64_t least = bisect(0, tokens_ / kBlockTokens + 1, [&](int64_t count) {
      return full_beside(heavy, {0, count * kBlockTokens});
    });
    RemainderPool::Spot lightest;
    RemainderPool::Spot longer = pool_.above((least + 1) * kBlockTokens);
    for (RemainderPool::Spot* spot : {&lightest, &lightest, &longer, &longer}) {
      const auto item = pool_.next(*spot);
      if (!item) continue;
      const Range prefix = prefix_beside(heavy, item->remainder.rows);
      const Range suffix = suffix_beside(heavy, item->remainder.rows);
      for (const auto& [rows, keys] :
           {std::pair{prefix, prefix.end}, std::pair{suffix, suffix.begin}}) {
        if (rows.empty() || !full_beside(heavy, rows) || (best && score(keys, rows) >= *best))
          continue;
        best = score(keys, rows);
        chosen = Cut{*item, rows};
      }
    }
    if (chosen) {
      place(*chosen);
    } else {
      place(heavy.document, own);
      heavy.rows.begin = own.end;
    }
  }

  /// Fewest whole blocks from the start of `rows` that fill the worker together with the last rows
  /// of `heavy`; all of them if none do.
  Range prefix_beside(const DocumentRemainder& heavy, const Range& rows) const {
    const int64_t most = std::min(tokens_ + kHalfBlock - 1, rows.size()) / kBlockTokens;
    const int64_t blocks = bisect(0, most, [&](int64_t count) {
      return full_beside(heavy, {rows.begin, rows.begin + count * kBlockTokens});
    });
    return {rows.begin, rows.begin + blocks * kBlockTokens};
  }

  /// Fewest whole blocks from the end of `rows`, found likewise.
  Range suffix_beside(const DocumentRemainder& heavy, const Range& rows) const {
    const int64_t end = ceil_div(rows.end, kBlockTokens);
    const int64_t blocks = bisect(0, end - ceil_div(rows.begin, kBlockTokens), [&](int64_t count) {
      return full_beside(heavy, {std::min(rows.end, (end - count) * kBlockTokens), rows.end});
    });
    return {std::min(rows.end, (end - blocks) * kBlockTokens), rows.end};
  }

  /// Part of a document for the last tokens, or one that costs more than the room there is.
  void close_from_pool() {
    std::optional<double> best;
    std::optional<Cut> chosen;
    const auto consider = [&](const RemainderPool::Item& item) {
      const Range& whole = item.remainder.rows;
      for (const Range& rows : {first_rows(whole, tokens_), last_rows(whole, tokens_)}) {
        if (rows.empty()) continue;
        const int64_t cut = rows.begin == whole.begin ? rows.end : rows.begin;
        const int64_t keys = rows == whole ? 0 : cut;
        const auto over = static_cast<double>(load(rows) - room_);
        const double score =
            static_cast<double>(keys) +
            (over > 0 ? over : -0.3 * over) / static_cast<double>(filling_.mean_load + 1);
        if (best && score >= *best) continue;
        best = score;
        chosen = Cut{item, rows};
      }
    };
    RemainderPool::Spot spot = pool_.above(tokens_);
    size_t tries = 4 * kTries;
    for (size_t back = 0; back < 4 * kTries && pool_.previous(spot); ++back) ++tries;
    for (; tries > 0; --tries) {
      if (const auto item = pool_.next(spot)) consider(*item);
    }
    spot = {};
    for (tries = kTries; tries > 0; --tries) {
      if (const auto item = pool_.next(spot)) consider(*item);
    }
    place(*chosen);
  }

  void place(int64_t document, const Range& rows) {
    if (rows.empty()) return;
    layout_.workers[worker_].push_back({document, rows});
    tokens_ -= rows.size();
    room_ -= load(rows);
  }

  void place_whole(const RemainderPool::Item& item) {
    pool_.take(item);
    place(item.remainder.document, item.remainder.rows);
  }

  void place(const Cut& cut) {
    pool_.take(cut.from);
    const auto& [document, rows] = cut.from.remainder;
    place(document, cut.rows);
    if (rows.begin < cut.rows.begin) pool_.insert({document, {rows.begin, cut.rows.begin}});
    if (cut.rows.end < rows.end) pool_.insert({document, {cut.rows.end, rows.end}});
  }

  void shorten(size_t index, int64_t end) {
    DocumentRemainder& heavy = heavy_[index];
    by_end_.erase({heavy.rows.end, index});
    heavy.rows.end = end;
    if (!heavy.rows.empty()) by_end_.emplace(end, index);
  }

  const Filling& filling_;
  const FillChoice choice_;
  std::vector<DocumentRemainder> heavy_;         // empty ones too
  std::set<std::pair<int64_t, size_t>> by_end_;  // (end, index) of heavy_, without the empty ones
  RemainderPool pool_;
  Layout layout_;
  // The worker at hand:
  int worker_ = 0;
  int64_t tokens_ = 0;       // it still takes; done when this is in (-64, 64]
  int64_t share_ = 0;        // load it may take
  int64_t room_ = 0;         // load it still takes
  int64_t most_blocks_ = 0;  // no whole document of more takes tokens_ and room_, which only shrink
};

}  // namespace

Layout fill_workers(const Filling& filling, const FillChoice& choice) {
  return Filler(filling, choice).run();
}

}  // namespace distca
