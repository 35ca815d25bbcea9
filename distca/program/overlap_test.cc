#include "distca/program/overlap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "distca/base/error.h"
#include "distca/program/program_testing.h"
#include "distca/program/validate/validate.h"

namespace distca::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Pool {
  int workers, dedicated;
  bool in_place;
};
constexpr Pool kPools[] = {{1, 0, true},  {2, 0, true},  {3, 0, true},  {7, 0, true}, {1, 1, true},
                           {1, 1, false}, {2, 1, true},  {2, 1, false}, {2, 2, true}, {2, 2, false},
                           {3, 1, true},  {3, 2, false}, {7, 1, true},  {7, 2, false}};

/// Document lengths of each nano-batch.
const std::vector<std::vector<std::vector<int64_t>>> kSteps = {
    {{2000, 300, 100}},
    {{2000, 300, 100}, {1500, 900, 700, 40}},
    {{5000}, {130, 260, 390, 7}, {2000, 300, 100, 77}},
    {{3000, 500}, {}},       // an empty partner
    {{}, {3000, 500}, {1}},  // one token
};

/// By tag, in the order of the list: diagnoses take a rank with fewer for one that is behind.
std::vector<uint32_t> exchanges_of(const Program& program) {
  std::vector<uint32_t> tags;
  for (const Op& op : program.ops) {
    if (op.stream == Stream::kComm) tags.push_back(op.tag);
  }
  return tags;
}

/// Every type and keys for one step.
void expect_valid(const StepExchanges& step, Overlap overlap, ProgramRequest::Kind kind) {
  for (const bool redispatched : {false, true}) {
    for (const ScalarType gradient : {ScalarType::kBFloat16, ScalarType::kFloat32}) {
      const Style style{.overlap = overlap,
                        .redispatched = redispatched,
                        .kind = kind,
                        .num_layers = 3,
                        .types = {.compute = ScalarType::kBFloat16, .gradient = gradient}};
      const std::vector<Program> programs = programs_of(step, style);
      const std::string what =
          fmt::format("{}, {} ranks, {} nano-batches, redispatched {}", overlap_name(overlap),
                      step.num_ranks(), step.plans.size(), redispatched);
      EXPECT_THAT(validate(programs), IsEmpty()) << what;
      for (const Program& program : programs) {
        EXPECT_EQ(exchanges_of(program), exchanges_of(programs[0])) << what;
      }
    }
  }
}

TEST(Overlap, every_program_is_valid_and_all_ranks_start_the_same_exchanges) {
  int with_messages = 0;
  for (const Pool& shape : kPools) {
    for (const auto& lengths : kSteps) {
      for (const bool split_kv : {false, true}) {
        const StepExchanges step =
            plan_step(lengths, pool(shape.workers, shape.dedicated, shape.in_place),
                      {.scheduler = "balanced", .split_kv = split_kv});
        with_messages += step.of_ranks[0][0].sends.empty() ? 0 : 1;
        for (const OverlapName& overlap : kOverlaps) {
          expect_valid(step, overlap.overlap, ProgramRequest::Kind::kTrain);
          expect_valid(step, overlap.overlap, ProgramRequest::Kind::kEvaluate);
        }
      }
    }
  }
  EXPECT_GT(with_messages, 50);
}

const StepExchanges& two_workers(int nano_batches) {
  static const std::vector<StepExchanges> steps = [] {
    std::vector<StepExchanges> result;
    std::vector<std::vector<int64_t>> lengths;
    for (int i = 0; i < 4; ++i) {
      lengths.push_back({2000 + 100 * i, 300, 250, 100});
      result.push_back(plan_step(lengths, Cluster::in_place(2)));
    }
    return result;
  }();
  return steps[nano_batches - 1];
}

std::string ordered(Overlap overlap, int nano_batches, bool redispatched = false) {
  return order_of(
      program_of(two_workers(nano_batches), 0, {.overlap = overlap, .redispatched = redispatched}));
}

TEST(Overlap, ping_pong_is_the_papers_figure_7) {
  EXPECT_EQ(ordered(Overlap::kPingPong, 2),
            "embed a, pre_attention 0a, dispatch 0a, embed b, pre_attention 0b, dispatch 0b, "
            "core_attention 0a, combine 0a, core_attention 0b, combine 0b, "
            "post_attention 0a, pre_attention 1a, dispatch 1a, post_attention 0b, pre_attention "
            "1b, dispatch 1b, "
            "core_attention 1a, combine 1a, core_attention 1b, combine 1b, "
            "post_attention 1a, loss a, loss a', post_attention 1a', dispatch 1a', "
            "post_attention 1b, loss b, loss b', post_attention 1b', dispatch 1b', "
            "core_attention 1a', combine 1a', core_attention 1b', combine 1b', "
            "pre_attention 1a', post_attention 0a', dispatch 0a', pre_attention 1b', "
            "post_attention 0b', dispatch 0b', "
            "core_attention 0a', combine 0a', core_attention 0b', combine 0b', "
            "pre_attention 0a', embed a', pre_attention 0b', embed b', grad_norm, optimizer");
}

TEST(Overlap, ping_pongs_next_pair_begins_while_the_last_one_ends) {
  EXPECT_THAT(ordered(Overlap::kPingPong, 4),
              HasSubstr("core_attention 0a', combine 0a', core_attention 0b', combine 0b', "
                        "pre_attention 0a', embed a', embed c, pre_attention 0c, dispatch 0c, "
                        "pre_attention 0b', embed b', embed d, pre_attention 0d, dispatch 0d, "
                        "core_attention 0c, "));
}

TEST(Overlap, ping_pong_sends_keys_again_as_soon_as_their_buffer_is_free) {
  const std::string order = ordered(Overlap::kPingPong, 2, /*redispatched=*/true);
  EXPECT_THAT(order, HasSubstr("core_attention 1a, combine 1a, redispatch 1a', core_attention 1b, "
                               "combine 1b, redispatch 1b', "
                               "post_attention 1a, loss a"));
  EXPECT_THAT(order,
              HasSubstr("core_attention 1a', combine 1a', redispatch 0a', core_attention 1b', "));
}

TEST(Overlap, the_last_of_an_odd_number_is_played_as_within_does) {
  const std::string order = ordered(Overlap::kPingPong, 3);
  EXPECT_THAT(order, HasSubstr("pre_attention 0b', embed b', core_attention(home, first half) 0c, "
                               "core_attention(away) 0c, "
                               "combine 0c, core_attention(home, rest) 0c, post_attention 0c, "
                               "pre_attention 1c, dispatch 1c, "));
  const Program program = program_of(two_workers(3), 0, {.overlap = Overlap::kPingPong});
  for (const Op& op : program.ops) {
    EXPECT_EQ(op.micro_batch, op.nano_batch < 0 ? -1 : op.nano_batch / 2) << describe(op);
  }
}

TEST(Overlap, within_is_one_nano_batch_in_parts) {
  EXPECT_EQ(ordered(Overlap::kWithin, 1),
            "embed a, pre_attention 0a, dispatch 0a, "
            "core_attention(home, first half) 0a, core_attention(away) 0a, combine 0a, "
            "core_attention(home, rest) 0a, "
            "post_attention 0a, pre_attention 1a, dispatch 1a, "
            "core_attention(home, first half) 1a, core_attention(away) 1a, combine 1a, "
            "core_attention(home, rest) 1a, "
            "post_attention 1a, loss a, loss a', post_attention 1a', dispatch 1a', "
            "core_attention(home, first half) 1a', core_attention(away) 1a', combine 1a', "
            "core_attention(home, rest) 1a', "
            "pre_attention 1a', post_attention 0a', dispatch 0a', "
            "core_attention(home, first half) 0a', core_attention(away) 0a', combine 0a', "
            "core_attention(home, rest) 0a', "
            "pre_attention 0a', embed a', grad_norm, optimizer");
}

TEST(Overlap, evaluation_has_no_backward) {
  const Program program = program_of(
      two_workers(2), 0, {.overlap = Overlap::kPingPong, .kind = ProgramRequest::Kind::kEvaluate});
  for (const Op& op : program.ops) EXPECT_EQ(op.pass, Pass::kForward) << describe(op);
  EXPECT_THAT(order_of(program), HasSubstr("post_attention 1a, loss a, post_attention 1b, loss b"));
}

TEST(Overlap, none_waits_for_each_operation_before_the_next) {
  const Program program =
      program_of(two_workers(2), 0, {.overlap = Overlap::kNone, .redispatched = true});
  for (int i = 1; i < static_cast<int>(program.ops.size()); ++i) {
    EXPECT_THAT(program.ops[i].wait_for, ElementsAre(i - 1));
    const bool after_exchange = program.ops[i - 1].stream == Stream::kComm;
    EXPECT_EQ(program.ops[i].wait_sends.size(), after_exchange ? 1u : 0u);
  }
}

TEST(Overlap, a_dedicated_server_exchanges_and_attends_only) {
  const StepExchanges step = plan_step({{2000, 300}, {1500, 900}}, pool(2, 1, false));
  const Program program = program_of(step, 2, {.overlap = Overlap::kPingPong});
  EXPECT_EQ(
      order_of(program),
      "dispatch 0a, dispatch 0b, core_attention 0a, combine 0a, core_attention 0b, combine 0b, "
      "dispatch 1a, dispatch 1b, "
      "core_attention 1a, combine 1a, core_attention 1b, combine 1b, dispatch 1a', dispatch 1b', "
      "core_attention 1a', combine 1a', core_attention 1b', combine 1b', dispatch 0a', dispatch "
      "0b', "
      "core_attention 0a', combine 0a', core_attention 0b', combine 0b'");
  for (const Op& op : program.ops) {
    if (op.kind != OpKind::kDispatch || op.pass == Pass::kBackward) continue;
    EXPECT_THAT(op.wait_for, IsEmpty()) << "kept keys have buffers of their own: " << describe(op);
  }
}

/// The first operation that waits until exchange `i` has landed.
size_t waiter(const Program& program, int32_t i) {
  for (size_t op = i + 1; op < program.ops.size(); ++op) {
    const std::vector<int32_t>& waits = program.ops[op].wait_for;
    if (std::find(waits.begin(), waits.end(), i) != waits.end()) return op;
  }
  return program.ops.size();
}

TEST(Overlap, every_exchange_of_ping_pong_runs_under_compute_of_the_other_nano_batch) {
  for (const bool redispatched : {false, true}) {
    const Program program = program_of(two_workers(4), 0, {.redispatched = redispatched});
    int checked = 0;
    for (int32_t i = 0; i < static_cast<int32_t>(program.ops.size()); ++i) {
      const Op& exchange = program.ops[i];
      if (program.receives(exchange).empty()) continue;
      int under = 0;
      for (size_t op = i + 1; op < waiter(program, i); ++op) {
        const Op& other = program.ops[op];
        if (other.stream == Stream::kCompute && other.kind != OpKind::kEmbed &&
            other.nano_batch % 2 != exchange.nano_batch % 2) {
          ++under;
        }
      }
      EXPECT_GE(under, 1) << describe(exchange);
      ++checked;
    }
    EXPECT_GE(checked, redispatched ? 30 : 22);
  }
}

TEST(Overlap, exchanges_of_within_run_under_tasks_at_home) {
  const StepExchanges& step = two_workers(2);
  int checked = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const Program program = program_of(step, rank, {.overlap = Overlap::kWithin});
    for (int32_t i = 0; i < static_cast<int32_t>(program.ops.size()); ++i) {
      const Op& exchange = program.ops[i];
      if (program.receives(exchange).empty()) continue;
      const AttentionExchange& part = *program.exchanges[exchange.exchange];
      const bool has_rest = !part.tasks_of(TaskSet::kHomeRest).empty();
      if (exchange.kind == OpKind::kCombine && !has_rest) continue;
      bool under_home = false;
      for (size_t op = i + 1; op < waiter(program, i); ++op) {
        under_home = under_home || program.ops[op].tasks == TaskSet::kHomeFirst ||
                     program.ops[op].tasks == TaskSet::kHomeRest;
      }
      const bool has_home = !part.tasks_of(TaskSet::kHomeFirst).empty();
      EXPECT_EQ(under_home, has_home) << describe(exchange);
      checked += has_home ? 1 : 0;
    }
  }
  EXPECT_GE(checked, 12);
}

TEST(Overlap, buffers_do_not_grow_with_layers_but_for_kept_keys) {
  const auto buffers = [](int layers, bool redispatched) {
    return program_of(two_workers(4), 0, {.redispatched = redispatched, .num_layers = layers})
        .buffers;
  };
  EXPECT_EQ(buffers(2, true), buffers(9, true));
  const std::vector<Buffer> two = buffers(2, false), nine = buffers(9, false);
  EXPECT_EQ(nine.size() - two.size(), 2u * 7u) << "a slot and layer";
  for (const Buffer& buffer : nine) EXPECT_THAT(buffer.bytes, Gt(0));
}

TEST(Overlap, tags_differ_within_a_step_and_agree_between_ranks) {
  std::vector<std::set<uint32_t>> tags(2);
  for (int rank = 0; rank < 2; ++rank) {
    for (const Op& op : program_of(two_workers(3), rank, {.redispatched = true}).ops) {
      if (op.stream == Stream::kComm) {
        EXPECT_TRUE(tags[rank].insert(op.tag).second) << describe(op);
        EXPECT_GT(op.tag, 0u);
      }
    }
  }
  EXPECT_EQ(tags[0], tags[1]);
}

TEST(Overlap, each_layer_goes_through_the_exchange_of_its_window) {
  const std::vector<int> windows = {1, 0, 0, 1, 1};
  const std::vector<std::vector<int64_t>> lengths = {{2000, 300, 100}, {1500, 900, 700, 40}, {800}};
  for (const Pool& shape : {Pool{2, 0, true}, Pool{2, 1, false}, Pool{3, 1, true}}) {
    const Cluster cluster = pool(shape.workers, shape.dedicated, shape.in_place);
    const StepExchanges step = plan_step(lengths, cluster, {}, {-1, 199});
    for (const OverlapName& overlap : kOverlaps) {
      for (const bool redispatched : {false, true}) {
        Style style{.overlap = overlap.overlap,
                    .redispatched = redispatched,
                    .num_layers = 5,
                    .gradients = {.bucket_elements = 320},
                    .window_of_layer = windows};
        const std::vector<Program> programs = programs_of(step, style);
        EXPECT_THAT(validate(programs), IsEmpty()) << overlap.name;
        for (const Program& program : programs) {
          EXPECT_THAT(program.layer_steps, ElementsAre(2, 3, 2, 3, 2, 3));
          for (const Op& op : program.ops) {
            if (op.exchange >= 0) {
              EXPECT_EQ(op.exchange, 2 * op.nano_batch + windows[op.layer]) << describe(op);
            }
          }
        }
        style.kind = ProgramRequest::Kind::kEvaluate;
        style.gradients = {};
        EXPECT_THAT(validate(programs_of(step, style)), IsEmpty()) << overlap.name;
      }
    }
  }
}

TEST(Overlap, exchanges_by_window_change_neither_order_nor_buffers) {
  const std::vector<std::vector<int64_t>> lengths = {{2000, 300, 100}, {1500, 900, 700, 40}};
  const StepExchanges one = plan_step(lengths, pool(2, 1, true)),
                      two = plan_step(lengths, pool(2, 1, true), {}, {-1, -1});
  for (const OverlapName& overlap : kOverlaps) {
    for (const bool redispatched : {false, true}) {
      Style style{.overlap = overlap.overlap, .redispatched = redispatched, .num_layers = 4};
      for (int rank = 0; rank < one.num_ranks(); ++rank) {
        style.window_of_layer = {};
        const Program want = program_of(one, rank, style);
        style.window_of_layer = {0, 1, 1, 0};
        const Program got = program_of(two, rank, style);
        EXPECT_EQ(order_of(got), order_of(want)) << overlap.name;
        EXPECT_EQ(got.buffers, want.buffers) << overlap.name;
      }
    }
  }
}

TEST(Overlap, flops_are_those_of_a_training_step) {
  // A Llama step counts 3 x (tokens x weights + pairs x (2 matrix products)) as LlamaConfig does;
  // attention's backward has 5 products to forward's 2, not 4.
  const StepExchanges& step = two_workers(2);
  for (const OverlapName& overlap : kOverlaps) {
    double linear = 0, attention = 0;
    for (int rank = 0; rank < 2; ++rank) {
      for (const Op& op : program_of(step, rank, {.overlap = overlap.overlap}).ops) {
        (op.kind == OpKind::kCoreAttention ? attention : linear) += op.flops;
      }
    }
    const double tokens = 2650 + 2750, q = 4 * 16, k = 2 * 16, v = 2 * 8, o = 4 * 8;
    const double layer = 2.0 * 64 * (q + k + v + o + 3 * 96), head = 2.0 * 64 * 100;
    EXPECT_DOUBLE_EQ(linear, 3.0 * tokens * (2 * layer + head)) << overlap.name;
    double pairs = 0;
    for (const auto& plan : step.plans) {
      for (const Document& document : plan->nano_batch.documents) {
        pairs += static_cast<double>(document.length * (document.length + 1) / 2);
      }
    }
    EXPECT_NEAR(attention, 3.5 * pairs * 2 * 2 * (q + o), 1e-6 * attention) << overlap.name;
  }
}

TEST(Overlap, exchanges_run_under_what_the_planner_takes_them_to) {
  EXPECT_EQ(overlap_model_of(Overlap::kNone), OverlapModel::kNothing);
  EXPECT_EQ(overlap_model_of(Overlap::kWithin), OverlapModel::kHomeTasks);
  EXPECT_EQ(overlap_model_of(Overlap::kPingPong), OverlapModel::kOtherNanoBatch);
  EXPECT_EQ(overlap_model_of(Overlap::kPingPong, 1), OverlapModel::kHomeTasks) << "no other one";
}

TEST(Overlap, modes_have_names) {
  for (const OverlapName& known : kOverlaps) EXPECT_EQ(overlap_name(known.overlap), known.name);
}

}  // namespace
}  // namespace distca::testing
