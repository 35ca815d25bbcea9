// Programs of ranks that divide the matrices of layers: their messages, their order, and what the
// validator says of wrong ones.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "distca/program/pipeline_testing.h"
#include "distca/program/tensor_rows.h"
#include "distca/program/validate/validate.h"

namespace distca::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(TensorRows, every_row_goes_where_it_is_wanted) {
  for (const int size : {2, 3, 4, 8}) {
    for (const int64_t rows : {0, 1, 2, 3, 7, 8, 41}) {
      int64_t gathered = 0, parts = 0;
      for (int index = 0; index < size; ++index) {
        const TensorRows mine = make_tensor_rows({size, index}, rows, 64);
        gathered += mine.gather_receives.bytes;
        parts += mine.part_sends.bytes;
        EXPECT_EQ(mine.pair_sends.bytes, 2 * mine.gather_sends.bytes);
        EXPECT_EQ(mine.part_receives.bytes, mine.gather_sends.bytes);
        for (const PeerMessage& message : mine.gather_receives.messages) {
          const TensorRows theirs = make_tensor_rows({size, message.peer}, rows, 64);
          EXPECT_EQ(*theirs.gather_sends.with(index),
                    (PeerMessage{index, message.offset, message.bytes}));
          EXPECT_EQ(theirs.part_receives.with(index)->bytes,
                    mine.part_sends.with(message.peer)->bytes);
        }
      }
      EXPECT_EQ(gathered, (size - 1) * rows * 64) << "each rank gets what it has not";
      EXPECT_EQ(parts, (size - 1) * rows * 64);
    }
  }
}

TEST(TensorProgram, every_program_is_valid) {
  int programs = 0;
  for (const int tensor : {2, 3, 4}) {
    for (const std::vector<int64_t>& layers :
         {std::vector<int64_t>{1}, {2}, {1, 1}, {2, 1}, {1, 2, 1}}) {
      for (const OverlapName& overlap : kOverlaps) {
        for (const Order order : {Order::kAligned, Order::kMixed, Order::kAtHome}) {
          for (const auto& [replicas, dedicated] : {std::pair{1, 0}, {2, 1}}) {
            for (const bool distributed : {false, true}) {
              const PipelineStyle style{
                  .layers = layers,
                  .lengths = uneven_lengths(3),
                  .replicas = replicas,
                  .dedicated = order == Order::kAtHome ? 0 : dedicated,
                  .tensor = tensor,
                  .overlap = overlap.overlap,
                  .order = order,
                  .outstanding = 1,
                  .gradients = {
                      .bucket_elements = 640, .distributed_optimizer = distributed, .ties = true}};
              const std::vector<Program> all = pipeline_programs(style);
              ASSERT_THAT(validate(all), IsEmpty())
                  << overlap.name << ", tensor " << tensor << ", " << layers.size() << " stages";
              programs += static_cast<int>(all.size());
            }
          }
        }
      }
    }
  }
  EXPECT_GT(programs, 1000);
}

TEST(TensorProgram, ranks_without_rows_take_part) {
  for (const OverlapName& overlap : kOverlaps) {
    EXPECT_THAT(
        validate(pipeline_programs(
            {.layers = {2}, .lengths = {{1}, {3}, {2}}, .tensor = 4, .overlap = overlap.overlap})),
        IsEmpty())
        << overlap.name;
  }
}

/// "gather pre 0a", "sum post 0a'".
std::string tensor_name(const Op& op) {
  std::string name = short_name(op);
  if (!is_of_tensor(op.kind)) return name;
  return fmt::format("{} {}{}", op_name(op.kind), op_name(op.of_phase),
                     name.substr(name.find(' ')));
}

TEST(TensorProgram, rows_are_gathered_before_matrices_and_summed_behind_them) {
  const Program program = pipeline_programs(
      {.layers = {1}, .lengths = {{300}}, .tensor = 2, .overlap = Overlap::kNone})[1];
  std::vector<std::string> order;
  for (const Op& op : program.ops) order.push_back(tensor_name(op));
  const std::vector<std::string> expected = {"embed a",
                                             "sum_rows embed a",
                                             "attention_norm 0a",
                                             "gather_rows pre_attention 0a",
                                             "pre_attention 0a",
                                             "dispatch 0a",
                                             "core_attention 0a",
                                             "combine 0a",
                                             "out_projection 0a",
                                             "sum_rows out_projection 0a",
                                             "mlp_norm 0a",
                                             "gather_rows post_attention 0a",
                                             "post_attention 0a",
                                             "sum_rows post_attention 0a",
                                             "loss a",
                                             "loss a'",
                                             "gather_rows post_attention 0a'",
                                             "post_attention 0a'",
                                             "sum_rows post_attention 0a'",
                                             "mlp_norm 0a'",
                                             "gather_rows out_projection 0a'",
                                             "out_projection 0a'",
                                             "dispatch 0a'",
                                             "core_attention 0a'",
                                             "combine 0a'",
                                             "pre_attention 0a'",
                                             "sum_rows pre_attention 0a'",
                                             "attention_norm 0a'",
                                             "gather_rows embed a'",
                                             "embed a'",
                                             "grad_norm",
                                             "optimizer"};
  std::erase_if(order, [](const std::string& name) { return name.starts_with("redispatch"); });
  EXPECT_EQ(order, expected);
  EXPECT_EQ(describe(program.ops[3]),
            "forward layer 0 gather_rows for pre_attention of nano-batch 0");
  EXPECT_EQ(describe(program.ops[1]), "forward sum_rows of embed of nano-batch 0");
}

TEST(TensorProgram, bytes_of_rows_are_those_of_the_closed_form) {
  for (const int tensor : {2, 4}) {
    const std::vector<Program> all =
        pipeline_programs({.layers = {3}, .lengths = {{400}, {240, 60}}, .tensor = tensor});
    int64_t forward = 0, backward = 0;
    for (const Program& program : all) {
      for (const Op& op : program.ops) {
        if (!is_of_tensor(op.kind) || op.layer < 0) continue;
        (op.pass == Pass::kForward ? forward : backward) += program.sends(op).bytes;
      }
    }
    const int64_t once = (tensor - 1) * (400 + 300) * 64 * 4;  // rows of 64 numbers in fp32
    EXPECT_EQ(forward, 3 * 4 * once) << "of each layer, two gathers and two sums";
    EXPECT_EQ(backward, 3 * 6 * once) << "gathers carry two vectors a row";
  }
}

TEST(TensorProgram, messages_are_between_ranks_of_equal_index_or_of_one_server) {
  const std::vector<Program> all = pipeline_programs({.layers = {1, 1},
                                                      .lengths = uneven_lengths(4),
                                                      .replicas = 2,
                                                      .tensor = 2,
                                                      .gradients = {.bucket_elements = 640}});
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    for (const Op& op : all[rank].ops) {
      for (const PeerMessage& message : all[rank].sends(op).messages) {
        const int peer = all[rank].rank_of(op, message.peer);
        const bool is_shared =
            op.bucket >= 0 && all[rank].gradients->buckets[op.bucket].is_shared();
        if (is_of_tensor(op.kind)) {
          EXPECT_EQ(peer / 2, rank / 2) << describe(op);
        } else if (!is_shared) {
          EXPECT_EQ(peer % 2, rank % 2) << describe(op);
        }
        EXPECT_NE(peer, rank) << describe(op);
      }
    }
  }
}

/// Programs of two servers of two ranks each, of which `spoil` spoils that of rank 1.
std::vector<std::string> faults(const std::function<void(Program&)>& spoil) {
  std::vector<Program> all = pipeline_programs({.layers = {1},
                                                .lengths = {{300}, {200, 100}},
                                                .replicas = 2,
                                                .tensor = 2,
                                                .gradients = {.bucket_elements = 640}});
  spoil(all[1]);
  return validate(all);
}

TEST(TensorProgram, what_is_wrong_is_found) {
  EXPECT_THAT(faults([](Program&) {}), IsEmpty());
  EXPECT_THAT(faults([](Program& program) {
                program.tensor_rows[0] = make_tensor_rows({2, 1}, 100, 256);
              }),
              Contains(HasSubstr("sends")));
  EXPECT_THAT(faults([](Program& program) {
                std::swap(program.tensor_rows[0].gather_sends.messages[0].offset,
                          program.tensor_rows[0].gather_receives.messages[0].offset);
              }),
              Contains(HasSubstr("rows of nano-batch 0, gathered from here: rows 0 to")));
  EXPECT_THAT(faults([](Program& program) { program.server = 1; }), Not(IsEmpty()));
  EXPECT_THAT(faults([](Program& program) { program.stage.tensor.index = 0; }), Not(IsEmpty()));
  // The norms' gradients stay unsummed over the ranks of a server: each replica's own.
  EXPECT_THAT(faults([](Program& program) {
                auto own = std::make_shared<GradientExchange>(*program.gradients);
                own->groups[1] = own->groups[0];
                program.gradients = own;
              }),
              Contains(HasSubstr("is summed by ranks 1 3, ranks 0 1 2 3 hold it")));
}

}  // namespace
}  // namespace distca::testing
