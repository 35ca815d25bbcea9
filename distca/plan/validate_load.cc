#include "distca/plan/validate_parts.h"

#include <algorithm>
#include <tuple>

#include "distca/cost/task_price.h"

namespace distca {
namespace {

/// Queries or keys of one rank, in tokens.
struct Travelling {
  int64_t in = 0;   // each once, however many tasks read it
  int64_t out = 0;  // once for each server that reads it
};

/// Counts what the tasks of one plan make each rank compute, hold, send and receive. Tokens that
/// travel are counted by a sweep over each document: how many servers read a token that is not
/// theirs.
class Recount {
 public:
  Recount(const Plan& plan, const AttentionProfile* profile)
      : plan_(plan),
        profile_(profile),
        price_(plan.shape, profile),
        load_(plan.load.size()),
        queries_(plan.load.size()),
        keys_(plan.load.size()) {}

  std::vector<ServerLoad> count(const ByDocument<Held>& held,
                                const ByDocument<const Task*>& tasks) {
    for (size_t document = 0; document < held.num_documents(); ++document) {
      count_document(held[document], tasks[document]);
    }
    const AttentionShape& shape = plan_.shape;
    const MemoryPrice& memory = plan_.cluster.memory;
    for (size_t rank = 0; rank < load_.size(); ++rank) {
      const Travelling& q = queries_[rank];
      const Travelling& kv = keys_[rank];
      ServerLoad& load = load_[rank];
      load.send_bytes = q.out * shape.q_token_bytes() + kv.out * shape.kv_token_bytes();
      load.receive_bytes = q.in * shape.q_token_bytes() + kv.in * shape.kv_token_bytes();
      load.o_send_bytes = q.in * shape.o_token_bytes();
      load.o_receive_bytes = q.out * shape.o_token_bytes();
      load.memory_bytes += q.in * memory.kept_query_bytes + kv.in * memory.kept_key_bytes;
    }
    return std::move(load_);
  }

 private:
  struct Edge {
    int64_t position;
    int64_t readers;  // that begin here, less those that end
  };

  void count_document(std::span<const Held> held, std::span<const Task* const> tasks) {
    for (const Held& segment : held) {
      load_[segment.worker].memory_bytes +=
          segment.tokens.size() * plan_.cluster.memory.token_bytes;
    }
    for (const Task* task : tasks) {
      load_[task->server].pairs += pairs_of(*task);
      if (profile_ != nullptr) {
        load_[task->server].time_ns += price_(task->q, task->kv, task->mask);
      }
    }
    const auto at_home = [&](const Task* task) { return task->server == held[0].worker; };
    if (held.size() == 1 && std::ranges::all_of(tasks, at_home)) return;

    by_worker_.assign(held.begin(), held.end());
    std::sort(by_worker_.begin(), by_worker_.end(), [](const Held& a, const Held& b) {
      return std::tie(a.worker, a.tokens) < std::tie(b.worker, b.tokens);
    });
    count_side(held, tasks, &Task::q, queries_);
    count_side(held, tasks, &Task::kv, keys_);
  }

  void count_side(std::span<const Held> held, std::span<const Task* const> tasks, Range Task::*side,
                  std::vector<Travelling>& travelling) {
    edges_.clear();
    auto own = by_worker_.begin();
    for (size_t begin = 0, end = 0; begin < tasks.size(); begin = end) {
      const int server = tasks[begin]->server;
      ranges_.clear();
      for (; end < tasks.size() && tasks[end]->server == server; ++end) {
        ranges_.push_back(tasks[end]->*side);
      }
      while (own != by_worker_.end() && own->worker < server) ++own;
      auto own_end = own;
      while (own_end != by_worker_.end() && own_end->worker == server) ++own_end;
      read({own, own_end}, travelling[server].in);
    }
    std::ranges::sort(edges_, {}, &Edge::position);
    int64_t readers = 0;
    auto home = held.begin();
    for (size_t i = 0; i + 1 < edges_.size(); ++i) {
      readers += edges_[i].readers;
      Range rest{edges_[i].position, edges_[i + 1].position};
      while (!rest.empty()) {
        while (home->tokens.end <= rest.begin) ++home;
        const int64_t end = std::min(rest.end, home->tokens.end);
        travelling[home->worker].out += readers * (end - rest.begin);
        rest.begin = end;
      }
    }
  }

  /// One server reads ranges_ of a document of which it holds `own`.
  void read(std::span<const Held> own, int64_t& tokens_in) {
    std::sort(ranges_.begin(), ranges_.end());
    int64_t read = 0;  // tokens below this are counted
    auto next = own.begin();
    for (const Range& range : ranges_) {
      const Range fresh{std::max(range.begin, read), range.end};
      if (fresh.empty()) continue;
      read = fresh.end;
      begins_and_ends(fresh, 1, tokens_in);
      while (next != own.end() && next->tokens.end <= fresh.begin) ++next;
      for (auto segment = next; segment != own.end() && segment->tokens.begin < fresh.end;
           ++segment) {
        begins_and_ends({std::max(fresh.begin, segment->tokens.begin),
                         std::min(fresh.end, segment->tokens.end)},
                        -1, tokens_in);
      }
    }
  }
  void begins_and_ends(const Range& tokens, int64_t readers, int64_t& tokens_in) {
    edges_.push_back({tokens.begin, readers});
    edges_.push_back({tokens.end, -readers});
    tokens_in += readers * tokens.size();
  }

  int64_t pairs_of(const Task& task) const {
    const int64_t rows = task.q.end - task.q.begin;
    if (task.mask == MaskKind::kFull) return rows * (task.kv.end - task.kv.begin);
    // Pairs of keys from `key` on that lie at least `back` before their query, by the triangle's
    // size.
    const auto from = [&task](int64_t key, int64_t back) {
      const auto triangle = [](int64_t n) { return n > 0 ? n * (n + 1) / 2 : 0; };
      return triangle(task.q.end - back - key) - triangle(task.q.begin - back - key);
    };
    const auto pairs = [&](int64_t back) {
      return from(task.kv.begin, back) - from(task.kv.end, back);
    };
    const int64_t window = plan_.shape.mask.window_left;
    return window < 0 || window >= task.q.end ? pairs(0) : pairs(0) - pairs(window + 1);
  }

  const Plan& plan_;
  const AttentionProfile* profile_;
  const TaskPrice price_;
  std::vector<ServerLoad> load_;
  std::vector<Travelling> queries_, keys_;  // [rank]
  // Lists of the document at hand. They are members to keep their memory.
  std::vector<Held> by_worker_;
  std::vector<Range> ranges_;
  std::vector<Edge> edges_;
};

void check_claims(const Plan& plan, const ValidateOptions& options,
                  const std::vector<ServerLoad>& found, Violations& violations) {
  const bool knows_time = options.profile != nullptr || !plan.options.by_time();
  for (size_t rank = 0; rank < found.size(); ++rank) {
    const auto compare = [&](const char* what, int64_t ServerLoad::*figure) {
      if (plan.load[rank].*figure != found[rank].*figure) {
        violations.report("rank {}: {} {} claimed, {} found", rank, what, plan.load[rank].*figure,
                          found[rank].*figure);
      }
    };
    compare("pairs", &ServerLoad::pairs);
    if (knows_time) compare("time_ns", &ServerLoad::time_ns);
    compare("send_bytes", &ServerLoad::send_bytes);
    compare("receive_bytes", &ServerLoad::receive_bytes);
    compare("o_send_bytes", &ServerLoad::o_send_bytes);
    compare("o_receive_bytes", &ServerLoad::o_receive_bytes);
    compare("memory_bytes", &ServerLoad::memory_bytes);
  }
}

void check_caps(const Cluster& cluster, const std::vector<ServerLoad>& found,
                Violations& violations) {
  const auto check = [&](const char* name, int64_t cap, const char* does,
                         int64_t ServerLoad::*figure) {
    if (cap <= 0) return;
    for (size_t rank = 0; rank < found.size(); ++rank) {
      if (found[rank].*figure > cap) {
        violations.report("rank {} {} {} bytes, {} is {}", rank, does, found[rank].*figure, name,
                          cap);
      }
    }
  };
  check("max_send_bytes", cluster.max_send_bytes, "sends", &ServerLoad::send_bytes);
  check("max_receive_bytes", cluster.max_receive_bytes, "receives", &ServerLoad::receive_bytes);
  check("max_memory_bytes", cluster.max_memory_bytes, "holds", &ServerLoad::memory_bytes);
}

void check_capacities(const Plan& plan, const std::vector<ServerLoad>& found,
                      Violations& violations) {
  for (size_t server = 0; server < plan.cluster.capacity.size(); ++server) {
    if (plan.cluster.capacity[server] > 0 || found[server].pairs == 0) continue;
    violations.report("server {} has capacity 0 and computes {} pairs", server,
                      found[server].pairs);
  }
}

}  // namespace

void check_load(const Plan& plan, const ValidateOptions& options, const ByDocument<Held>& held,
                const ByDocument<const Task*>& tasks, Violations& violations) {
  if (options.profile != nullptr && plan.options.price != profile_name(*options.profile)) {
    violations.report("the plan is priced by '{}', not by '{}'", plan.options.price,
                      profile_name(*options.profile));
    return;
  }
  const std::vector<ServerLoad> found = Recount(plan, options.profile).count(held, tasks);
  check_claims(plan, options, found, violations);
  check_caps(plan.cluster, found, violations);
  if (options.capacities) check_capacities(plan, found, violations);
}

}  // namespace distca
