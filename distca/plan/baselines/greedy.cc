#include "distca/plan/baselines/baselines.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "distca/plan/bounds.h"
#include "distca/plan/shard.h"

namespace distca {
namespace {

/// Whatever the window: pairs are those of all keys up to the query.
AttentionShape without_window(AttentionShape shape) {
  shape.mask = Mask{};
  return shape;
}

/// Queries of one segment that one server computes, with all their keys.
struct Item {
  int64_t document;
  Range q;
  int home;
  int64_t segment_end;  // names the segment within its document: items of two segments never merge
};

struct Candidate {
  int donor;
  size_t item;  // in items_[donor]
  Range q;
  int64_t pairs;
  int64_t bytes;
};

/// More pairs per byte? Bytes can be 0 (a server taking back its own rows, keys still there).
bool better(const Candidate& a, const Candidate& b) {
  return static_cast<double>(a.pairs) * static_cast<double>(b.bytes) >
         static_cast<double>(b.pairs) * static_cast<double>(a.bytes);
}

class Greedy {
 public:
  Greedy(const PlanRequest& request, const Layout& layout)
      : capacity_(request.cluster.capacity),
        pairs_(without_window(request.shape)),
        shards_(without_window(request.shape), pairs_),
        moved_token_bytes_(request.shape.q_token_bytes() + request.shape.o_token_bytes()),
        key_token_bytes_(request.shape.kv_token_bytes()),
        items_(capacity_.size()),
        load_(capacity_.size(), 0),
        keys_held_(request.nano_batch.documents.size(), 0) {
    int64_t total = 0;
    for (int worker = 0; worker < layout.num_workers(); ++worker) {
      for (const Segment& segment : layout.workers[worker]) {
        items_[worker].push_back({segment.document, segment.tokens, worker, segment.tokens.end});
        load_[worker] += pairs_.of_rows(segment.tokens);
      }
      total += load_[worker];
    }
    bound_ = load_bounds(request, total);
    for (size_t server = 0; server < capacity_.size(); ++server) {
      if (load_[server] > bound_[server]) donors_.push_back(static_cast<int>(server));
    }
  }

  std::vector<Task> run() {
    std::vector<int> receivers;
    for (int server = 0; server < static_cast<int>(capacity_.size()); ++server) {
      if (room(server) > 0) receivers.push_back(server);
    }
    std::ranges::stable_sort(receivers, {}, [this](int server) { return excess(server); });
    for (const int receiver : receivers) fill(receiver);
    while (shed_one_block()) {
    }

    std::vector<Task> tasks;
    for (int server = 0; server < static_cast<int>(items_.size()); ++server) {
      auto& items = items_[server];
      std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
        return std::tie(a.document, a.q) < std::tie(b.document, b.q);
      });
      for (size_t i = 0; i < items.size(); ++i) {
        const Item& item = items[i];
        const bool continues = i > 0 && items[i - 1].document == item.document &&
                               items[i - 1].segment_end == item.segment_end &&
                               items[i - 1].q.end == item.q.begin;
        if (continues) {
          tasks.back().q.end = tasks.back().kv.end = item.q.end;
        } else {
          tasks.push_back(
              {.document = item.document, .q = item.q, .kv = {0, item.q.end}, .server = server});
        }
      }
    }
    return tasks;
  }

 private:
  void fill(int receiver) {
    note_keys(items_[receiver]);
    while (!donors_.empty() && room(receiver) > 0) {
      std::optional<Candidate> best;
      for (const int donor : donors_) {
        for (size_t item = 0; item < items_[donor].size(); ++item) {
          const auto candidate = cheapest_candidate(donor, item, receiver);
          if (candidate && (!best || better(*candidate, *best))) best = candidate;
        }
      }
      if (!best) break;
      move(*best, receiver);
      note_keys({items_[receiver].back()});
      if (excess(best->donor) <= 0) std::erase(donors_, best->donor);
    }
    forget_keys(items_[receiver]);
  }

  /// Moves one block from the most loaded server to the least loaded one, the block that leaves the
  /// higher of the two lowest. False when the bound is met or no block helps.
  bool shed_one_block() {
    int donor = -1;
    int receiver = -1;
    for (int server = 0; server < static_cast<int>(capacity_.size()); ++server) {
      const double here = ratio(server, load_[server]);
      if (excess(server) > 0 && (donor < 0 || here > ratio(donor, load_[donor]))) donor = server;
      if (capacity_[server] > 0 && (receiver < 0 || here < ratio(receiver, load_[receiver]))) {
        receiver = server;
      }
    }
    if (donor < 0 || donor == receiver) return false;

    std::optional<Candidate> best;
    double lowest = ratio(donor, load_[donor]);
    note_keys(items_[receiver]);
    for (size_t item = 0; item < items_[donor].size(); ++item) {
      const Range& q = items_[donor][item].q;
      for (const Range& block : end_blocks(q)) {
        const Candidate candidate = priced(donor, item, block, receiver);
        const double after = std::max(ratio(donor, load_[donor] - candidate.pairs),
                                      ratio(receiver, load_[receiver] + candidate.pairs));
        if (after < lowest || (best && after == lowest && candidate.bytes < best->bytes)) {
          best = candidate;
          lowest = after;
        }
      }
    }
    forget_keys(items_[receiver]);
    if (best) move(*best, receiver);
    return best.has_value();
  }

  std::optional<Candidate> cheapest_candidate(int donor, size_t item, int receiver) const {
    const Item& from = items_[donor][item];
    const Range& q = from.q;
    const int64_t pairs = pairs_.of_rows(q);
    const LoadWish wish{std::min(excess(donor), room(receiver)), room(receiver)};
    if (pairs <= wish.wanted) return priced(donor, item, q, receiver);

    std::optional<Candidate> best;
    const auto consider = [&](int64_t end) {
      const Range shard = shards_.ending_at(end, q, wish);
      if (shard.empty()) return;
      const Candidate candidate = priced(donor, item, shard, receiver);
      if (!best || better(candidate, *best)) best = candidate;
    };
    consider(shards_.cheapest_end(q, pairs, wish.wanted));
    // A second shape: the highest one that needs no keys beyond those the receiver reads anyway.
    const int64_t held = keys_held_[from.document];
    if (held >= block_end(q.begin)) {
      consider(ShardRows::allowed_end(q, std::min(held, q.end)));
    }
    return best;
  }

  Candidate priced(int donor, size_t item, const Range& q, int receiver) const {
    const Item& from = items_[donor][item];
    const int64_t new_keys = std::max<int64_t>(0, q.end - keys_held_[from.document]);
    const int64_t moved = from.home == receiver ? 0 : q.size() * moved_token_bytes_;
    return {donor, item, q, pairs_.of_rows(q), moved + new_keys * key_token_bytes_};
  }

  void move(const Candidate& candidate, int receiver) {
    auto& items = items_[candidate.donor];
    const Item from = items[candidate.item];
    items.erase(items.begin() + static_cast<std::ptrdiff_t>(candidate.item));
    const auto with_rows = [&from](const Range& q) {
      Item item = from;
      item.q = q;
      return item;
    };
    if (candidate.q.end < from.q.end) items.push_back(with_rows({candidate.q.end, from.q.end}));
    if (from.q.begin < candidate.q.begin)
      items.push_back(with_rows({from.q.begin, candidate.q.begin}));
    items_[receiver].push_back(with_rows(candidate.q));
    load_[candidate.donor] -= candidate.pairs;
    load_[receiver] += candidate.pairs;
  }

  void note_keys(const std::vector<Item>& items) {
    for (const Item& item : items) {
      keys_held_[item.document] = std::max(keys_held_[item.document], item.q.end);
    }
  }

  void forget_keys(const std::vector<Item>& items) {
    for (const Item& item : items) keys_held_[item.document] = 0;
  }

  int64_t excess(int server) const { return load_[server] - bound_[server]; }
  int64_t room(int server) const { return -excess(server); }
  /// Load per capacity; a server of capacity 0 should end with none, so its pairs weigh a million.
  double ratio(int server, int64_t load) const {
    const auto pairs = static_cast<double>(load);
    return capacity_[server] > 0 ? pairs / static_cast<double>(capacity_[server]) : pairs * 1e6;
  }

  const std::vector<int64_t>& capacity_;
  const TaskPrice pairs_;
  const ShardRows shards_;
  const int64_t moved_token_bytes_;  // Q there, O back
  const int64_t key_token_bytes_;
  std::vector<std::vector<Item>> items_;  // [server]
  std::vector<int64_t> load_;             // [server] pairs
  std::vector<int64_t> bound_;            // [server] pairs
  std::vector<int> donors_;               // servers above their bound
  std::vector<int64_t> keys_held_;        // [document] keys [0, x) are read by the receiver at hand
};

}  // namespace

std::vector<Task> schedule_greedy(const PlanRequest& request, const Layout& layout) {
  return Greedy(request, layout).run();
}

}  // namespace distca
