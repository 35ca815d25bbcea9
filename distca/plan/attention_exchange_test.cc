#include "distca/plan/attention_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distca {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

BufferRows rows(int32_t buffer, int64_t tokens, int64_t position) {
  return {.buffer = buffer, .row = 0, .position = position, .tokens = tokens};
}

ServerTask task(int32_t q_block, int64_t tokens, int32_t kv_block) {
  return {.q = rows(q_block, tokens, 0), .kv = {rows(kv_block, tokens, 0)}};
}

TEST(TaskSets, divide_the_tasks_by_what_they_need) {
  RankExchange rows;
  rows.tasks = {task(0, 100, 0), task(0, 100, 1), task(0, 100, 0), task(2, 50, 2),
                task(0, 100, 0), task(2, 10, 0),  task(0, 100, 0)};
  const AttentionExchange exchange = make_attention_exchange(rows, {}, {});
  EXPECT_THAT(exchange.tasks_of(TaskSet::kAll), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(exchange.tasks_of(TaskSet::kAway), ElementsAre(1, 3, 5));
  EXPECT_THAT(exchange.tasks_of(TaskSet::kHomeFirst), ElementsAre(0, 2));
  EXPECT_THAT(exchange.tasks_of(TaskSet::kHomeRest), ElementsAre(4, 6));
}

TEST(TaskSets, a_home_task_alone_runs_while_keys_arrive) {
  RankExchange rows;
  rows.tasks = {task(1, 10, 1), task(0, 10, 0)};
  const AttentionExchange exchange = make_attention_exchange(rows, {}, {});
  EXPECT_THAT(exchange.tasks_of(TaskSet::kHomeFirst), ElementsAre(1));
  EXPECT_THAT(exchange.tasks_of(TaskSet::kHomeRest), IsEmpty());
}

TEST(TaskSets, a_long_home_task_is_a_half_by_itself) {
  RankExchange rows;
  rows.tasks = {task(0, 1000, 0), task(0, 10, 0), task(0, 20, 0), task(1, 10, 1)};
  const AttentionExchange exchange = make_attention_exchange(rows, {}, {});
  EXPECT_THAT(exchange.tasks_of(TaskSet::kHomeFirst), ElementsAre(0));
  EXPECT_THAT(exchange.tasks_of(TaskSet::kHomeRest), ElementsAre(1, 2));
}

TEST(Messages, have_the_bytes_of_their_rows) {
  const AttentionShape shape{.num_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 8};
  const ExchangeTypes types{.compute = ScalarType::kBFloat16};
  const PeerTransfer both{.peer = 1, .q_tokens = 10, .kv_tokens = 30};
  const auto bytes = [&](Content content, const PeerTransfer& transfer) {
    return message_bytes(content, transfer, shape, types);
  };
  EXPECT_EQ(bytes(Content::kQkv, both), 2 * (10 * 4 * 16 + 30 * 2 * (16 + 8)));
  EXPECT_EQ(bytes(Content::kO, both), 10 * 4 * (2 * 8 + 4));
  EXPECT_EQ(bytes(Content::kDO, both), 10 * 4 * (2 * 8 + 2 * 4));
  EXPECT_EQ(bytes(Content::kAccumulator, both), 4 * (10 * 4 * 16 + 30 * 2 * (16 + 8)));
  const PeerTransfer keys{.peer = 1, .kv_tokens = 30};
  EXPECT_EQ(bytes(Content::kO, keys), 0);
  EXPECT_EQ(bytes(Content::kDO, keys), 0);
  EXPECT_GT(bytes(Content::kQkv, keys), 0);
}

TEST(Messages, lie_one_after_another_by_peer_where_there_are_any) {
  RankExchange rows;
  rows.sends = {{.peer = 1, .kv_tokens = 1}, {.peer = 4, .q_tokens = 1, .kv_tokens = 1}};
  const AttentionShape shape{.num_heads = 1, .num_kv_heads = 1, .head_dim_qk = 8, .head_dim_v = 8};
  const AttentionExchange exchange =
      make_attention_exchange(rows, shape, exchange_types(ScalarType::kFloat32, false));
  const MessageList& qkv = exchange.servers(Content::kQkv);
  EXPECT_THAT(qkv.messages, ElementsAre(PeerMessage{1, 0, 64}, PeerMessage{4, 64, 96}));
  EXPECT_EQ(qkv.bytes, 160);
  EXPECT_EQ(qkv.buffer_bytes, 192);
  EXPECT_EQ(qkv.with(4), &qkv.messages[1]);
  EXPECT_EQ(qkv.with(2), nullptr);
  EXPECT_THAT(exchange.servers(Content::kO).messages, ElementsAre(PeerMessage{4, 0, 36}));
  EXPECT_THAT(exchange.homes(Content::kQkv).messages, IsEmpty());
}

}  // namespace
}  // namespace distca
