#include "distca/program/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "distca/base/error.h"
#include "distca/program/program_testing.h"
#include "distca/program/validate.h"

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

/// By tag, in the order of the list: verdicts take a rank with fewer for one that is behind.
std::vector<uint32_t> exchanges_of(const Program& program) {
  std::vector<uint32_t> tags;
  for (const Op& op : program.ops) {
    if (op.stream == Stream::kComm) tags.push_back(op.tag);
  }
  return tags;
}

/// Every type and keys for one step.
void expect_valid(const StepExchanges& step, Schedule schedule, ProgramRequest::Kind kind) {
  for (const bool resent : {false, true}) {
    for (const ScalarType gradient : {ScalarType::kBFloat16, ScalarType::kFloat32}) {
      const Style style{.schedule = schedule,
                        .resent = resent,
                        .kind = kind,
                        .num_layers = 3,
                        .types = {.compute = ScalarType::kBFloat16, .gradient = gradient}};
      const std::vector<Program> programs = programs_of(step, style);
      const std::string what =
          fmt::format("{}, {} ranks, {} nano-batches, resent {}", schedule_names()[int(schedule)],
                      step.num_ranks(), step.plans.size(), resent);
      EXPECT_THAT(validate(programs), IsEmpty()) << what;
      for (const Program& program : programs) {
        EXPECT_EQ(exchanges_of(program), exchanges_of(programs[0])) << what;
      }
    }
  }
}

TEST(Schedule, every_program_is_valid_and_all_ranks_start_the_same_exchanges) {
  int with_messages = 0;
  for (const Pool& shape : kPools) {
    for (const auto& lengths : kSteps) {
      for (const bool key_sub_ranges : {false, true}) {
        const StepExchanges step =
            plan_step(lengths, pool(shape.workers, shape.dedicated, shape.in_place),
                      {.scheduler = "balanced", .key_sub_ranges = key_sub_ranges});
        with_messages += step.of_ranks[0][0].sends.empty() ? 0 : 1;
        for (const ScheduleName& schedule : kSchedules) {
          expect_valid(step, schedule.schedule, ProgramRequest::Kind::kTrain);
          expect_valid(step, schedule.schedule, ProgramRequest::Kind::kEvaluate);
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

std::string ordered(Schedule schedule, int nano_batches, bool resent = false) {
  return order_of(
      program_of(two_workers(nano_batches), 0, {.schedule = schedule, .resent = resent}));
}

TEST(Schedule, ping_pong_is_the_papers_figure_7) {
  EXPECT_EQ(ordered(Schedule::kPingPong, 2),
            "embed a, pre 0a, enter 0a, embed b, pre 0b, enter 0b, "
            "attend 0a, leave 0a, attend 0b, leave 0b, "
            "post 0a, pre 1a, enter 1a, post 0b, pre 1b, enter 1b, "
            "attend 1a, leave 1a, attend 1b, leave 1b, "
            "post 1a, loss a, loss a', post 1a', enter 1a', "
            "post 1b, loss b, loss b', post 1b', enter 1b', "
            "attend 1a', leave 1a', attend 1b', leave 1b', "
            "pre 1a', post 0a', enter 0a', pre 1b', post 0b', enter 0b', "
            "attend 0a', leave 0a', attend 0b', leave 0b', "
            "pre 0a', embed a', pre 0b', embed b', gradient_sum, optimizer");
}

TEST(Schedule, ping_pongs_next_pair_begins_while_the_last_one_ends) {
  EXPECT_THAT(ordered(Schedule::kPingPong, 4),
              HasSubstr("attend 0a', leave 0a', attend 0b', leave 0b', "
                        "pre 0a', embed a', embed c, pre 0c, enter 0c, "
                        "pre 0b', embed b', embed d, pre 0d, enter 0d, attend 0c, "));
}

TEST(Schedule, ping_pong_sends_keys_again_as_soon_as_their_buffer_is_free) {
  const std::string order = ordered(Schedule::kPingPong, 2, /*resent=*/true);
  EXPECT_THAT(order, HasSubstr("attend 1a, leave 1a, resend 1a', attend 1b, leave 1b, resend 1b', "
                               "post 1a, loss a"));
  EXPECT_THAT(order, HasSubstr("attend 1a', leave 1a', resend 0a', attend 1b', "));
}

TEST(Schedule, the_last_of_an_odd_number_is_played_as_overlap_does) {
  const std::string order = ordered(Schedule::kPingPong, 3);
  EXPECT_THAT(order, HasSubstr("pre 0b', embed b', attend(home, first half) 0c, attend(away) 0c, "
                               "leave 0c, attend(home, rest) 0c, post 0c, pre 1c, enter 1c, "));
  const Program program = program_of(two_workers(3), 0, {.schedule = Schedule::kPingPong});
  for (const Op& op : program.ops) {
    EXPECT_EQ(op.micro_batch, op.nano_batch < 0 ? -1 : op.nano_batch / 2) << describe(op);
  }
}

TEST(Schedule, overlap_is_one_nano_batch_in_parts) {
  EXPECT_EQ(ordered(Schedule::kOverlap, 1),
            "embed a, pre 0a, enter 0a, "
            "attend(home, first half) 0a, attend(away) 0a, leave 0a, attend(home, rest) 0a, "
            "post 0a, pre 1a, enter 1a, "
            "attend(home, first half) 1a, attend(away) 1a, leave 1a, attend(home, rest) 1a, "
            "post 1a, loss a, loss a', post 1a', enter 1a', "
            "attend(home, first half) 1a', attend(away) 1a', leave 1a', attend(home, rest) 1a', "
            "pre 1a', post 0a', enter 0a', "
            "attend(home, first half) 0a', attend(away) 0a', leave 0a', attend(home, rest) 0a', "
            "pre 0a', embed a', gradient_sum, optimizer");
}

TEST(Schedule, evaluation_has_no_backward) {
  const Program program =
      program_of(two_workers(2), 0,
                 {.schedule = Schedule::kPingPong, .kind = ProgramRequest::Kind::kEvaluate});
  for (const Op& op : program.ops) EXPECT_EQ(op.pass, Pass::kForward) << describe(op);
  EXPECT_THAT(order_of(program), HasSubstr("post 1a, loss a, post 1b, loss b"));
}

TEST(Schedule, blocking_waits_for_each_operation_before_the_next) {
  const Program program =
      program_of(two_workers(2), 0, {.schedule = Schedule::kBlocking, .resent = true});
  for (int i = 1; i < static_cast<int>(program.ops.size()); ++i) {
    EXPECT_THAT(program.ops[i].deps, ElementsAre(i - 1));
    const bool after_exchange = program.ops[i - 1].stream == Stream::kComm;
    EXPECT_EQ(program.ops[i].sent.size(), after_exchange ? 1u : 0u);
  }
}

TEST(Schedule, a_dedicated_server_exchanges_and_attends_only) {
  const StepExchanges step = plan_step({{2000, 300}, {1500, 900}}, pool(2, 1, false));
  const Program program = program_of(step, 2, {.schedule = Schedule::kPingPong});
  EXPECT_EQ(order_of(program),
            "enter 0a, enter 0b, attend 0a, leave 0a, attend 0b, leave 0b, enter 1a, enter 1b, "
            "attend 1a, leave 1a, attend 1b, leave 1b, enter 1a', enter 1b', "
            "attend 1a', leave 1a', attend 1b', leave 1b', enter 0a', enter 0b', "
            "attend 0a', leave 0a', attend 0b', leave 0b'");
  for (const Op& op : program.ops) {
    if (op.kind != OpKind::kEnter || op.pass == Pass::kBackward) continue;
    EXPECT_THAT(op.deps, IsEmpty()) << "kept keys have buffers of their own: " << describe(op);
  }
}

/// The first operation that waits until exchange `i` has landed.
size_t waiter(const Program& program, int32_t i) {
  for (size_t op = i + 1; op < program.ops.size(); ++op) {
    const std::vector<int32_t>& deps = program.ops[op].deps;
    if (std::find(deps.begin(), deps.end(), i) != deps.end()) return op;
  }
  return program.ops.size();
}

TEST(Schedule, every_exchange_of_ping_pong_runs_under_compute_of_the_other_nano_batch) {
  for (const bool resent : {false, true}) {
    const Program program = program_of(two_workers(4), 0, {.resent = resent});
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
    EXPECT_GE(checked, resent ? 30 : 22);
  }
}

TEST(Schedule, overlaps_exchanges_run_under_tasks_at_home) {
  const StepExchanges& step = two_workers(2);
  int checked = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const Program program = program_of(step, rank, {.schedule = Schedule::kOverlap});
    for (int32_t i = 0; i < static_cast<int32_t>(program.ops.size()); ++i) {
      const Op& exchange = program.ops[i];
      if (program.receives(exchange).empty()) continue;
      const AttentionExchange& part = *program.exchanges[exchange.exchange];
      const bool has_rest = !part.tasks_of(TaskSet::kHomeRest).empty();
      if (exchange.kind == OpKind::kLeave && !has_rest) continue;
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

TEST(Schedule, buffers_do_not_grow_with_layers_but_for_kept_keys) {
  const auto buffers = [](int layers, bool resent) {
    return program_of(two_workers(4), 0, {.resent = resent, .num_layers = layers}).buffers;
  };
  EXPECT_EQ(buffers(2, true), buffers(9, true));
  const std::vector<Buffer> two = buffers(2, false), nine = buffers(9, false);
  EXPECT_EQ(nine.size() - two.size(), 2u * 7u) << "a slot and layer";
  for (const Buffer& buffer : nine) EXPECT_THAT(buffer.bytes, Gt(0));
}

TEST(Schedule, tags_differ_within_a_step_and_agree_between_ranks) {
  std::vector<std::set<uint32_t>> tags(2);
  for (int rank = 0; rank < 2; ++rank) {
    for (const Op& op : program_of(two_workers(3), rank, {.resent = true}).ops) {
      if (op.stream == Stream::kComm) {
        EXPECT_TRUE(tags[rank].insert(op.tag).second) << describe(op);
        EXPECT_GT(op.tag, 0u);
      }
    }
  }
  EXPECT_EQ(tags[0], tags[1]);
}

TEST(Schedule, flops_are_those_of_a_training_step) {
  // A Llama step counts 3 x (tokens x weights + pairs x (2 matrix products)) as LlamaConfig does;
  // attention's backward has 5 products to forward's 2, not 4.
  const StepExchanges& step = two_workers(2);
  for (const ScheduleName& schedule : kSchedules) {
    double linear = 0, attention = 0;
    for (int rank = 0; rank < 2; ++rank) {
      for (const Op& op : program_of(step, rank, {.schedule = schedule.schedule}).ops) {
        (op.kind == OpKind::kAttend ? attention : linear) += op.flops;
      }
    }
    const double tokens = 2650 + 2750, q = 4 * 16, k = 2 * 16, v = 2 * 8, o = 4 * 8;
    const double layer = 2.0 * 64 * (q + k + v + o + 3 * 96), head = 2.0 * 64 * 100;
    EXPECT_DOUBLE_EQ(linear, 3.0 * tokens * (2 * layer + head)) << schedule.name;
    double pairs = 0;
    for (const auto& plan : step.plans) {
      for (const Document& document : plan->nano_batch.documents) {
        pairs += static_cast<double>(document.length * (document.length + 1) / 2);
      }
    }
    EXPECT_NEAR(attention, 3.5 * pairs * 2 * 2 * (q + o), 1e-6 * attention) << schedule.name;
  }
}

TEST(Schedule, exchanges_run_under_what_the_planner_takes_them_to) {
  EXPECT_EQ(hiding_of(Schedule::kBlocking), Hiding::kNothing);
  EXPECT_EQ(hiding_of(Schedule::kOverlap), Hiding::kHomeTasks);
  EXPECT_EQ(hiding_of(Schedule::kPingPong), Hiding::kOtherNanoBatch);
  EXPECT_EQ(hiding_of(Schedule::kPingPong, 1), Hiding::kHomeTasks) << "no other one";
}

TEST(Schedule, names_lead_to_schedules) {
  EXPECT_THAT(schedule_names(), ElementsAre("blocking", "overlap", "ping-pong"));
  for (const ScheduleName& known : kSchedules) EXPECT_EQ(schedule_of(known.name), known.schedule);
  EXPECT_THROW(schedule_of("pong-ping"), CheckFailure);
}

}  // namespace
}  // namespace distca::testing
