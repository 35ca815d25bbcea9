#include "distca/plan/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "distca/plan/plan_testing.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/validate.h"

namespace distca {
namespace {

using ::testing::IsEmpty;
using Token = std::pair<int64_t, int64_t>;  // document, position

std::vector<Token> local_tokens(const Plan& plan, int rank) {
  std::vector<Token> tokens;
  if (rank >= plan.layout.num_workers()) return tokens;
  for (const Segment& segment : plan.layout.workers[rank]) {
    for (int64_t p = segment.tokens.begin; p < segment.tokens.end; ++p)
      tokens.push_back({segment.document, p});
  }
  return tokens;
}

/// The rows that a message carries, which the sender reads from its local tensors.
std::vector<Token> packed(const std::vector<RowRange>& ranges, const std::vector<Token>& local) {
  std::vector<Token> rows;
  for (const RowRange& range : ranges) {
    for (int64_t i = 0; i < range.tokens.size(); ++i) rows.push_back(local.at(range.row + i));
  }
  return rows;
}

/// A plan, all exchanges, and what each rank has in each buffer after the exchange.
struct Played {
  Plan plan;
  std::vector<std::vector<Token>> local;               // [rank]
  std::vector<RankExchange> ranks;                     // [rank]
  std::vector<std::vector<std::vector<Token>>> q, kv;  // [rank][buffer]
};

Played play(Plan plan) {
  Played played{.plan = std::move(plan), .local = {}, .ranks = {}, .q = {}, .kv = {}};
  const PlanIndex index(played.plan);
  const int ranks = static_cast<int>(played.plan.load.size());
  for (int rank = 0; rank < ranks; ++rank) {
    played.local.push_back(local_tokens(played.plan, rank));
    played.ranks.push_back(index.exchange(rank));
  }
  for (int rank = 0; rank < ranks; ++rank) {
    auto& q = played.q.emplace_back();
    auto& kv = played.kv.emplace_back();
    q.push_back(played.local[rank]);
    kv.push_back(played.local[rank]);
    for (const PeerTransfer& message : played.ranks[rank].receives) {
      q.push_back(packed(message.q, played.local[message.peer]));
      kv.push_back(packed(message.kv, played.local[message.peer]));
    }
  }
  return played;
}

void on_schedulers_plans(const std::function<void(const Played&)>& check) {
  const std::vector<int64_t> lengths = {5001, 1, 300, 2048};
  for (const SchedulerEntry& scheduler : schedulers()) {
    for (const int workers : {1, 2, 3, 4, 7}) {
      PlanRequest request = testing::request_for(lengths, workers, std::string(scheduler.name));
      check(play(make_plan(request)));
      if (!scheduler.split_kv) continue;
      request.options.split_kv = true;
      check(play(make_plan(request)));
      request.options.spread = true;
      check(play(make_plan(request)));
    }
  }
}

/// Random ones and the schedulers'.
void on_plans(const std::function<void(const Played&)>& check) {
  Random random(6);
  for (const int workers : {1, 2, 3, 4, 7}) {
    for (int trial = 0; trial < 40; ++trial) {
      Plan plan = testing::random_plan(workers, static_cast<int>(random.below(3)), random);
      if (trial % 2 == 1) testing::cut_tasks(plan, random);
      ASSERT_THAT(validate(plan, {.even_tokens = false}), IsEmpty());
      check(play(std::move(plan)));
    }
  }
  on_schedulers_plans(check);
}

TEST(Exchange, sends_mirror_receives) {
  on_plans([](const Played& played) {
    std::map<std::pair<int, int>, PeerTransfer> sent;  // (from, to)
    size_t received = 0;
    for (size_t rank = 0; rank < played.ranks.size(); ++rank) {
      for (const PeerTransfer& message : played.ranks[rank].sends) {
        sent[{static_cast<int>(rank), message.peer}] = message;
      }
      received += played.ranks[rank].receives.size();
    }
    EXPECT_EQ(sent.size(), received);
    for (size_t rank = 0; rank < played.ranks.size(); ++rank) {
      for (PeerTransfer message : played.ranks[rank].receives) {
        const auto match = sent.find({message.peer, static_cast<int>(rank)});
        ASSERT_NE(match, sent.end());
        message.peer = static_cast<int>(rank);
        EXPECT_EQ(message, match->second);
      }
    }
  });
}

TEST(Exchange, messages_are_sorted_disjoint_and_never_empty) {
  on_plans([](const Played& played) {
    for (const RankExchange& rank : played.ranks) {
      for (const auto* side : {&rank.sends, &rank.receives}) {
        int last_peer = -1;
        for (const PeerTransfer& message : *side) {
          EXPECT_GT(message.peer, last_peer);
          last_peer = message.peer;
          EXPECT_GT(message.q_tokens + message.kv_tokens, 0);
          for (const auto& [ranges, tokens] :
               {std::pair{message.q, message.q_tokens}, std::pair{message.kv, message.kv_tokens}}) {
            int64_t sum = 0;
            for (size_t i = 0; i < ranges.size(); ++i) {
              sum += ranges[i].tokens.size();
              if (i == 0) continue;
              EXPECT_TRUE(ranges[i - 1].document < ranges[i].document ||
                          (ranges[i - 1].document == ranges[i].document &&
                           ranges[i - 1].tokens.end <= ranges[i].tokens.begin));
            }
            EXPECT_EQ(sum, tokens);
          }
        }
      }
    }
  });
}

TEST(Exchange, every_row_of_every_task_is_the_right_token) {
  on_plans([](const Played& played) {
    size_t tasks = 0;
    for (size_t rank = 0; rank < played.ranks.size(); ++rank) {
      for (const ServerTask& resolved : played.ranks[rank].tasks) {
        const Task& task = played.plan.tasks[resolved.task];
        EXPECT_EQ(task.server, static_cast<int>(rank));
        ++tasks;
        ASSERT_EQ(resolved.q.position, task.q.begin);
        ASSERT_EQ(resolved.q.tokens, task.q.size());
        for (int64_t i = 0; i < resolved.q.tokens; ++i) {
          ASSERT_EQ(played.q[rank].at(resolved.q.buffer).at(resolved.q.row + i),
                    Token(task.document, task.q.begin + i));
        }
        int64_t position = task.kv.begin;
        for (const BufferRows& rows : resolved.kv) {
          ASSERT_EQ(rows.position, position);
          for (int64_t i = 0; i < rows.tokens; ++i, ++position) {
            ASSERT_EQ(played.kv[rank].at(rows.buffer).at(rows.row + i),
                      Token(task.document, position));
          }
        }
        EXPECT_EQ(position, task.kv.end);
      }
    }
    EXPECT_EQ(tasks, played.plan.tasks.size());
  });
}

TEST(Exchange, local_tokens_never_travel) {
  on_plans([](const Played& played) {
    for (size_t rank = 0; rank < played.ranks.size(); ++rank) {
      const std::set<Token> local(played.local[rank].begin(), played.local[rank].end());
      EXPECT_EQ(played.ranks[rank].local_tokens, static_cast<int64_t>(local.size()));
      for (const auto* buffers : {&played.q[rank], &played.kv[rank]}) {
        for (size_t buffer = 1; buffer < buffers->size(); ++buffer) {
          for (const Token& token : (*buffers)[buffer]) EXPECT_EQ(local.count(token), 0u);
        }
      }
    }
  });
}

TEST(Exchange, each_token_comes_once_and_only_if_a_task_reads_it) {
  on_plans([](const Played& played) {
    for (size_t rank = 0; rank < played.ranks.size(); ++rank) {
      std::set<Token> read_q;
      std::set<Token> read_kv;
      for (const Task& task : played.plan.tasks) {
        if (task.server != static_cast<int>(rank)) continue;
        for (int64_t p = task.q.begin; p < task.q.end; ++p) read_q.insert({task.document, p});
        for (int64_t p = task.kv.begin; p < task.kv.end; ++p) read_kv.insert({task.document, p});
      }
      for (const auto& [buffers, read] :
           {std::pair{&played.q[rank], &read_q}, std::pair{&played.kv[rank], &read_kv}}) {
        std::set<Token> seen;
        for (size_t buffer = 1; buffer < buffers->size(); ++buffer) {
          for (const Token& token : (*buffers)[buffer]) {
            EXPECT_TRUE(seen.insert(token).second);
            EXPECT_EQ(read->count(token), 1u);
          }
        }
      }
    }
  });
}

/// The parts of a row's result: (first key, task) of this rank's tasks, ascending, then (index of
/// the message, row in it) of the results that come home.
struct Parts {
  std::vector<std::pair<int64_t, MergePart>> own;
  std::vector<MergePart> arrived;
  std::vector<MergePart> all() const {
    std::vector<MergePart> result;
    for (const auto& [first_key, part] : own) result.push_back(part);
    result.insert(result.end(), arrived.begin(), arrived.end());
    return result;
  }
};

using RowParts = std::map<std::pair<int32_t, int64_t>, Parts>;  // by (buffer, row)

RowParts parts_of_rows(const Plan& plan, const RankExchange& rank) {
  RowParts rows;
  for (size_t i = 0; i < rank.tasks.size(); ++i) {
    const ServerTask& task = rank.tasks[i];
    for (int64_t row = 0; row < task.q.tokens; ++row) {
      rows[{task.q.buffer, task.q.row + row}].own.push_back(
          {plan.tasks[task.task].kv.begin, {false, static_cast<int32_t>(i), row}});
    }
  }
  for (size_t i = 0; i < rank.sends.size(); ++i) {
    int64_t at = 0;
    for (const RowRange& range : rank.sends[i].q) {
      for (int64_t row = 0; row < range.tokens.size(); ++row, ++at) {
        rows[{0, range.row + row}].arrived.push_back({true, static_cast<int32_t>(i), at});
      }
    }
  }
  for (auto& [row, parts] : rows) {
    std::sort(parts.own.begin(), parts.own.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
  }
  return rows;
}

TEST(Exchange, merges_are_the_rows_with_several_results_and_the_rest_of_their_tasks) {
  size_t several = 0, alone = 0, at_home = 0;
  on_plans([&](const Played& played) {
    for (const RankExchange& rank : played.ranks) {
      const RowParts rows = parts_of_rows(played.plan, rank);
      std::set<int32_t> partial;
      for (const auto& [row, parts] : rows) {
        if (parts.all().size() == 1) continue;
        for (const auto& [first_key, part] : parts.own) partial.insert(part.index);
      }
      std::map<std::pair<int32_t, int64_t>, std::vector<MergePart>> want;
      for (const auto& [row, parts] : rows) {
        const std::vector<MergePart> all = parts.all();
        const bool of_partial = !parts.own.empty() && partial.count(parts.own[0].second.index) > 0;
        if (all.size() > 1 || of_partial) want[row] = all;
        several += all.size() > 1;
        alone += all.size() == 1 && of_partial;
        at_home += !parts.own.empty() && !parts.arrived.empty();
      }
      std::map<std::pair<int32_t, int64_t>, std::vector<MergePart>> got;
      for (const RowMerge& merge : rank.merges) {
        EXPECT_GT(merge.tokens, 0);
        for (int64_t i = 0; i < merge.tokens; ++i) {
          auto& parts = got[{merge.buffer, merge.row + i}];
          EXPECT_TRUE(parts.empty()) << "merged twice";
          parts = merge.parts;
          for (MergePart& part : parts) part.row += i;
        }
      }
      EXPECT_EQ(got, want);
      EXPECT_TRUE(std::is_sorted(rank.merges.begin(), rank.merges.end(),
                                 [](const RowMerge& a, const RowMerge& b) {
                                   return std::tie(a.buffer, a.row) < std::tie(b.buffer, b.row);
                                 }));
      for (size_t i = 0; i < rank.tasks.size(); ++i) {
        EXPECT_EQ(rank.tasks[i].partial, partial.count(static_cast<int32_t>(i)) == 1);
      }
    }
  });
  EXPECT_GT(several, 0u);
  EXPECT_GT(alone, 0u);
  EXPECT_GT(at_home, 0u);
}

TEST(Exchange, a_task_that_overlaps_another_in_part_of_its_rows_is_cut_into_merges) {
  Plan plan = make_plan(testing::request_for({512}, 2, "local"));
  const auto task = [](Range q, Range kv, int server) {
    return Task{.document = 0, .q = q, .kv = kv, .server = server};
  };
  plan.options.split_kv = true;
  plan.layout.workers = {{{.document = 0, .tokens = {0, 256}}},
                         {{.document = 0, .tokens = {256, 512}}}};
  // Worker 1, the home of rows [256, 512), has their keys from 256 on, and worker 0 the others.
  plan.tasks = {task({0, 256}, {0, 256}, 0), task({256, 512}, {0, 256}, 0),
                task({256, 384}, {256, 384}, 1), task({384, 512}, {256, 512}, 1)};
  testing::complete(plan);
  ASSERT_THAT(validate(plan), IsEmpty());
  const PlanIndex index(plan);
  EXPECT_THAT(index.exchange(0).merges, IsEmpty());  // one result a row: O goes home as computed
  const RankExchange home = index.exchange(1);
  const std::vector<RowMerge> want = {
      {.buffer = 0, .row = 0, .tokens = 128, .parts = {{false, 0, 0}, {true, 0, 0}}},
      {.buffer = 0, .row = 128, .tokens = 128, .parts = {{false, 1, 0}, {true, 0, 128}}}};
  EXPECT_EQ(home.merges, want);
}

TEST(Exchange, bytes_are_those_that_the_plan_predicts) {
  on_plans([](const Played& played) {
    const AttentionShape& shape = played.plan.shape;
    for (size_t rank = 0; rank < played.ranks.size(); ++rank) {
      int64_t sent = 0;
      int64_t received = 0;
      int64_t o_sent = 0;
      for (const PeerTransfer& message : played.ranks[rank].sends) {
        sent +=
            message.q_tokens * shape.q_token_bytes() + message.kv_tokens * shape.kv_token_bytes();
      }
      for (const PeerTransfer& message : played.ranks[rank].receives) {
        received +=
            message.q_tokens * shape.q_token_bytes() + message.kv_tokens * shape.kv_token_bytes();
        o_sent += message.q_tokens * shape.o_token_bytes();
      }
      EXPECT_EQ(sent, played.plan.load[rank].send_bytes);
      EXPECT_EQ(received, played.plan.load[rank].receive_bytes);
      EXPECT_EQ(o_sent, played.plan.load[rank].o_send_bytes);
    }
  });
}

TEST(Exchange, schedulers_plans_cover_every_row_and_merge_only_with_split_kv) {
  size_t merges = 0, plans = 0;
  on_schedulers_plans([&](const Played& played) {
    ++plans;
    for (const RankExchange& rank : played.ranks) {
      merges += rank.merges.size();
      if (!played.plan.options.split_kv) {
        EXPECT_THAT(rank.merges, IsEmpty()) << "every query has all its keys in one task";
      }
      size_t local = 0;
      for (const auto& [row, parts] : parts_of_rows(played.plan, rank)) local += row.first == 0;
      EXPECT_EQ(static_cast<int64_t>(local), rank.local_tokens) << "a row has no result";
    }
  });
  EXPECT_GT(merges, 0u);
  EXPECT_GE(plans, 5u * 7u);  // worker counts; schedulers that run, and two options of balanced
}

}  // namespace
}  // namespace distca
