// From valid programs of pipelines, one operation or one wait is taken away: the validator of all
// ranks finds it. A wait may go unnoticed only where the other waits say the same.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "distca/program/pipeline_testing.h"
#include "distca/program/validate/validate.h"
#include "distca/program/validate/validate_checks.h"

namespace distca::testing {
namespace {

using ::testing::IsEmpty;

/// Without operation `gone`; who waited for it waits for what it waited for.
void erase(Program& program, int32_t gone) {
  const Op op = program.ops[gone];
  program.ops.erase(program.ops.begin() + gone);
  for (Op& other : program.ops) {
    for (std::vector<int32_t>* list : {&other.wait_for, &other.wait_sends}) {
      if (std::erase(*list, gone) > 0) {
        const std::vector<int32_t>& inherited =
            list == &other.wait_for ? op.wait_for : op.wait_sends;
        list->insert(list->end(), inherited.begin(), inherited.end());
      }
      for (int32_t& index : *list) index -= index > gone ? 1 : 0;
    }
  }
}

/// Returns true if some rank's fault is found with this program in place of that of `rank`.
bool is_found(std::vector<Program>& programs, int rank, Program changed) {
  std::swap(programs[rank], changed);
  // A fault within one program is found without the others.
  const bool found = !validate(programs[rank]).empty() || !validate(programs).empty();
  std::swap(programs[rank], changed);
  return found;
}

/// Returns true if the program is another one without the operation. There is one exception: Q, K,
/// V that are sent again but go nowhere, where backward has them from forward, in the same
/// exchange.
bool is_missed(const Program& program, const Op& op) {
  return op.kind != OpKind::kRedispatch || !program.sends(op).empty() ||
         !program.receives(op).empty() || std::ranges::none_of(program.ops, [&](const Op& other) {
           return other.kind == OpKind::kDispatch && other.pass == Pass::kForward &&
                  other.exchange == op.exchange;
         });
}

/// Takes each operation away in turn.
int drop_operations(std::vector<Program>& programs) {
  int dropped = 0;
  for (int rank = 0; rank < static_cast<int>(programs.size()); ++rank) {
    for (int32_t i = 0; i < static_cast<int32_t>(programs[rank].ops.size()); ++i) {
      if (!is_missed(programs[rank], programs[rank].ops[i])) continue;
      Program changed = programs[rank];
      erase(changed, i);
      EXPECT_TRUE(is_found(programs, rank, std::move(changed)))
          << "rank " << rank << " without " << numbered(programs[rank], i);
      ++dropped;
    }
  }
  return dropped;
}

/// Returns true if the program's waits let `op` begin only after `other` is over, or, with `sends`,
/// after its sends have left.
bool is_over(const Program& program, int32_t op, int32_t other, bool sends) {
  const ProgramOrder order(program);
  if (sends) return order.left(other, op);
  return program.ops[other].stream == Stream::kCompute ? order.ended(other, op)
                                                       : order.landed(other, op);
}

/// visit(program, op, other, sends) for every wait of all programs.
template <typename Visitor>
void for_each_wait(std::vector<Program>& programs, const Visitor& visit) {
  for (int rank = 0; rank < static_cast<int>(programs.size()); ++rank) {
    for (int32_t i = 0; i < static_cast<int32_t>(programs[rank].ops.size()); ++i) {
      for (const bool sends : {false, true}) {
        const Op& op = programs[rank].ops[i];
        const std::vector<int32_t> waits = sends ? op.wait_sends : op.wait_for;
        for (const int32_t other : waits) visit(rank, i, other, sends);
      }
    }
  }
}
Program without_wait(const Program& program, int32_t op, int32_t other, bool sends) {
  Program changed = program;
  std::erase(sends ? changed.ops[op].wait_sends : changed.ops[op].wait_for, other);
  return changed;
}

/// Takes away, for good, what the waits that are left say anyway. All that was waited for is still.
int drop_implied_waits(std::vector<Program>& programs) {
  const std::vector<Program> before = programs;
  int implied = 0;
  for_each_wait(programs, [&](int rank, int32_t op, int32_t other, bool sends) {
    Program changed = without_wait(programs[rank], op, other, sends);
    if (!is_over(changed, op, other, sends)) return;
    programs[rank] = std::move(changed);
    ++implied;
  });
  std::vector<Program> all = before;
  for_each_wait(all, [&](int rank, int32_t op, int32_t other, bool sends) {
    EXPECT_TRUE(is_over(programs[rank], op, other, sends)) << numbered(before[rank], op);
  });
  return implied;
}

/// Takes each wait away in turn.
int drop_waits(std::vector<Program>& programs) {
  int dropped = 0;
  for_each_wait(programs, [&](int rank, int32_t op, int32_t other, bool sends) {
    EXPECT_TRUE(is_found(programs, rank, without_wait(programs[rank], op, other, sends)))
        << "rank " << rank << ": " << numbered(programs[rank], op) << " without its wait for "
        << (sends ? "the sends of " : "") << numbered(programs[rank], other);
    ++dropped;
  });
  return dropped;
}

void expect_all_found(const PipelineStyle& style) {
  std::vector<Program> programs = pipeline_programs(style);
  ASSERT_THAT(validate(programs), IsEmpty());
  const int operations = drop_operations(programs);
  // Under `none`, operations wait for more than they need.
  if (style.overlap == Overlap::kNone) return;
  const int implied = drop_implied_waits(programs);
  ASSERT_THAT(validate(programs), IsEmpty()) << implied << " waits were implied by others";
  EXPECT_GT(drop_waits(programs), operations / 2);
}

TEST(PipelineMutation, nothing_can_be_taken_from_small_pipelines) {
  for (const std::vector<int64_t>& layers :
       {std::vector<int64_t>{1, 1}, {2, 1}, {1, 1, 2}, {1, 1, 1, 1}}) {
    for (const OverlapName& overlap : kOverlaps) {
      for (const Order order : {Order::kAligned, Order::kMixed, Order::kAtHome}) {
        expect_all_found({.layers = layers,
                          .lengths = uneven_lengths(layers.size() == 2 ? 5 : 3),
                          .overlap = overlap.overlap,
                          .order = order});
      }
    }
  }
}
TEST(PipelineMutation, nothing_can_be_taken_from_weight_gradients_that_wait) {
  for (const OverlapName& overlap : kOverlaps) {
    for (const Order order : {Order::kAligned, Order::kMixed, Order::kAtHome}) {
      for (const int outstanding : {1, 2}) {
        const PipelineStyle style{.layers = {2, 1, 1},
                                  .lengths = uneven_lengths(5),
                                  .overlap = overlap.overlap,
                                  .order = order,
                                  .outstanding = outstanding,
                                  .gradients = {.bucket_elements = 640}};
        const auto is_one = [](const Op& op) { return op.kind == OpKind::kWeightGradient; };
        for (const Program& program : pipeline_programs(style))
          EXPECT_GT(std::ranges::count_if(program.ops, is_one), 0);
        expect_all_found(style);
      }
    }
  }
}
TEST(PipelineMutation, nothing_can_be_taken_from_ping_pong) {
  expect_all_found({.layers = {2, 1}, .lengths = uneven_lengths(5), .replicas = 1, .dedicated = 1});
}
TEST(PipelineMutation, nothing_can_be_taken_from_three_stages) {
  expect_all_found(
      {.layers = {1, 2, 1},
       .lengths = uneven_lengths(3),
       .overlap = Overlap::kWithin,
       .types = {.compute = ScalarType::kBFloat16, .gradient = ScalarType::kBFloat16}});
}
TEST(PipelineMutation, nothing_can_be_taken_from_a_mixed_order) {
  expect_all_found({.lengths = uneven_lengths(8), .order = Order::kMixed});
}
TEST(PipelineMutation, nothing_can_be_taken_from_sums_of_gradients) {
  for (const bool distributed : {false, true}) {
    expect_all_found({.lengths = uneven_lengths(4),
                      .replicas = 2,
                      .gradients = {.bucket_elements = 640, .distributed_optimizer = distributed}});
  }
}
TEST(PipelineMutation, nothing_can_be_taken_from_sums_of_what_two_stages_tie) {
  for (const bool distributed : {false, true}) {
    for (const int replicas : {1, 2}) {
      expect_all_found(
          {.layers = {1, 1, 1},
           .lengths = uneven_lengths(2),
           .replicas = replicas,
           .gradients = {
               .bucket_elements = 80, .distributed_optimizer = distributed, .ties = true}});
    }
  }
}
TEST(PipelineMutation, nothing_can_be_taken_from_phases_that_ranks_divide) {
  for (const std::vector<int64_t>& layers : {std::vector<int64_t>{2}, {1, 2}}) {
    for (const OverlapName& overlap : kOverlaps) {
      for (const Order order : {Order::kAligned, Order::kMixed, Order::kAtHome}) {
        for (const int outstanding : {0, 1}) {
          expect_all_found({.layers = layers,
                            .lengths = uneven_lengths(3),
                            .replicas = layers.size() == 1 ? 2 : 1,
                            .tensor = 2,
                            .overlap = overlap.overlap,
                            .order = order,
                            .outstanding = outstanding,
                            .gradients = {.bucket_elements = 640, .ties = true}});
        }
      }
    }
  }
}
TEST(PipelineMutation, nothing_can_be_taken_from_attention_at_home) {
  expect_all_found({.layers = {1, 1, 1},
                    .lengths = uneven_lengths(4),
                    .replicas = 2,
                    .overlap = Overlap::kWithin,
                    .order = Order::kAtHome});
}
TEST(PipelineMutation, nothing_can_be_taken_from_one_stage) {
  expect_all_found({.layers = {2}, .lengths = uneven_lengths(3), .replicas = 2, .dedicated = 1});
}
TEST(PipelineMutation, nothing_can_be_taken_from_evaluation) {
  expect_all_found(
      {.layers = {2, 2}, .lengths = uneven_lengths(4), .kind = ProgramRequest::Kind::kEvaluate});
}

}  // namespace
}  // namespace distca::testing
