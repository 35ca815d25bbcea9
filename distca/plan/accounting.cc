#include "distca/plan/accounting.h"

#include <algorithm>
#include <tuple>

#include "distca/plan/homes.h"

namespace distca {
namespace {

/// Bytes of a token that a server fetches.
struct TokenBytes {
  int64_t there, back, kept;
};

/// Books the queries or the keys of all tasks at both ends, each token once per server.
void fetch(const Homes& homes, std::vector<Task>& tasks, Range Task::*side, const TokenBytes& bytes,
           std::vector<ServerLoad>& loads) {
  std::ranges::sort(tasks, {}, [side](const Task& task) {
    return std::tie(task.server, task.document, task.*side);
  });
  int64_t booked = 0;  // tokens of (server, document) below this are booked
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks[i];
    if (i == 0 || tasks[i - 1].server != task.server || tasks[i - 1].document != task.document) {
      booked = 0;
    }
    const Range fresh{std::max(booked, (task.*side).begin), (task.*side).end};
    homes.for_each_part(task.document, fresh, [&](const HomeSegment& home, const Range& part) {
      if (home.worker == task.server) return;
      ServerLoad& from = loads[home.worker];
      ServerLoad& to = loads[task.server];
      from.send_bytes += part.size() * bytes.there;
      to.receive_bytes += part.size() * bytes.there;
      to.o_send_bytes += part.size() * bytes.back;
      from.o_receive_bytes += part.size() * bytes.back;
      to.memory_bytes += part.size() * bytes.kept;
    });
    booked = std::max(booked, fresh.end);
  }
}

}  // namespace

std::vector<ServerLoad> account(const Plan& plan, const AttentionProfile* profile) {
  const AttentionShape& shape = plan.shape;
  const MemoryPrice& memory = plan.cluster.memory;
  std::vector<ServerLoad> loads(std::max(plan.cluster.num_workers, plan.cluster.num_servers()));
  for (int worker = 0; worker < plan.layout.num_workers(); ++worker)
    loads[worker].memory_bytes = plan.layout.num_tokens(worker) * memory.token_bytes;
  const TaskPrice price(shape, profile);
  for (const Task& task : plan.tasks) {
    ServerLoad& load = loads[task.server];
    load.pairs += shape.mask.of_task(task.mask).pairs(task.q, task.kv);
    if (profile != nullptr) load.time_ns += price(task.q, task.kv, task.mask);
  }
  const Homes homes(plan.layout, plan.nano_batch.documents.size());
  std::vector<Task> tasks = plan.tasks;
  fetch(homes, tasks, &Task::kv, {shape.kv_token_bytes(), 0, memory.kept_key_bytes}, loads);
  fetch(homes, tasks, &Task::q,
        {shape.q_token_bytes(), shape.o_token_bytes(), memory.kept_query_bytes}, loads);
  return loads;
}

int64_t load_of(const NanoBatch& nano_batch, const TaskPrice& price) {
  int64_t load = 0;
  for (const Document& document : nano_batch.documents) load += price.of_rows({0, document.length});
  return load;
}

}  // namespace distca
