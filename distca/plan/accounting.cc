#include "distca/plan/accounting.h"

#include <algorithm>
#include <tuple>

#include "distca/plan/homes.h"

namespace distca {
namespace {

class Accounting {
 public:
  explicit Accounting(const Plan& plan)
      : plan_(plan),
        homes_(plan.layout, plan.nano_batch.documents.size()),
        load_(std::max(plan.cluster.num_workers, plan.cluster.num_servers())) {
    for (int worker = 0; worker < plan.layout.num_workers(); ++worker) {
      load_[worker].memory_bytes = plan.layout.num_tokens(worker) * plan.cluster.memory.token_bytes;
    }
  }

  std::vector<ServerLoad> count(const AttentionProfile* profile) {
    std::vector<Task> tasks = plan_.tasks;
    const AttentionShape& shape = plan_.shape;
    const TaskPrice price(shape, profile);
    for (const Task& task : tasks) {
      ServerLoad& load = load_[task.server];
      load.pairs += shape.mask.of_task(task.mask).pairs(task.q, task.kv);
      if (profile != nullptr) load.time_ns += price(task.q, task.kv, task.mask);
    }
    fetch(tasks, &Task::kv, {shape.kv_token_bytes(), 0, plan_.cluster.memory.kept_key_bytes});
    fetch(tasks, &Task::q,
          {shape.q_token_bytes(), shape.o_token_bytes(), plan_.cluster.memory.kept_query_bytes});
    return std::move(load_);
  }

 private:
  struct TokenBytes {
    int64_t there, back, kept;
  };

  /// Books the queries or the keys of all tasks, each token once per server.
  void fetch(std::vector<Task>& tasks, Range Task::*side, const TokenBytes& bytes) {
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
      travel(task.document, fresh, task.server, bytes);
      booked = std::max(booked, tokens.end);
    }
  }

  /// Books the tokens that `server` has to fetch, at both ends.
  void travel(int64_t document, const Range& tokens, int server, const TokenBytes& bytes) {
    homes_.for_each_part(document, tokens, [&](const HomeSegment& home, const Range& part) {
      if (home.worker == server) return;
      load_[home.worker].send_bytes += part.size() * bytes.there;
      load_[server].receive_bytes += part.size() * bytes.there;
      load_[server].o_send_bytes += part.size() * bytes.back;
      load_[home.worker].o_receive_bytes += part.size() * bytes.back;
      load_[server].memory_bytes += part.size() * bytes.kept;
    });
  }

  const Plan& plan_;
  const Homes homes_;
  std::vector<ServerLoad> load_;
};

}  // namespace

std::vector<ServerLoad> account(const Plan& plan, const AttentionProfile* profile) {
  return Accounting(plan).count(profile);
}

int64_t load_of(const NanoBatch& nano_batch, const TaskPrice& price) {
  int64_t load = 0;
  for (const Document& document : nano_batch.documents) load += price.of_rows({0, document.length});
  return load;
}

}  // namespace distca
