// Programs of pipelines whose stages share core attention: all ranks together.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "distca/program/pipeline_testing.h"
#include "distca/program/validate/validate.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;

/// Even, or with more layers on the first stages.
std::vector<int64_t> layers_of(int stages, bool even) {
  std::vector<int64_t> layers(stages, 2);
  for (int stage = 0; !even && stage < stages; ++stage) layers[stage] = stage % 3 == 1 ? 1 : 3;
  return layers;
}

std::string name_of(const PipelineStyle& style) {
  return fmt::format("layers {}, {} nano-batches, {} replicas, {} dedicated, {}, order {}",
                     fmt::join(style.layers, " "), style.lengths.size(), style.replicas,
                     style.dedicated, overlap_name(style.overlap), static_cast<int>(style.order));
}

/// By tag, without what only some ranks take part in.
std::vector<uint32_t> attention_tags(const Program& program) {
  std::vector<uint32_t> tags;
  for (const Op& op : program.ops) {
    if (op.stream == Stream::kComm && op.exchange >= 0) tags.push_back(op.tag);
  }
  return tags;
}

void expect_valid_pipelines(const PipelineStyle& style) {
  const std::vector<Program> programs = pipeline_programs(style);
  ASSERT_THAT(validate(programs), IsEmpty()) << name_of(style);
  if (style.order == Order::kAtHome) return;
  for (const Program& program : programs)
    ASSERT_EQ(attention_tags(program), attention_tags(programs[0])) << name_of(style);
}

TEST(Pipeline, every_program_is_valid_and_all_ranks_start_the_same_exchanges) {
  for (int stages = 1; stages <= 4; ++stages) {
    for (const int nano_batches : {1, 2, 3, 5, 8}) {
      for (const bool even : {true, false}) {
        for (const OverlapName& overlap : kOverlaps) {
          PipelineStyle style{.layers = layers_of(stages, even),
                              .lengths = uneven_lengths(nano_batches),
                              .overlap = overlap.overlap};
          // Each choice of these with every other one, over the sizes.
          style.replicas = 1 + (nano_batches + stages + (even ? 1 : 0)) % 2;
          style.dedicated = (nano_batches / 2 + stages) % 2;
          for (const Order order : {Order::kAligned, Order::kMixed, Order::kAtHome}) {
            if (order == Order::kAtHome && style.dedicated > 0) continue;
            style.order = order;
            expect_valid_pipelines(style);
          }
          style.order = Order::kAligned;
          style.kind = ProgramRequest::Kind::kEvaluate;
          expect_valid_pipelines(style);
        }
      }
    }
  }
}

TEST(Pipeline, many_stages_and_micro_batches_are_valid) {
  for (const auto& [stages, nano_batches] : {std::pair{8, 16}, {8, 5}, {6, 3}, {5, 32}, {8, 32}}) {
    for (const Order order : {Order::kAligned, Order::kMixed}) {
      expect_valid_pipelines({.layers = layers_of(stages, nano_batches % 2 == 0),
                              .lengths = uneven_lengths(nano_batches),
                              .overlap = nano_batches == 16 ? Overlap::kWithin : Overlap::kPingPong,
                              .order = order});
    }
  }
}

TEST(Pipeline, gradients_are_summed_within_each_stage) {
  for (const int stages : {1, 2, 3}) {
    for (const OverlapName& overlap : kOverlaps) {
      for (const int64_t bucket : {48, 1000, 100000}) {
        for (const bool distributed : {false, true}) {
          for (const Order order : {Order::kAligned, Order::kMixed, Order::kAtHome}) {
            const PipelineStyle style{.layers = layers_of(stages, bucket % 100 != 0),
                                      .lengths = uneven_lengths(stages == 2 ? 3 : 4),
                                      .replicas = 2,
                                      .overlap = overlap.overlap,
                                      .order = order,
                                      .gradients = {bucket, distributed, bucket != 1000}};
            expect_valid_pipelines(style);
          }
        }
      }
    }
  }
}

TEST(Pipeline, gradients_of_the_last_stage_travel_while_it_serves) {
  const Program program = pipeline_programs({.layers = {3, 3, 3},
                                             .lengths = uneven_lengths(6),
                                             .replicas = 2,
                                             .gradients = {.bucket_elements = 640}})
                              .back();
  size_t last_phase = 0, last_attention = 0;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (program.ops[i].nano_batch >= 0) last_phase = i;
    if (program.ops[i].kind == OpKind::kCoreAttention) last_attention = i;
  }
  int before = 0, behind = 0;
  for (size_t i = last_phase; i < program.ops.size(); ++i) {
    if (program.ops[i].kind != OpKind::kGradAdd) continue;
    ++(i < last_attention ? before : behind);
  }
  EXPECT_GE(before, 3);  // the first layer's pre_attention buckets, and those still under way
  EXPECT_EQ(behind, 0) << "of " << program.gradients->buckets.size() << " buckets";
}

TEST(Pipeline, buffers_do_not_grow_with_micro_batches_or_layers) {
  const auto roles_of = [](int nano_batches, int64_t layers) {
    std::vector<std::vector<BufferRole>> roles;
    for (const Program& program : pipeline_programs(
             {.layers = {layers, layers, layers}, .lengths = uneven_lengths(nano_batches)})) {
      roles.emplace_back();
      for (const Buffer& buffer : program.buffers) roles.back().push_back(buffer.role);
      std::ranges::sort(roles.back());
    }
    return roles;
  };
  const auto few = roles_of(10, 1);
  EXPECT_EQ(few, roles_of(24, 3));
  for (const std::vector<BufferRole>& roles : few) {
    EXPECT_LE(std::ranges::count(roles, BufferRole::kActivationIn), 4) << "2 slots, 2 passes";
    EXPECT_EQ(std::ranges::count(roles, BufferRole::kActivationOut), 2);
  }
}

/// Ticks of a pass in which this rank takes part, in the first slot.
int ticks_of(const PipelineOrder& order, const Program& program, Pass pass) {
  std::set<int> ticks;
  for (const Op& op : program.ops) {
    if (op.exchange < 0 || op.pass != pass) continue;
    const OrderedExchange& exchange = order.exchanges[op.exchange];
    if (exchange.slot == 0) ticks.insert(exchange.tick);
  }
  return static_cast<int>(ticks.size());
}

TEST(Pipeline, a_pass_takes_as_many_ticks_as_micro_batches_and_stages_less_one) {
  for (int stages = 1; stages <= 6; ++stages) {
    for (const int micro_batches : {1, 2, 3, 8}) {
      PipelineStyle style{.layers = layers_of(stages, true),
                          .lengths = uneven_lengths(2 * micro_batches)};
      PipelineStep step(style);
      const std::vector<Program> programs = step.programs();
      for (int stage = 0; stage < stages; ++stage) {
        // With one stage, both passes name the same exchanges.
        for (const Pass pass : {Pass::kForward, Pass::kBackward})
          EXPECT_EQ(ticks_of(step.order(), programs[stage], pass), micro_batches + stages - 1);
        EXPECT_THAT(most_in_flight(programs[stage]),
                    Le(2 * std::min(micro_batches, 2 * (stages - 1 - stage) + 1)));
      }
      style.order = Order::kMixed;
      const std::vector<Program> mixed = pipeline_programs(style);
      for (int stage = 0; stage < stages; ++stage)
        EXPECT_THAT(most_in_flight(mixed[stage]), Le(2 * std::min(micro_batches, stages - stage)));
    }
  }
}

/// A style of tiny nano-batches, two in a micro-batch where the overlap mode plays pairs.
PipelineStyle small_style(int stages, int micro_batches, Overlap overlap) {
  const int nano_batches = overlap == Overlap::kPingPong ? 2 * micro_batches : micro_batches;
  std::vector<std::vector<int64_t>> lengths(nano_batches, {9, 5});
  return {.layers = layers_of(stages, micro_batches % 2 == 0),
          .lengths = std::move(lengths),
          .overlap = overlap};
}

TEST(Pipeline, the_ticks_of_all_ranks_are_micro_batches_and_stages_less_one_each_way) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
      const std::vector<Tick> ticks = aligned_ticks(stages, micro_batches, /*trains=*/true);
      const Overlap overlap = kOverlaps[(stages + micro_batches) % std::size(kOverlaps)].overlap;
      std::array<std::set<int>, 2> seen;  // [pass]
      std::map<uint32_t, int> of_tags;
      for (const Program& program :
           pipeline_programs(small_style(stages, micro_batches, overlap))) {
        for (const Op& op : program.ops) {
          ASSERT_EQ(op.tick >= 0, op.nano_batch >= 0 || op.exchange >= 0) << describe(op);
          if (op.tick < 0) continue;
          seen[static_cast<size_t>(op.pass)].insert(op.tick);
          if (op.stream == Stream::kComm) {
            ASSERT_EQ(of_tags.emplace(op.tag, op.tick).first->second, op.tick) << describe(op);
          }
          if (op.stream == Stream::kComm || op.nano_batch < 0) continue;
          ASSERT_EQ(ticks.at(op.tick).stages[program.stage.index],
                    (TickStage{.micro_batch = op.micro_batch, .pass = op.pass}))
              << describe(op);
        }
      }
      for (const std::set<int>& of_pass : seen)
        EXPECT_THAT(of_pass, SizeIs(micro_batches + stages - 1));
      seen[0].merge(seen[1]);
      EXPECT_THAT(seen[1], IsEmpty()) << "a tick of both passes";
    }
  }
}

TEST(Pipeline, without_a_pipeline_there_are_no_ticks) {
  const StepExchanges step = plan_step(uneven_lengths(2), Cluster::in_place(2));
  for (const Program& program : programs_of(step, {})) {
    for (const Op& op : program.ops) EXPECT_EQ(op.tick, -1) << describe(op);
  }
}

TEST(Pipeline, one_stage_is_todays_program) {
  for (const OverlapName& overlap : kOverlaps) {
    for (const int nano_batches : {1, 2, 3, 4}) {
      const auto lengths = uneven_lengths(nano_batches);
      const std::vector<Program> ticks = pipeline_programs(
          {.layers = {3}, .lengths = lengths, .replicas = 1, .overlap = overlap.overlap});
      const StepExchanges step = plan_step(lengths, Cluster::in_place(1));
      const Program today =
          program_of(step, 0, {.overlap = overlap.overlap, .redispatched = true, .num_layers = 3});
      EXPECT_EQ(order_of(ticks[0]), order_of(today));
      for (size_t i = 0; i < std::min(today.ops.size(), ticks[0].ops.size()); ++i) {
        EXPECT_EQ(ticks[0].ops[i].wait_for, today.ops[i].wait_for) << describe(today.ops[i]);
        EXPECT_EQ(ticks[0].ops[i].wait_sends, today.ops[i].wait_sends) << describe(today.ops[i]);
        EXPECT_EQ(ticks[0].ops[i].tag, today.ops[i].tag) << describe(today.ops[i]);
      }
    }
  }
}

TEST(Pipeline, a_stage_without_a_micro_batch_serves_attention_alone) {
  const std::vector<Program> programs =
      pipeline_programs({.lengths = {{2000, 300}, {700, 900, 40}}, .overlap = Overlap::kNone});
  EXPECT_EQ(
      order_of(programs[0]),
      "embed a, pre_attention 0a, dispatch 0a, core_attention 0a, combine 0a, post_attention 0a, "
      "p2p> a, "
      "embed b, pre_attention 0b, dispatch 0b, core_attention 0b, combine 0b, post_attention 0b, "
      "p2p> b, "
      "redispatch', dispatch', core_attention', combine', p2p< a', "
      "dispatch, core_attention, combine, "
      "post_attention 0a', redispatch 0a', dispatch 0a', core_attention 0a', combine 0a', "
      "pre_attention 0a', embed a', p2p< b', "
      "post_attention 0b', redispatch 0b', dispatch 0b', core_attention 0b', combine 0b', "
      "pre_attention 0b', embed b', grad_norm, optimizer");
  EXPECT_EQ(
      order_of(programs[1]),
      "dispatch, core_attention, combine, p2p< a, "
      "pre_attention 1a, dispatch 1a, core_attention 1a, combine 1a, post_attention 1a, loss a, "
      "p2p< b, "
      "loss a', post_attention 1a', redispatch 1a', dispatch 1a', core_attention 1a', combine 1a', "
      "pre_attention 1a', p2p> a', "
      "pre_attention 1b, dispatch 1b, core_attention 1b, combine 1b, post_attention 1b, loss b, "
      "loss b', post_attention 1b', redispatch 1b', dispatch 1b', core_attention 1b', combine 1b', "
      "pre_attention 1b', p2p> b', "
      "redispatch', dispatch', core_attention', combine', grad_norm, optimizer");
}

TEST(Pipeline, a_dedicated_server_serves_every_tick) {
  const std::vector<Program> programs =
      pipeline_programs({.lengths = uneven_lengths(2), .dedicated = 1, .overlap = Overlap::kNone});
  const std::string forward = "dispatch, core_attention, combine",
                    backward = "redispatch', dispatch', core_attention', combine'";
  EXPECT_EQ(order_of(programs[2]), fmt::format("{0}, {0}, {1}, {0}, {1}, {1}", forward, backward));
  EXPECT_TRUE(programs[2].p2p_messages.empty());
}

TEST(Pipeline, a_stage_with_fewer_layers_serves_the_layer_steps_that_it_does_not_have) {
  const std::vector<Program> programs = pipeline_programs(
      {.layers = {1, 2}, .lengths = uneven_lengths(2), .overlap = Overlap::kNone});
  // In the second tick: one layer step with a layer of both stages, one of the second stage's.
  EXPECT_THAT(order_of(programs[0]),
              HasSubstr("post_attention 0b, p2p> b, dispatch, core_attention, combine, "));
  EXPECT_THAT(order_of(programs[1]),
              HasSubstr("p2p< a, pre_attention 1a, dispatch 1a, core_attention 1a, combine 1a, "
                        "post_attention 1a, p2p< b, pre_attention 2a, dispatch 2a, "));
}

TEST(Pipeline, stages_of_a_mixed_tick_play_both_passes_beside_each_other) {
  const std::vector<Program> programs = pipeline_programs(
      {.lengths = uneven_lengths(4), .overlap = Overlap::kNone, .order = Order::kMixed});
  EXPECT_THAT(validate(programs), IsEmpty());
  // Stage 0 plays micro-batch 2 forward while stage 1 plays 1 backward.
  EXPECT_THAT(order_of(programs[0]),
              HasSubstr("embed c, pre_attention 0c, dispatch 0c, core_attention 0c, combine 0c, "
                        "post_attention 0c, redispatch', dispatch', core_attention', combine'"));
  EXPECT_THAT(order_of(programs[1]), HasSubstr("loss b', dispatch, core_attention, combine, "
                                               "post_attention 1b', redispatch 1b', "));
}

TEST(Pipeline, attention_at_home_is_1f1b) {
  const std::vector<Program> programs = pipeline_programs(
      {.layers = {1, 1, 1}, .lengths = uneven_lengths(4), .order = Order::kAtHome});
  EXPECT_EQ(layers_played(programs[0]), "0a 0b 0c 0a' 0d 0b' 0c' 0d' ");
  EXPECT_EQ(layers_played(programs[1]), "1a 1b 1a' 1c 1b' 1d 1c' 1d' ");
  EXPECT_EQ(layers_played(programs[2]), "2a 2a' 2b 2b' 2c 2c' 2d 2d' ");
  int64_t sent = 0, p2p = 0;
  for (const Program& program : programs) {
    for (const Op& op : program.ops)
      (op.kind == OpKind::kP2p ? p2p : sent) += program.sends(op).bytes;
  }
  EXPECT_EQ(sent, 0);
  EXPECT_GT(p2p, 0);
}

/// Returns the compute operations between the start of a communication and the first operation that
/// waits for it.
std::vector<Op> computed_under(const Program& program, int32_t i) {
  std::vector<Op> ops;
  for (size_t op = i + 1; op < program.ops.size(); ++op) {
    if (std::ranges::count(program.ops[op].wait_for, i) > 0) break;
    if (program.ops[op].stream == Stream::kCompute) ops.push_back(program.ops[op]);
  }
  return ops;
}

TEST(Pipeline, p2p_messages_travel_under_compute_of_the_other_slot) {
  const std::vector<Program> programs =
      pipeline_programs({.layers = {2, 2, 2, 2}, .lengths = uneven_lengths(10), .replicas = 1});
  int under_a_visit = 0, under_a_phase = 0;
  for (const Program& program : programs) {
    for (int32_t i = 0; i < static_cast<int32_t>(program.ops.size()); ++i) {
      const Op& op = program.ops[i];
      if (op.kind != OpKind::kP2p || !op.is_receive) continue;
      const std::vector<Op> ops = computed_under(program, i);
      const auto attends = std::ranges::count(ops, OpKind::kCoreAttention, &Op::kind);
      const bool under_other = std::ranges::any_of(ops, [&](const Op& other) {
        return other.nano_batch >= 0 && other.nano_batch % 2 != op.nano_batch % 2;
      });
      (attends > 0 ? under_a_visit : under_a_phase) += under_other ? 1 : 0;
      // Behind slot 1's end of a visit begins slot 0. A stage's first nano-batches find it idle.
      const bool is_first = op.pass == Pass::kForward && op.nano_batch < 2;
      EXPECT_TRUE(attends > 0 || under_other || op.nano_batch % 2 == 1 || is_first) << describe(op);
    }
  }
  EXPECT_GT(under_a_visit, 10);
  EXPECT_GT(under_a_phase, 2);
}

// Faults that more than one operation makes.

TEST(PipelineFaults, a_rank_that_does_not_serve_a_tick_is_found) {
  std::vector<Program> programs =
      pipeline_programs({.lengths = uneven_lengths(2), .overlap = Overlap::kNone});
  Program& serves = programs[1];
  std::erase_if(serves.ops, [](const Op& op) { return op.exchange == 0; });
  for (size_t i = 0; i < serves.ops.size(); ++i) {
    const auto before = static_cast<int32_t>(i) - 1;
    const bool communicates = i > 0 && serves.ops[i - 1].stream == Stream::kComm;
    serves.ops[i].wait_for = i > 0 ? std::vector<int32_t>{before} : std::vector<int32_t>{};
    serves.ops[i].wait_sends = communicates ? std::vector<int32_t>{before} : std::vector<int32_t>{};
  }
  EXPECT_THAT(validate(serves), Contains(HasSubstr("exchange 0 is never played")));
  serves.layer_steps[0] = 0;
  EXPECT_THAT(validate(serves), IsEmpty());
  EXPECT_THAT(validate(programs),
              Contains(AllOf(HasSubstr("rank 0:"), HasSubstr("which has no such tag"))));
}

TEST(PipelineFaults, another_order_of_p2p_is_found) {
  std::vector<Program> programs = pipeline_programs({.lengths = uneven_lengths(4)});
  Program& program = programs[1];
  const auto found = std::ranges::find_if(program.ops, [](const Op& op) {
    return op.kind == OpKind::kP2p && op.is_receive && op.nano_batch == 2;
  });
  ASSERT_NE(found, program.ops.end());
  // Behind the next dispatch, which does not depend on it.
  const auto moved = static_cast<int32_t>(found - program.ops.begin());
  const auto next = std::find_if(found, program.ops.end(),
                                 [](const Op& op) { return op.kind == OpKind::kDispatch; });
  const auto place = static_cast<int32_t>(next - program.ops.begin());
  std::rotate(found, found + 1, next + 1);
  for (Op& op : program.ops) {
    for (std::vector<int32_t>* list : {&op.wait_for, &op.wait_sends}) {
      for (int32_t& other : *list)
        other = other == moved ? place : other > moved && other <= place ? other - 1 : other;
    }
  }
  ASSERT_THAT(validate(program), IsEmpty());
  EXPECT_THAT(validate(programs), Contains(HasSubstr("another order")));
}

TEST(PipelineFaults, stages_that_leave_out_a_layer_or_play_it_twice_are_found) {
  for (const int64_t moved : {-1, 1}) {
    std::vector<Program> programs =
        pipeline_programs({.layers = {2, 2}, .lengths = uneven_lengths(2)});
    Program& program = programs[1];
    program.stage.layers = {2 + moved, 4 + moved};
    for (Op& op : program.ops) op.layer += op.layer >= 0 ? static_cast<int>(moved) : 0;
    ASSERT_THAT(validate(program), IsEmpty());
    EXPECT_THAT(validate(programs),
                Contains(HasSubstr(fmt::format("stage 1 of 2 has layers {} to", 2 + moved))));
  }
}

TEST(PipelineFaults, other_bytes_to_the_next_stage_are_found) {
  std::vector<Program> programs = pipeline_programs({.lengths = uneven_lengths(2)});
  programs[1].p2p_messages[0].with_previous.messages[0].bytes -= 4;
  programs[1].p2p_messages[0].with_previous.bytes -= 4;
  EXPECT_THAT(validate(programs), Contains(AllOf(HasSubstr("p2p (send) of nano-batch 0"),
                                                 HasSubstr("which receives"))));
}

}  // namespace
}  // namespace distca::testing
