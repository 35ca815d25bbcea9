// What schedules and runtime must agree on: sizes of messages and the sets of tasks.

#include <algorithm>
#include <cstdlib>

#include "distca/program/program_builder.h"
#include "distca/program/schedule.h"

namespace distca {
namespace {

bool is_home(const ServerTask& task) {
  return task.q.block == 0 && std::all_of(task.kv.begin(), task.kv.end(),
                                          [](const BlockRows& rows) { return rows.block == 0; });
}

}  // namespace

int64_t qkv_message_bytes(const PeerTransfer& transfer, const AttentionShape& shape,
                          const ExchangeTypes& types) {
  return gradient_message_bytes(transfer, shape, types.compute);
}

int64_t o_message_bytes(const PeerTransfer& transfer, const AttentionShape& shape,
                        const ExchangeTypes& types) {
  return transfer.q_tokens * shape.num_heads *
         (shape.head_dim_v * element_bytes(types.compute) + element_bytes(types.accumulator));
}

int64_t d_o_message_bytes(const PeerTransfer& transfer, const AttentionShape& shape,
                          const ExchangeTypes& types) {
  return transfer.q_tokens * shape.num_heads *
         (shape.head_dim_v * element_bytes(types.compute) + 2 * element_bytes(types.accumulator));
}

int64_t gradient_message_bytes(const PeerTransfer& transfer, const AttentionShape& shape,
                               ScalarType type) {
  return (transfer.q_tokens * shape.num_heads * shape.head_dim_qk +
          transfer.kv_tokens * shape.num_kv_heads * (shape.head_dim_qk + shape.head_dim_v)) *
         element_bytes(type);
}

int64_t causal_pairs(const ServerTask& task, int64_t window_left) {
  const Range q{task.q.position, task.q.position + task.q.tokens};
  int64_t pairs = 0;
  for (const BlockRows& rows : task.kv) {
    pairs += attention_pairs(q, {rows.position, rows.position + rows.tokens}, MaskType::kCausal,
                             window_left);
  }
  return pairs;
}

std::vector<int32_t> task_set(const RankExchange& exchange, TaskSet set) {
  std::vector<int32_t> all, home, away;
  int64_t home_pairs = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(exchange.tasks.size()); ++i) {
    const ServerTask& task = exchange.tasks[i];
    all.push_back(i);
    (is_home(task) ? home : away).push_back(i);
    if (is_home(task)) home_pairs += causal_pairs(task, -1);
  }
  if (set == TaskSet::kAll) return all;
  if (set == TaskSet::kAway) return away;
  // The first half ends at the task that brings its pairs nearest to a half of all.
  size_t first = 0;
  int64_t pairs = 0, distance = home_pairs;
  for (size_t i = 0; i < home.size(); ++i) {
    pairs += causal_pairs(exchange.tasks[home[i]], -1);
    if (std::abs(home_pairs - 2 * pairs) >= distance) break;
    distance = std::abs(home_pairs - 2 * pairs);
    first = i + 1;
  }
  // One task alone runs while Q, K, V arrive: they are most of the bytes.
  if (first == 0 && !home.empty()) first = 1;
  const auto middle = home.begin() + static_cast<int64_t>(first);
  return set == TaskSet::kHomeFirst ? std::vector<int32_t>(home.begin(), middle)
                                    : std::vector<int32_t>(middle, home.end());
}

}  // namespace distca
