#include "distca/plan/accounting.h"

#include <algorithm>
#include <tuple>

namespace distca {
namespace {

struct Home {
  int64_t document;
  Range tokens;
  int worker;
};

class Accounting {
 public:
  Accounting(const AttentionShape& shape, const Cluster& cluster, const Layout& layout)
      : shape_(shape), load_(std::max(cluster.num_workers, cluster.num_servers())) {
    for (int worker = 0; worker < layout.num_workers(); ++worker) {
      for (const Segment& segment : layout.workers[worker]) {
        homes_.push_back({segment.document, segment.tokens, worker});
      }
    }
    std::sort(homes_.begin(), homes_.end(), [](const Home& a, const Home& b) {
      return std::tie(a.document, a.tokens) < std::tie(b.document, b.tokens);
    });
  }

  std::vector<ServerLoad> count(std::vector<Task> tasks) {
    for (const Task& task : tasks) {
      load_[task.server].pairs += attention_pairs(task.q, task.kv, task.mask);
    }
    fetch(tasks, &Task::kv, shape_.kv_token_bytes(), 0);
    fetch(tasks, &Task::q, shape_.q_token_bytes(), shape_.o_token_bytes());
    return std::move(load_);
  }

 private:
  /// Books the queries or the keys of all tasks, each token once per server.
  void fetch(std::vector<Task>& tasks, Range Task::*side, int64_t token_bytes, int64_t back_bytes) {
    std::sort(tasks.begin(), tasks.end(), [side](const Task& a, const Task& b) {
      return std::tie(a.server, a.document, a.*side) < std::tie(b.server, b.document, b.*side);
    });
    int64_t booked = 0;  // tokens of (server, document) below this are booked
    for (size_t i = 0; i < tasks.size(); ++i) {
      const Task& task = tasks[i];
      if (i == 0 || tasks[i - 1].server != task.server || tasks[i - 1].document != task.document) {
        booked = 0;
      }
      const Range& tokens = task.*side;
      const Range fresh{std::max(booked, tokens.begin), tokens.end};
      load_[task.server].o_send_bytes +=
          travel(task.document, fresh, task.server, token_bytes) * back_bytes;
      booked = std::max(booked, tokens.end);
    }
  }

  /// Books the tokens that `server` has to fetch, at both ends, and returns how many they are.
  int64_t travel(int64_t document, const Range& tokens, int server, int64_t token_bytes) {
    auto home = std::partition_point(homes_.begin(), homes_.end(), [&](const Home& h) {
      return std::tie(h.document, h.tokens.end) <= std::tie(document, tokens.begin);
    });
    int64_t travelled = 0;
    for (; home != homes_.end() && home->document == document && home->tokens.begin < tokens.end;
         ++home) {
      const Range part = intersect(home->tokens, tokens);
      if (home->worker == server || part.empty()) continue;
      travelled += part.size();
      load_[home->worker].send_bytes += part.size() * token_bytes;
      load_[server].receive_bytes += part.size() * token_bytes;
    }
    return travelled;
  }

  const AttentionShape& shape_;
  std::vector<Home> homes_;
  std::vector<ServerLoad> load_;
};

}  // namespace

std::vector<ServerLoad> account(const AttentionShape& shape, const Cluster& cluster,
                                const Layout& layout, const std::vector<Task>& tasks) {
  return Accounting(shape, cluster, layout).count(tasks);
}

}  // namespace distca
