#include "distca/plan/balanced/layout_spread.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <tuple>

namespace distca {
namespace {

/// Rows of one document on one worker.
struct Holder {
  int worker;
  Range rows;
};

class Spreader {
 public:
  Spreader(const PlanRequest& request, const TaskPrice& price, const std::vector<int64_t>& shares,
           Layout& layout)
      : price_(price),
        layout_(layout),
        total_(request.nano_batch.num_tokens()),
        holders_(request.nano_batch.documents.size()),
        readers_(holders_.size()),
        sent_(layout.workers.size(), 0),
        received_(layout.workers.size(), 0),
        tokens_(layout.workers.size(), 0) {
    const double bound = request.options.most_over_share();
    for (int worker = 0; worker < layout.num_workers(); ++worker) {
      room_.push_back(static_cast<int64_t>(bound * static_cast<double>(shares[worker])));
      for (const Segment& segment : layout.workers[worker]) {
        holders_[segment.document].push_back({worker, segment.tokens});
        room_[worker] -= load(segment.tokens);
        tokens_[worker] += segment.tokens.size();
      }
    }
    for (size_t document = 0; document < holders_.size(); ++document) {
      count_document(static_cast<int64_t>(document), 1);
    }
  }

  void run() {
    const size_t most_moves = 4 * layout_.workers.size();
    for (size_t move = 0; move < most_moves; ++move) {
      const auto busiest =
          static_cast<int>(std::max_element(sent_.begin(), sent_.end()) - sent_.begin());
      const int64_t goal = std::ranges::max(received_);
      if (sent_[busiest] <= goal) return;
      const auto swap = best_swap(busiest, goal);
      if (!swap) return;
      reassign(swap->hot, busiest, swap->worker);
      reassign(swap->cold, swap->worker, busiest);
    }
  }

 private:
  struct Swap {
    Segment hot;   // segment of the busiest worker
    int worker;    // the other one
    Segment cold;  // segment of the other one
    double score;  // keys more that travel, per key that the busiest sends less
  };

  int64_t load(const Range& rows) const { return price_.of_rows(rows); }

  /// End of the last row of the document on the worker: it reads all keys before that.
  int64_t last_read(int64_t document, int worker) const {
    const auto reader = std::ranges::find(readers_[document], worker, &Holder::worker);
    return reader == readers_[document].end() ? 0 : reader->rows.end;
  }

  /// Workers but this one that read the row.
  int64_t readers(int64_t document, int64_t row, int worker) const {
    return std::ranges::count_if(readers_[document], [&](const Holder& reader) {
      return reader.worker != worker && reader.rows.end > row;
    });
  }

  /// Keys that travel more once the rows have another home.
  int64_t more_read(const Segment& moved, int from, int to) const {
    int64_t last_from = 0;  // without the rows that move
    int64_t last_to = 0;
    for (const Holder& holder : holders_[moved.document]) {
      if (holder.worker == to) last_to = std::max(last_to, holder.rows.end);
      if (holder.worker != from || moved.tokens == holder.rows) continue;
      const int64_t end =
          holder.rows.end == moved.tokens.end ? moved.tokens.begin : holder.rows.end;
      last_from = std::max(last_from, end);
    }
    // A worker reads from others the keys up to its last row, minus those that it holds.
    const int64_t before = last_read(moved.document, from) + last_to;
    return last_from + std::max(last_to, moved.tokens.end) - before;
  }

  void count_document(int64_t document, int64_t sign) {
    const auto& holders = holders_[document];
    auto& readers = readers_[document];
    readers.clear();
    for (const Holder& holder : holders) {
      const auto same = std::ranges::find(readers, holder.worker, &Holder::worker);
      if (same == readers.end()) {
        readers.push_back({holder.worker, {0, holder.rows.end}});
      } else {
        same->rows.end = std::max(same->rows.end, holder.rows.end);
      }
    }
    if (readers.size() < 2) return;
    for (const Holder& holder : holders) {
      for (const Holder& reader : readers) {
        if (reader.worker == holder.worker) continue;
        const int64_t keys = std::max<int64_t>(0, intersect(holder.rows, reader.rows).size());
        sent_[holder.worker] += sign * keys;
        received_[reader.worker] += sign * keys;
      }
    }
  }

  /// The segment of the worker of which most is read by others.
  std::optional<Segment> hottest(int worker) const {
    std::optional<Segment> best;
    int64_t most = 0;
    for (const Segment& segment : layout_.workers[worker]) {
      if (readers_[segment.document].size() == 1) continue;
      const int64_t keys =
          segment.tokens.size() * readers(segment.document, segment.tokens.begin, worker);
      if (keys <= most) continue;
      most = keys;
      best = segment;
    }
    return best;
  }

  /// Servers of the document, and those with the most room.
  std::vector<int> partners(int busiest, int64_t document, int64_t goal) const {
    std::vector<int> partners;
    for (int worker = 0; worker < layout_.num_workers(); ++worker) {
      if (worker != busiest && sent_[worker] < goal) partners.push_back(worker);
    }
    const auto order = [&](int a, int b) {
      const bool reads_a = last_read(document, a) > 0;
      const bool reads_b = last_read(document, b) > 0;
      return std::tuple(!reads_a, -room_[a], a) < std::tuple(!reads_b, -room_[b], b);
    };
    const size_t most = std::min<size_t>(partners.size(), 24);
    std::partial_sort(partners.begin(), partners.begin() + static_cast<std::ptrdiff_t>(most),
                      partners.end(), order);
    partners.resize(most);
    return partners;
  }

  std::optional<Swap> best_swap(int busiest, int64_t goal) const {
    const auto from = hottest(busiest);
    if (!from) return std::nullopt;
    std::optional<Swap> best;
    const Range& rows = from->tokens;
    const auto consider = [&](int64_t tokens, int other, const Segment& cold) {
      if (tokens == 0 || tokens > rows.size()) return;
      const Segment hot{from->document, {rows.begin, rows.begin + tokens}};
      const auto swap = priced(busiest, hot, goal, other, cold);
      if (swap && (!best || swap->score < best->score)) best = swap;
    };
    const int64_t count = readers(from->document, rows.begin, busiest);
    const int64_t wanted = round_up((sent_[busiest] - goal) / count + 1, kBlockTokens);
    for (const int other : partners(busiest, from->document, goal)) {
      for (const Segment& cold : layout_.workers[other]) {
        if (cold.document == from->document) continue;
        const Range& there = cold.tokens;
        if (there.size() < wanted / 8) continue;  // too many moves
        consider(round_down(there.size(), kBlockTokens), other, cold);
        consider(round_up(there.size(), kBlockTokens), other, cold);
        for (const int64_t tokens :
             {wanted, round_up(wanted / 2, kBlockTokens), round_up(wanted / 4, kBlockTokens)}) {
          if (tokens >= there.size()) continue;
          consider(tokens, other, {cold.document, {there.begin, there.begin + tokens}});
          const int64_t first = round_up(there.end - tokens, kBlockTokens);
          consider(tokens, other, {cold.document, {first, there.end}});
        }
      }
    }
    return best;
  }

  std::optional<Swap> priced(int busiest, const Segment& hot, int64_t goal, int other,
                             const Segment& cold) const {
    const int64_t grows = cold.tokens.size() - hot.tokens.size();
    if (!even(tokens_[busiest] + grows) || !even(tokens_[other] - grows)) return std::nullopt;
    const int64_t more_load = load(hot.tokens) - load(cold.tokens);
    if (more_load > 0 && more_load > room_[other]) return std::nullopt;
    if (more_load < 0 && -more_load > room_[busiest]) return std::nullopt;
    const int64_t count = readers(hot.document, hot.tokens.begin, busiest);
    const int64_t cold_count = readers(cold.document, cold.tokens.begin, other);
    const bool reads = last_read(hot.document, other) >= hot.tokens.end;
    const int64_t sent_there = sent_[other] + hot.tokens.size() * (count - (reads ? 1 : 0));
    const int64_t less = hot.tokens.size() * count - cold.tokens.size() * cold_count;
    const int64_t gain = std::min(less, sent_[busiest] - goal);
    if (gain * 16 < sent_[busiest] - goal || sent_there > std::max(goal, sent_[busiest] - gain))
      return std::nullopt;
    const int64_t keys = more_read(hot, busiest, other) + more_read(cold, other, busiest);
    return Swap{hot, other, cold, static_cast<double>(keys + 2000) / static_cast<double>(gain)};
  }

  bool even(int64_t tokens) const {
    const auto workers = static_cast<int64_t>(layout_.workers.size());
    return std::abs(tokens * workers - total_) < kBlockTokens * workers;
  }

  void reassign(const Segment& segment, int from, int to) {
    count_document(segment.document, -1);
    auto& source = layout_.workers[from];
    const auto it = std::find_if(source.begin(), source.end(), [&](const Segment& s) {
      return s.document == segment.document && s.tokens.contains(segment.tokens);
    });
    auto& holders = holders_[segment.document];
    const auto holder = std::find_if(holders.begin(), holders.end(), [&](const Holder& h) {
      return h.worker == from && h.rows == it->tokens;
    });
    if (it->tokens == segment.tokens) {
      source.erase(it);
      holders.erase(holder);
    } else if (it->tokens.begin == segment.tokens.begin) {
      it->tokens.begin = holder->rows.begin = segment.tokens.end;
    } else {
      it->tokens.end = holder->rows.end = segment.tokens.begin;
    }
    auto& target = layout_.workers[to];
    target.insert(std::lower_bound(target.begin(), target.end(), segment), segment);
    holders.push_back({to, segment.tokens});
    const int64_t moved = load(segment.tokens);
    room_[from] += moved;
    room_[to] -= moved;
    tokens_[from] -= segment.tokens.size();
    tokens_[to] += segment.tokens.size();
    count_document(segment.document, 1);
  }

  const TaskPrice& price_;
  Layout& layout_;
  int64_t total_ = 0;
  std::vector<std::vector<Holder>> holders_;  // [document]
  std::vector<std::vector<Holder>> readers_;  // [document] one a worker, up to its last row
  std::vector<int64_t> sent_;                 // [worker] keys
  std::vector<int64_t> received_;             // [worker] keys
  std::vector<int64_t> tokens_;               // [worker]
  std::vector<int64_t> room_;                 // [worker] load
};

}  // namespace

void spread_hot_rows(const PlanRequest& request, const TaskPrice& price,
                     const std::vector<int64_t>& shares, Layout& layout) {
  if (!request.shape.mask.sees_all_before() || layout.workers.empty()) return;
  Spreader(request, price, shares, layout).run();
}

}  // namespace distca
