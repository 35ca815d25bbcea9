// The order of ping-pong where ranks divide the matrices of layers: a turn, programs of many kinds,
// and what the validator says where a combine stands at another place.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "distca/base/error.h"
#include "distca/program/pipeline_testing.h"
#include "distca/program/program_builder.h"
#include "distca/program/validate/validate.h"

namespace distca::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

/// Programs of all ranks of servers of `tensor` ranks each, without a pipeline.
std::vector<Program> one_stage(const std::vector<std::vector<int64_t>>& lengths,
                               const Cluster& cluster, Style style, int tensor = 2) {
  style.tensor = tensor;
  return programs_of(plan_step(lengths, cluster, {.tolerance_ppm = 0}), style);
}

const std::vector<std::vector<int64_t>> kLong = {{8000, 300, 4250, 100}, {8100, 300, 4250, 100}};

/// Its operations, with "attention" for each part of core attention.
std::string without_parts(const Program& program) {
  std::string order;
  for (const Op& op : program.ops)
    order += (op.part >= 0 ? "attention" + short_name(op).substr(short_name(op).find(' '))
                           : short_name(op)) +
             ", ";
  return order;
}

TEST(CounterPhase, islands_of_a_turn_stand_between_parts_of_the_others_attention) {
  const std::string order =
      without_parts(one_stage(kLong, Cluster::in_place(2), {.num_layers = 3})[1]);
  EXPECT_THAT(order, StartsWith("embed a, sum_rows a, attention_norm 0a, gather_rows 0a, "
                                "pre_attention 0a, dispatch 0a, embed b, sum_rows b, "
                                "attention 0a, attention_norm 0b, gather_rows 0b, attention 0a, "
                                "combine 0a, attention 0a, pre_attention 0b, dispatch 0b, "
                                "attention 0a, "
                                "out_projection 0a, "));
  EXPECT_THAT(order, HasSubstr("out_projection 0a, sum_rows 0a, attention 0b, "
                               "mlp_norm 0a, gather_rows 0a, attention 0b, "
                               "post_attention 0a, sum_rows 0a, attention 0b, "
                               "attention_norm 1a, gather_rows 1a, combine 0b, attention 0b, "
                               "pre_attention 1a, dispatch 1a, attention 0b, out_projection 0b, "));
  EXPECT_THAT(order, HasSubstr("dispatch 1b', combine 1a', attention 1b', "
                               "pre_attention 1a', sum_rows 1a', attention 1b', "
                               "attention_norm 1a', gather_rows 0a', attention 1b', "
                               "post_attention 0a', sum_rows 0a', attention 1b', "
                               "mlp_norm 0a', gather_rows 0a', attention 1b', "
                               "out_projection 0a', dispatch 0a', combine 1b', attention 0a', "));
  // Between forward and backward, with the loss.
  EXPECT_THAT(order, HasSubstr("post_attention 2a, sum_rows 2a, attention 2b, loss a, loss a', "
                               "gather_rows 2a', attention 2b, post_attention 2a', "));
}

TEST(CounterPhase, what_travels_in_a_server_runs_under_core_attention) {
  const Program program = one_stage(kLong, Cluster::in_place(2), {.num_layers = 6})[0];
  int under = 0, exposed = 0;
  for (int32_t i = 0; i < std::ssize(program.ops); ++i) {
    if (!is_of_tensor(program.ops[i].kind)) continue;
    int parts = 0;
    for (int32_t next = i + 1; next < std::ssize(program.ops); ++next) {
      const std::vector<int32_t>& waits = program.ops[next].wait_for;
      if (std::ranges::find(waits, i) != waits.end()) break;
      parts += program.ops[next].part >= 0 ? 1 : 0;
    }
    (parts > 0 ? under : exposed) += 1;
  }
  EXPECT_EQ(under + exposed, 2 * (6 * 8 + 2));
  EXPECT_LE(exposed, 4) << "where the first nano-batch begins and the last one ends";
}

TEST(CounterPhase, a_server_without_phases_plays_its_parts_one_after_another) {
  const std::vector<Program> all =
      one_stage(kLong, pool(2, 1, /*in_place=*/true), {.num_layers = 2});
  EXPECT_THAT(validate(all), IsEmpty());
  EXPECT_THAT(without_parts(all[4]),
              StartsWith("dispatch 0a, attention 0a, combine 0a, dispatch 0b, attention 0b, "
                         "combine 0b, dispatch 1a, attention 1a, combine 1a, dispatch 1b, "))
      << "what it computes is returned, so all of it comes before the combine";
}

TEST(CounterPhase, a_nano_batch_without_a_partner_is_played_in_place) {
  const std::vector<std::vector<int64_t>> lengths = {kLong[0]};
  const Program alone = one_stage(lengths, Cluster::in_place(2), {})[0],
                within = one_stage(lengths, Cluster::in_place(2), {.overlap = Overlap::kWithin})[0];
  EXPECT_EQ(order_of(alone), order_of(within));
  for (const Program& program : one_stage(kLong, Cluster::in_place(2), {.overlap = Overlap::kNone}))
    EXPECT_THAT(program.attention_parts, IsEmpty());
  // The third one's first layer still is under way while the second one ends.
  const std::string odd = order_of(
      one_stage({kLong[0], kLong[1], {3000, 700}}, Cluster::in_place(2), {.num_layers = 2})[0]);
  EXPECT_THAT(odd, HasSubstr("core_attention(home, first half) 1c, core_attention(away) 1c, "));
}

TEST(CounterPhase, is_not_played_where_no_ranks_divide_layers) {
  const std::vector<Program> all = one_stage(kLong, Cluster::in_place(2), {}, /*tensor=*/1);
  for (const Program& program : all) EXPECT_THAT(program.attention_parts, IsEmpty());
}

TEST(CounterPhase, programs_of_one_stage_are_valid) {
  const std::vector<std::vector<std::vector<int64_t>>> steps = {
      {{2000, 300, 100}, {1500, 900, 700, 40}},
      {{2000, 300, 100}, {1500, 900, 700, 40}, {800}},
      {{5}, {3, 1}},
      {{3000}, {1, 2900}, {700, 600, 500}, {4000, 12}, {900}}};
  int programs = 0;
  for (const int tensor : {2, 4}) {
    for (const auto& lengths : steps) {
      for (const auto& [workers, dedicated, in_place] :
           {std::tuple{1, 0, true}, {2, 0, true}, {3, 1, true}, {2, 2, false}}) {
        for (const bool redispatched : {false, true}) {
          for (const auto kind : {ProgramRequest::Kind::kTrain, ProgramRequest::Kind::kEvaluate}) {
            const Style style{
                .redispatched = redispatched,
                .kind = kind,
                .num_layers = 3,
                .types = {.compute = ScalarType::kBFloat16,
                          .gradient = redispatched ? ScalarType::kBFloat16 : ScalarType::kFloat32}};
            const std::vector<Program> all =
                one_stage(lengths, pool(workers, dedicated, in_place), style, tensor);
            ASSERT_THAT(validate(all), IsEmpty()) << workers << " workers, tensor " << tensor;
            programs += static_cast<int>(all.size());
          }
        }
      }
    }
  }
  EXPECT_GT(programs, 800);
}

TEST(CounterPhase, programs_of_layers_with_two_windows_are_valid) {
  const StepExchanges step =
      plan_step({{2000, 300, 100}, {1500, 900, 700, 40}, {800}}, pool(2, 1, true), {}, {-1, 199});
  for (const bool redispatched : {false, true}) {
    EXPECT_THAT(validate(programs_of(step, {.redispatched = redispatched,
                                            .num_layers = 5,
                                            .window_of_layer = {1, 0, 0, 1, 1},
                                            .tensor = 2})),
                IsEmpty());
  }
}

TEST(CounterPhase, programs_of_pipelines_are_valid) {
  int programs = 0;
  for (const int tensor : {2, 4}) {
    for (const std::vector<int64_t>& layers :
         {std::vector<int64_t>{3}, {2, 2}, {3, 1}, {1, 2, 1}, {1, 1, 1, 1}}) {
      for (const Order order : {Order::kAligned, Order::kMixed}) {
        for (const auto& [replicas, dedicated] : {std::pair{1, 0}, {2, 0}, {1, 1}}) {
          for (const int nano_batches : {1, 2, 5, 8}) {
            for (const auto kind :
                 {ProgramRequest::Kind::kTrain, ProgramRequest::Kind::kEvaluate}) {
              if (kind == ProgramRequest::Kind::kEvaluate && order == Order::kMixed) continue;
              const PipelineStyle style{.layers = layers,
                                        .lengths = uneven_lengths(nano_batches),
                                        .replicas = replicas,
                                        .dedicated = dedicated,
                                        .tensor = tensor,
                                        .order = order,
                                        .outstanding = nano_batches % 2,
                                        .kind = kind,
                                        .gradients = {.bucket_elements = 640},
                                        .least_share_pairs = nano_batches == 5 ? 1 : 1 << 12};
              const std::vector<Program> all = pipeline_programs(style);
              ASSERT_THAT(validate(all), IsEmpty())
                  << layers.size() << " stages, " << nano_batches << " nano-batches, tensor "
                  << tensor << ", replicas " << replicas << ", dedicated " << dedicated;
              programs += static_cast<int>(all.size());
            }
          }
        }
      }
    }
  }
  EXPECT_GT(programs, 2000);
}

/// The program with operation `from` at `to`.
Program moved(const Program& program, int32_t from, int32_t to) {
  Program changed = program;
  std::vector<int32_t> order(program.ops.size());
  std::iota(order.begin(), order.end(), 0);
  order.erase(order.begin() + from);
  order.insert(order.begin() + to, from);
  std::vector<int32_t> place(order.size());
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<int32_t>(i);
  for (size_t i = 0; i < order.size(); ++i) {
    Op& op = changed.ops[i] = program.ops[order[i]];
    for (std::vector<int32_t>* const waits : {&op.wait_for, &op.wait_sends}) {
      for (int32_t& other : *waits) other = place[other];
    }
  }
  return changed;
}

/// Moves each combine of each rank before the communication before it, and behind the next one.
int move_combines(std::vector<Program> all) {
  EXPECT_THAT(validate(all), IsEmpty());
  const auto communicates_at = [](const Program& program, int32_t op) {
    return op >= 0 && op < std::ssize(program.ops) && program.ops[op].stream == Stream::kComm;
  };
  int moves = 0;
  for (Program& changed : all) {
    const Program program = changed;
    for (int32_t i = 0; i < std::ssize(program.ops); ++i) {
      if (program.ops[i].kind != OpKind::kCombine) continue;
      for (const int32_t step : {-1, 1}) {
        int32_t to = i + step;
        while (to >= 0 && to < std::ssize(program.ops) && !communicates_at(program, to)) to += step;
        if (!communicates_at(program, to)) continue;
        changed = moved(program, i, to);
        EXPECT_THAT(validate(all), Not(IsEmpty())) << describe(program.ops[i]) << " at " << to;
        ++moves;
      }
    }
    changed = program;
  }
  return moves;
}

TEST(CounterPhase, a_combine_at_another_place_on_one_rank_is_refused) {
  EXPECT_GT(move_combines(one_stage({{2000, 300}, {1500, 900, 700}}, Cluster::in_place(2),
                                    {.num_layers = 2})),
            50);
  EXPECT_GT(move_combines(one_stage({{2000, 300}, {1500, 900, 700}}, pool(2, 1, true),
                                    {.redispatched = true, .num_layers = 2})),
            80);
  EXPECT_GT(
      move_combines(pipeline_programs(
          {.layers = {1, 2}, .lengths = uneven_lengths(4), .tensor = 2, .order = Order::kMixed})),
      80);
}

TEST(CounterPhase, parts_have_every_row_once_and_write_what_is_returned) {
  const std::vector<Program> all =
      one_stage({{2000, 300}, {1500, 900, 700}}, pool(2, 1, true), {.num_layers = 2});
  const auto faults = [&](const std::function<void(Program&, AttentionPart&)>& spoil) {
    std::vector<std::string> wrong;
    for (Program program : all) {
      spoil(program, program.attention_parts[0][0][0]);
      for (const std::string& fault : validate(program)) wrong.push_back(fault);
    }
    return wrong;
  };
  EXPECT_THAT(faults([](Program&, AttentionPart&) {}), IsEmpty());
  const auto expected = HasSubstr("do not have all rows of task");
  EXPECT_THAT(faults([](Program&, AttentionPart& part) { part.pieces[0].queries.begin += 1; }),
              Each(expected));
  EXPECT_THAT(faults([](Program&, AttentionPart& part) { part.pieces.pop_back(); }),
              Contains(expected));
  EXPECT_THAT(faults([](Program&, AttentionPart& part) { part.pieces[0].task = 1000; }),
              Contains(expected));
  EXPECT_THAT(faults([](Program& program, AttentionPart&) {
                for (Op& op : program.ops) {
                  if (op.part >= 0) op.writes.clear();
                }
              }),
              Contains(HasSubstr("does not write what is returned")));
  EXPECT_THAT(faults([](Program& program, AttentionPart&) {
                for (Op& op : program.ops) {
                  if (op.part >= 0) op.part = 1000;
                }
              }),
              Contains(HasSubstr("computes a part that is nowhere")));
}

}  // namespace
}  // namespace distca::testing
