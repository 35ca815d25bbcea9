#include "distca/plan/attention_exchange.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/integers.h"

namespace distca {

int64_t pairs_of(const ServerTask& task, const Range& queries, const Mask& mask) {
  int64_t pairs = 0;
  for (const BufferRows& keys : task.kv) pairs += mask.pairs(queries, keys.positions());
  return pairs;
}

namespace {

/// How many tasks at home are about half of their pairs.
size_t first_half(const std::vector<ServerTask>& tasks, const std::vector<int32_t>& home) {
  const auto pairs_at = [&](int32_t task) {
    return pairs_of(tasks[task], tasks[task].q.positions(), Mask{});
  };
  int64_t all = 0;
  for (const int32_t task : home) all += pairs_at(task);
  // The half ends at the task that brings its pairs nearest to a half of all.
  size_t first = 0;
  int64_t pairs = 0, distance = all;
  for (size_t i = 0; i < home.size(); ++i) {
    pairs += pairs_at(home[i]);
    if (std::abs(all - 2 * pairs) >= distance) break;
    distance = std::abs(all - 2 * pairs);
    first = i + 1;
  }
  // One task alone runs while Q, K, V arrive: they are most of the bytes.
  return first == 0 && !home.empty() ? 1 : first;
}

void divide_tasks(AttentionExchange& exchange) {
  const std::vector<ServerTask>& tasks = exchange.rows.tasks;
  auto& [all, home_first, away, home_rest] = exchange.tasks;
  std::vector<int32_t> home;
  for (int32_t i = 0; i < static_cast<int32_t>(tasks.size()); ++i) {
    all.push_back(i);
    (is_home(tasks[i]) ? home : away).push_back(i);
  }
  const auto middle = home.begin() + static_cast<int64_t>(first_half(tasks, home));
  home_first.assign(home.begin(), middle);
  home_rest.assign(middle, home.end());
  for (const TaskSet set : {TaskSet::kHomeFirst, TaskSet::kAway, TaskSet::kHomeRest}) {
    int64_t& pairs = exchange.pairs[static_cast<size_t>(set)];
    for (const int32_t task : exchange.tasks_of(set)) {
      pairs += pairs_of(tasks[task], tasks[task].q.positions(), exchange.shape.mask);
    }
    exchange.pairs[static_cast<size_t>(TaskSet::kAll)] += pairs;
  }
}

}  // namespace

ExchangeTypes exchange_types(ScalarType compute, bool wide_gradients) {
  const ScalarType accumulator =
      compute == ScalarType::kFloat64 ? ScalarType::kFloat64 : ScalarType::kFloat32;
  return {.compute = compute,
          .accumulator = accumulator,
          .gradient = wide_gradients ? accumulator : compute};
}

std::array<MessagePart, 3> message_parts(Content content, const PeerTransfer& transfer,
                                         const AttentionShape& shape, const ExchangeTypes& types) {
  if (content == Content::kO || content == Content::kDO) {
    const MessagePart o{transfer.q_tokens, shape.num_heads, shape.head_dim_v, types.compute};
    const MessagePart number{transfer.q_tokens, shape.num_heads, 1, types.accumulator};
    return {o, number, content == Content::kDO ? number : MessagePart{}};
  }
  const ScalarType type = content == Content::kQkv        ? types.compute
                          : content == Content::kGradient ? types.gradient
                                                          : types.accumulator;
  return {{{transfer.q_tokens, shape.num_heads, shape.head_dim_qk, type},
           {transfer.kv_tokens, shape.num_kv_heads, shape.head_dim_qk, type},
           {transfer.kv_tokens, shape.num_kv_heads, shape.head_dim_v, type}}};
}

int64_t message_bytes(Content content, const PeerTransfer& transfer, const AttentionShape& shape,
                      const ExchangeTypes& types) {
  int64_t bytes = 0;
  for (const MessagePart& part : message_parts(content, transfer, shape, types)) {
    bytes += part.bytes();
  }
  return bytes;
}

void MessageList::add(int peer, int64_t message_bytes) {
  add_at(peer, buffer_bytes, message_bytes);
  buffer_bytes = round_up(buffer_bytes, kMessageAlignment);
}

void MessageList::add_at(int peer, int64_t offset, int64_t message_bytes) {
  if (message_bytes == 0) return;
  messages.push_back({.peer = peer, .offset = offset, .bytes = message_bytes});
  buffer_bytes = std::max(buffer_bytes, offset + message_bytes);
  bytes += message_bytes;
}

const PeerMessage* MessageList::with(int peer) const {
  const auto found = std::ranges::lower_bound(messages, peer, {}, &PeerMessage::peer);
  return found == messages.end() || found->peer != peer ? nullptr : &*found;
}

AttentionExchange make_attention_exchange(RankExchange rows, const AttentionShape& shape,
                                          const ExchangeTypes& types) {
  AttentionExchange exchange{.rows = std::move(rows), .shape = shape, .types = types};
  for (size_t i = 0; i < kNumContents; ++i) {
    const auto bytes = [&](const PeerTransfer& transfer) {
      return message_bytes(static_cast<Content>(i), transfer, shape, types);
    };
    for (const PeerTransfer& transfer : exchange.rows.sends) {
      exchange.with_servers[i].add(transfer.peer, bytes(transfer));
    }
    for (const PeerTransfer& transfer : exchange.rows.receives) {
      exchange.with_homes[i].add(transfer.peer, bytes(transfer));
    }
  }
  divide_tasks(exchange);
  return exchange;
}

std::vector<TaskSet> AttentionExchange::partial_sets() const {
  std::vector<TaskSet> sets;
  for (const TaskSet set : {TaskSet::kHomeFirst, TaskSet::kAway, TaskSet::kHomeRest}) {
    if (!tasks_of(set).empty()) sets.push_back(set);
  }
  if (sets.size() <= 1 || (rows.sends.empty() && rows.receives.empty())) return {TaskSet::kAll};
  return sets;
}

bool is_home(const ServerTask& task) {
  return task.q.buffer == 0 &&
         std::ranges::all_of(task.kv, [](const BufferRows& rows) { return rows.buffer == 0; });
}

}  // namespace distca
