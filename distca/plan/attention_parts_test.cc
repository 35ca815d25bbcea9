#include "distca/plan/attention_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "distca/base/random.h"
#include "distca/plan/exchange.h"
#include "distca/plan/plan.h"

namespace distca {
namespace {

using ::testing::IsEmpty;

constexpr Range kAll{0, kAttentionShares};

/// A causal task over the rows of a document before and at its queries; buffer 0 is home.
ServerTask task(int32_t q_buffer, const Range& q, int32_t kv_buffer) {
  return {.q = {.buffer = q_buffer, .position = q.begin, .tokens = q.size()},
          .kv = {{.buffer = kv_buffer, .tokens = q.end}}};
}

AttentionExchange exchange_of(std::vector<ServerTask> tasks) {
  RankExchange rows;
  rows.tasks = std::move(tasks);
  return make_attention_exchange(std::move(rows), {}, {});
}

/// The faults of the shares of one pass.
std::vector<std::string> faults(const AttentionExchange& exchange, Pass pass, int64_t least_pairs) {
  std::vector<std::string> wrong;
  const AttentionShares shares(exchange, pass, least_pairs);
  const std::vector<ServerTask>& tasks = exchange.rows.tasks;
  std::vector<int64_t> rows(tasks.size(), 0);  // in the order of a pass, rows of a task ascend
  int64_t pairs = 0;
  for (int64_t i = 0; i < kAttentionShares; ++i) {
    const AttentionPart share = shares.part({i, i + 1});
    int64_t of_pieces = 0;
    for (const TaskPiece& piece : share.pieces) {
      of_pieces += pairs_of(exchange, piece);
      const Range& queries = piece.queries;
      if (queries.begin != rows[piece.task]) wrong.push_back("not the next rows of a task");
      if (queries.end % kCutRows != 0 && queries.end != tasks[piece.task].q.tokens)
        wrong.push_back("not cut at a block");
      if (pass == Pass::kForward && i >= kSharesBeforeCombine && is_returned(tasks[piece.task]))
        wrong.push_back("returned behind the combine");
      rows[piece.task] = queries.end;
    }
    if (of_pieces != share.pairs) wrong.push_back("other pairs");
    pairs += share.pairs;
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (rows[i] != tasks[i].q.tokens) wrong.push_back("rows are missing");
  }
  if (pairs != exchange.pairs_of(TaskSet::kAll) || pairs != shares.part(kAll).pairs)
    wrong.push_back("pairs are missing");
  for (const TaskPiece& piece : shares.part(kAll).pieces) {
    if (piece.queries.size() < tasks[piece.task].q.tokens && !is_home(tasks[piece.task]))
      wrong.push_back("all shares have a task in pieces");
  }
  return wrong;
}

TEST(AttentionShares, have_every_row_once_whatever_the_plan_is) {
  Random random(5);
  int cut = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const int workers = 1 + static_cast<int>(random.below(4));
    std::vector<int64_t> lengths;
    for (int i = 1 + static_cast<int>(random.below(6)); i > 0; --i)
      lengths.push_back(1 + static_cast<int64_t>(random.below(4000)));
    PlanRequest request{
        .nano_batch = NanoBatch::from_lengths(lengths),
        .cluster = Cluster::in_place(workers),
        .shape = {.num_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 8},
        .options = {.scheduler = trial % 3 == 0 ? "greedy" : "balanced",
                    .split_kv = trial % 3 == 1}};
    if (trial % 4 == 0) request.cluster.capacity.insert(request.cluster.capacity.end(), 1);
    if (trial % 5 == 0) request.shape.mask.window_left = static_cast<int64_t>(random.below(900));
    const Plan plan = make_plan(request);
    const PlanIndex index(plan);
    for (int rank = 0; rank < plan.cluster.num_servers(); ++rank) {
      const AttentionExchange exchange =
          make_attention_exchange(index.exchange(rank), request.shape, {});
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        for (const int64_t least : {int64_t{1}, int64_t{100'000}, kLeastSharePairs}) {
          ASSERT_THAT(faults(exchange, pass, least), IsEmpty()) << "trial " << trial;
          size_t pieces = 0;
          for (int64_t i = 0; i < kAttentionShares; ++i)
            pieces += AttentionShares(exchange, pass, least).part({i, i + 1}).pieces.size();
          cut += pieces > exchange.rows.tasks.size() ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(cut, 500);
}

TEST(AttentionShares, are_even_where_a_document_is_long) {
  const AttentionExchange exchange = exchange_of({task(0, {0, 30'000}, 1), task(0, {0, 9'000}, 0)});
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const AttentionShares shares(exchange, pass);
    const double mean = static_cast<double>(exchange.pairs_of(TaskSet::kAll)) / kAttentionShares;
    for (int64_t i = 0; i < kAttentionShares; ++i) {
      EXPECT_GT(static_cast<double>(shares.part({i, i + 1}).pairs), 0.9 * mean);
      EXPECT_LT(static_cast<double>(shares.part({i, i + 1}).pairs), 1.1 * mean);
    }
  }
}

std::vector<int32_t> tasks_in_order(const AttentionExchange& exchange, Pass pass) {
  std::vector<int32_t> order;
  for (const TaskPiece& piece : AttentionShares(exchange, pass, 1).part(kAll).pieces)
    order.push_back(piece.task);
  return order;
}

TEST(AttentionShares, come_in_the_order_in_which_their_messages_do) {
  // Kept, home, returned with keys of others, returned with keys at home.
  const AttentionExchange exchange = exchange_of({task(0, {1000, 2000}, 1), task(0, {0, 128}, 0),
                                                  task(1, {0, 256}, 1), task(2, {300, 500}, 0)});
  EXPECT_THAT(tasks_in_order(exchange, Pass::kForward), ::testing::ElementsAre(1, 2, 3, 0))
      << "returned ones before the combine, behind what waits for no message";
  EXPECT_THAT(tasks_in_order(exchange, Pass::kBackward), ::testing::ElementsAre(0, 1, 2, 3));
}

TEST(AttentionShares, of_a_server_that_returns_all_come_before_the_combine) {
  const AttentionExchange exchange = exchange_of({task(1, {0, 9000}, 1), task(2, {0, 4000}, 2)});
  const AttentionShares shares(exchange, Pass::kForward);
  EXPECT_EQ(shares.part({0, kSharesBeforeCombine}).pairs, exchange.pairs_of(TaskSet::kAll));
  EXPECT_GT(shares.part({0, 1}).pairs, 0);
}

TEST(AttentionShares, are_fewer_where_there_is_little) {
  const AttentionExchange exchange = exchange_of({task(0, {0, 3000}, 0)});  // 4.5 million pairs
  int parts = 0;
  for (int64_t i = 0; i < kAttentionShares; ++i) {
    const int64_t pairs = AttentionShares(exchange, Pass::kBackward).part({i, i + 1}).pairs;
    parts += pairs > 0 ? 1 : 0;
    EXPECT_TRUE(pairs == 0 || pairs > kLeastSharePairs * 8 / 10) << pairs;
  }
  EXPECT_GE(parts, 3);
  EXPECT_LE(parts, 4);
}

}  // namespace
}  // namespace distca
