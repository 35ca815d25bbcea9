#include <algorithm>
#include <numeric>

#include "distca/plan/baselines/baselines.h"
#include "distca/plan/layout_sequential.h"

namespace distca {

Layout exact_layout(const PlanRequest& request) {
  const int num_workers = request.cluster.num_workers;
  const int64_t total = request.nano_batch.num_tokens();
  Layout layout;
  layout.workers.resize(num_workers);
  int worker = 0;
  int64_t room = total / num_workers;
  for (const Document& document : request.nano_batch.documents) {
    Range rest{0, document.length};
    while (!rest.empty()) {
      while (room == 0) {
        ++worker;
        room = total * (worker + 1) / num_workers - total * worker / num_workers;
      }
      const int64_t tokens = std::min(rest.size(), room);
      room -= tokens;
      take_ends(document.id, tokens, /*block=*/1, rest, layout.workers[worker]);
    }
  }
  return layout;
}

namespace {

/// Rows of a document that one server computes: [head.begin, head.end) and, mirrored, the tail. A
/// document or chunk in one piece has head.end == tail.begin.
struct HeadAndTail {
  int64_t document;
  int64_t length;  // tokens of the document
  Range head;
  Range tail;
  int server;
  int64_t pairs;
};

int64_t rows_pairs(const Range& rows) {
  return (rows.end * (rows.end + 1) - rows.begin * (rows.begin + 1)) / 2;
}

class GreedyOriginal {
 public:
  GreedyOriginal(const PlanRequest& request, const Layout& layout)
      : tolerance_(static_cast<double>(request.options.tolerance_ppm.value()) * 1e-6),
        pair_elements_(static_cast<double>(request.shape.num_heads * request.shape.head_dim_qk)),
        key_elements_(static_cast<double>(request.shape.kv_token_bytes()) /
                      static_cast<double>(request.shape.element_bytes())) {
    std::vector<int64_t> load(layout.num_workers(), 0);
    for (int worker = 0; worker < layout.num_workers(); ++worker) {
      const auto& segments = layout.workers[worker];
      for (size_t i = 0; i < segments.size(); ++i) {
        const Document& document = request.nano_batch.documents[segments[i].document];
        Range head = segments[i].tokens;
        Range tail{head.end, head.end};
        if (i + 1 < segments.size() && segments[i + 1].document == document.id) {
          tail = segments[++i].tokens;
        } else {
          head.end = head.begin + ceil_div(head.size(), 2);
          tail.begin = head.end;
        }
        items_.push_back({document.id, document.length, head, tail, worker,
                          rows_pairs(head) + rows_pairs(tail)});
        load[worker] += items_.back().pairs;
      }
    }
    share_ = static_cast<double>(std::reduce(load.begin(), load.end())) /
             static_cast<double>(load.size());
    for (const int64_t pairs : load) surplus_.push_back(static_cast<double>(pairs) - share_);
  }

  std::vector<Task> run() {
    std::vector<int> receivers;
    for (int server = 0; server < static_cast<int>(surplus_.size()); ++server) {
      if (surplus_[server] < 0) receivers.push_back(server);
    }
    std::ranges::stable_sort(receivers, {}, [this](int server) { return surplus_[server]; });
    for (const int receiver : receivers) fill(receiver);

    std::vector<Task> tasks;
    const auto add = [&tasks](const HeadAndTail& item, const Range& q) {
      if (q.empty()) return;
      tasks.push_back({.document = item.document, .q = q, .kv = {0, q.end}, .server = item.server});
    };
    for (const HeadAndTail& item : items_) {
      if (item.head.end == item.tail.begin) {
        add(item, {item.head.begin, item.tail.end});
      } else {
        add(item, item.head);
        add(item, item.tail);
      }
    }
    return tasks;
  }

 private:
  struct Candidate {
    size_t item;
    double pairs;  // to move
  };

  void fill(int receiver) {
    double need = -surplus_[receiver];
    Candidate best{};
    while (need > tolerance_ * share_ && find(need, best)) {
      const int donor = items_[best.item].server;
      const auto moved = static_cast<double>(move(best, receiver));
      if (moved == 0) return;
      surplus_[donor] -= moved;
      surplus_[receiver] += moved;
      need -= moved;
    }
  }

  /// The item on a server above its share that moves the fewest elements per pair.
  bool find(double need, Candidate& best) const {
    double lowest = -1;
    for (size_t i = 0; i < items_.size(); ++i) {
      const HeadAndTail& item = items_[i];
      const double surplus = surplus_[item.server];
      if (surplus <= 0 || item.pairs <= 0) continue;
      const double pairs = std::min({need, static_cast<double>(item.pairs), surplus});
      const auto keys = static_cast<double>(item.length + 1);
      const double elements = pairs / keys * pair_elements_ + keys * key_elements_;
      const double per_pair = elements / pairs;
      if (lowest >= 0 && per_pair >= lowest) continue;
      lowest = per_pair;
      best = {i, pairs};
    }
    return lowest >= 0;
  }

  /// Returns the pairs moved: 0 when less than one pair of rows was wanted.
  int64_t move(const Candidate& candidate, int receiver) {
    HeadAndTail& item = items_[candidate.item];
    if (candidate.pairs >= static_cast<double>(item.pairs)) {
      item.server = receiver;
      return item.pairs;
    }
    const auto wanted =
        static_cast<int64_t>(candidate.pairs / static_cast<double>(item.length + 1));
    const int64_t rows = std::min({wanted, item.head.size(), item.tail.size()});
    if (rows <= 0) return 0;
    HeadAndTail moved = item;
    moved.server = receiver;
    moved.head.begin = item.head.end = item.head.end - rows;
    moved.tail.end = item.tail.begin = item.tail.begin + rows;
    moved.pairs = rows_pairs(moved.head) + rows_pairs(moved.tail);
    item.pairs -= moved.pairs;
    items_.push_back(moved);
    return moved.pairs;
  }

  const double tolerance_;
  const double pair_elements_;      // Q of one pair of rows
  const double key_elements_;       // K and V of one token
  std::vector<HeadAndTail> items_;  // in the order in which they came to be
  double share_ = 0;                // pairs that every server should have
  std::vector<double> surplus_;     // [server] pairs above its share
};

}  // namespace

std::vector<Task> schedule_original(const PlanRequest& request, const Layout& layout) {
  return GreedyOriginal(request, layout).run();
}

}  // namespace distca
