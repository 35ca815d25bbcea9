// Each way to break a program is found, and said in a line that names it.

#include "distca/program/validate/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>

#include "distca/program/program_testing.h"
#include "distca/program/validate/validate_checks.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Programs = std::vector<Program>;

/// Ping-pong on 3 ranks, of which the last is a dedicated server; 2 nano-batches, 2 layers.
Programs good(bool redispatched = false) {
  static const StepExchanges step =
      plan_step({{2000, 900, 300, 100}, {1500, 900, 700}}, pool(2, 1, true));
  return programs_of(
      step, {.overlap = Overlap::kPingPong,
             .redispatched = redispatched,
             .types = {.compute = ScalarType::kBFloat16, .gradient = ScalarType::kBFloat16}});
}

int32_t find(const Program& program, const std::string& name) {
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (short_name(program.ops[i]) == name) return static_cast<int32_t>(i);
  }
  ADD_FAILURE() << "no " << name;
  return 0;
}
Op& op_of(Program& program, const std::string& name) { return program.ops[find(program, name)]; }

MessageList& messages(Program& program, const std::string& name, bool with_servers) {
  const Op& op = op_of(program, name);
  AttentionExchange& exchange = own_exchange(program, op);
  return (with_servers ? exchange.with_servers
                       : exchange.with_homes)[static_cast<size_t>(content_of(op))];
}
MessageList& qkv_to_servers(Program& program) {
  return messages(program, "dispatch 0a", /*with_servers=*/true);
}

/// The operations in another order or fewer of them; what they wait for goes along.
void reorder(Program& program, const std::vector<int32_t>& order) {
  std::vector<int32_t> now(program.ops.size(), -1);
  for (size_t i = 0; i < order.size(); ++i) now[order[i]] = static_cast<int32_t>(i);
  std::vector<Op> ops;
  for (int32_t i : order) {
    Op op = program.ops[i];
    for (std::vector<int32_t>* list : {&op.wait_for, &op.wait_sends}) {
      std::vector<int32_t> kept;
      for (int32_t other : *list) {
        if (now[other] >= 0 && now[other] < static_cast<int32_t>(ops.size())) {
          kept.push_back(now[other]);
        }
      }
      *list = kept;
    }
    ops.push_back(std::move(op));
  }
  program.ops = std::move(ops);
}
void erase(Program& program, const std::string& name) {
  std::vector<int32_t> order;
  for (int32_t i = 0; i < static_cast<int32_t>(program.ops.size()); ++i) {
    if (i != find(program, name)) order.push_back(i);
  }
  reorder(program, order);
}
/// `name` comes just before (or after) `other`.
void move_to(Program& program, const std::string& name, const std::string& other, bool after) {
  std::vector<int32_t> order;
  const int32_t moved = find(program, name), place = find(program, other);
  for (int32_t i = 0; i < static_cast<int32_t>(program.ops.size()); ++i) {
    if (i == moved) continue;
    if (i == place && !after) order.push_back(moved);
    order.push_back(i);
    if (i == place && after) order.push_back(moved);
  }
  reorder(program, order);
}

struct Break {
  const char* name;
  std::function<void(Program& program)> make;
  std::vector<const char*> line;  // texts that one of the lines has
  bool redispatched = false;
  int rank = 0;
};
std::ostream& operator<<(std::ostream& out, const Break& broken) { return out << broken.name; }

class BrokenProgram : public ::testing::TestWithParam<Break> {};

TEST_P(BrokenProgram, is_found_and_named) {
  Programs programs = good(GetParam().redispatched);
  Program& program = programs[GetParam().rank];
  ASSERT_THAT(validate(program), IsEmpty());
  GetParam().make(program);
  const std::vector<std::string> wrong = validate(program);
  const auto is_said = [](const std::string& line) {
    return std::ranges::all_of(GetParam().line, [&line](const char* part) {
      return line.find(part) != std::string::npos;
    });
  };
  EXPECT_TRUE(std::ranges::any_of(wrong, is_said)) << ::testing::PrintToString(wrong);
}

const Break kSequenceBreaks[] = {
    {"a_cycle",
     [](Program& p) { op_of(p, "pre_attention 0a").wait_for = {find(p, "core_attention 0a")}; },
     {"forward layer 0 pre_attention of nano-batch 0", "depends on", "does not come before it"}},
    {"sends_of_no_exchange",
     [](Program& p) { op_of(p, "post_attention 0a").wait_sends = {find(p, "pre_attention 0a")}; },
     {"waits for the sends of", "pre_attention", "no exchange"}},
    {"an_attend_without_its_enter",
     [](Program& p) { erase(p, "dispatch 0a"); },
     {"layer 0 core_attention of nano-batch 0", "needs its forward dispatch"}},
    {"a_leave_without_its_attend",
     [](Program& p) { erase(p, "core_attention 1b"); },
     {"layer 1 combine of nano-batch 1", "needs its core_attention"}},
    {"a_post_without_its_leave",
     [](Program& p) { erase(p, "combine 0a"); },
     {"layer 0 post_attention of nano-batch 0", "needs its forward combine"}},
    {"a_leave_before_its_attend",
     [](Program& p) { move_to(p, "combine 0a", "core_attention 0a", /*after=*/false); },
     {"layer 0 combine of nano-batch 0", "comes before", "core_attention"}},
    {"an_attend_before_its_enter",
     [](Program& p) { move_to(p, "dispatch 1a'", "core_attention 1a'", /*after=*/true); },
     {"backward layer 1 core_attention of nano-batch 0", "comes before", "dispatch"}},
    {"a_layer_before_the_one_below",
     [](Program& p) { move_to(p, "pre_attention 1a", "post_attention 0a", /*after=*/false); },
     {"layer 1 pre_attention of nano-batch 0", "comes before", "layer 0 post_attention"}},
    {"a_forward_without_backward",
     [](Program& p) { erase(p, "embed b'"); },
     {"forward embed of nano-batch 1", "has no backward"}},
    {"a_server_without_backward_of_what_it_served_though_keys_are_sent_again",
     [](Program& p) {
       for (const char* name :
            {"redispatch 1a'", "dispatch 1a'", "core_attention 1a'", "combine 1a'"})
         erase(p, name);
     },
     {"forward layer 1 core_attention of nano-batch 0", "has no backward"},
     true,
     2},
    {"a_backward_without_forward",
     [](Program& p) { op_of(p, "post_attention 0b'").layer = 7; },
     {"backward layer 7 post_attention", "needs its forward post_attention"}},
    {"an_operation_twice",
     [](Program& p) { op_of(p, "pre_attention 1b").layer = 0; },
     {"forward layer 0 pre_attention of nano-batch 1", "stands twice"}},
    {"tasks_attended_twice",
     [](Program& p) {
       Op again = op_of(p, "core_attention 0a");
       again.tasks = TaskSet::kHomeFirst;
       op_of(p, "combine 0a") = again;
     },
     {"core_attention (home, first half)", "computed before"}},
    {"a_resend_after_the_attend",
     [](Program& p) { move_to(p, "redispatch 0a'", "core_attention 0a'", /*after=*/true); },
     {"backward layer 0 core_attention of nano-batch 0", "comes before", "redispatch"},
     true},
    {"gradients_summed_too_early",
     [](Program& p) { move_to(p, "grad_norm", "pre_attention 0b'", /*after=*/false); },
     {"backward layer 0 pre_attention of nano-batch 1", "comes after", "grad_norm"}},
    {"an_update_without_sum",
     [](Program& p) { erase(p, "grad_norm"); },
     {"optimizer", "needs its backward grad_norm"}},
    {"an_exchange_on_the_compute_stream",
     [](Program& p) { op_of(p, "combine 0b'").stream = Stream::kCompute; },
     {"backward layer 0 combine of nano-batch 1", "wrong stream"}},
    {"results_not_waited_for",
     [](Program& p) { op_of(p, "post_attention 0a").wait_for.clear(); },
     {"layer 0 post_attention of nano-batch 0", "does not wait for", "combine"}},
    {"packed_before_it_is_there",
     [](Program& p) { op_of(p, "dispatch 0b").wait_for.clear(); },
     {"forward layer 0 dispatch of nano-batch 1", "does not wait for", "pre_attention"}},
    {"sent_again_before_it_is_there",
     [](Program& p) {
       op_of(p, "redispatch 1a'").wait_for = {find(p, "dispatch 1a")};
       op_of(p, "dispatch 1a").wait_for.clear();
     },
     {"redispatch of nano-batch 0", "does not wait for", "pre_attention"},
     true},
    {"gradients_not_waited_for",
     [](Program& p) { op_of(p, "pre_attention 0a'").wait_for.clear(); },
     {"backward layer 0 pre_attention of nano-batch 0", "does not wait for", "combine"}},
};
INSTANTIATE_TEST_SUITE_P(sequence, BrokenProgram, ::testing::ValuesIn(kSequenceBreaks),
                         [](const auto& info) { return std::string(info.param.name); });

const Break kBufferBreaks[] = {
    {"keys_not_waited_for",
     [](Program& p) { op_of(p, "core_attention 0a").wait_for.clear(); },
     {"layer 0 core_attention of nano-batch 0", "reads buffer", "(qkv_in)", "does not wait for"}},
    {"packed_while_still_sent",
     [](Program& p) { op_of(p, "dispatch 1a").wait_sends.clear(); },
     {"layer 1 dispatch of nano-batch 0", "(qkv_out)", "layer 0 dispatch", "still send from"}},
    {"written_while_still_sent",
     [](Program& p) { op_of(p, "core_attention 1a").wait_sends.clear(); },
     {"layer 1 core_attention of nano-batch 0", "(o_out)", "layer 0 combine", "still send from"},
     false,
     2},
    {"gradients_packed_while_still_sent",
     [](Program& p) { op_of(p, "combine 0a'").wait_sends.clear(); },
     {"backward layer 0 combine of nano-batch 0", "(gradient_out)", "layer 1 combine",
      "still send from"}},
    {"received_while_still_read",
     [](Program& p) { op_of(p, "redispatch 0a'").wait_for.clear(); },
     {"redispatch of nano-batch 0", "(qkv_in)", "layer 1 core_attention", "may still use"},
     true},
    {"received_twice_at_a_time",
     [](Program& p) {
       Op& combine = op_of(p, "combine 0b'");
       std::erase(combine.wait_for, find(p, "combine 1b'"));
       std::erase(combine.wait_for, find(p, "core_attention 0b'"));
       op_of(p, "pre_attention 1b'").wait_for.clear();
     },
     {"backward layer 0 combine of nano-batch 1", "(gradient_in)", "still receive into"}},
    {"the_other_nano_batchs_buffer",
     [](Program& p) { op_of(p, "core_attention 0a").reads = op_of(p, "core_attention 0b").reads; },
     {"layer 0 core_attention of nano-batch 0", "(qkv_in) as", "dispatch of nano-batch 1"}},
    {"received_but_not_read",
     [](Program& p) { op_of(p, "core_attention 0a").reads.clear(); },
     {"layer 0 core_attention of nano-batch 0", "does not read what", "dispatch"}},
    {"another_layers_keys",
     [](Program& p) {
       op_of(p, "core_attention 0a'").reads[0] = op_of(p, "core_attention 1a'").reads[0];
     },
     {"backward layer 0 core_attention of nano-batch 0", "reads buffer", "layer 1 dispatch"}},
    {"never_written",
     [](Program& p) {
       p.buffers.push_back({.role = BufferRole::kQkvIn, .bytes = 64});
       op_of(p, "core_attention 0a").reads.push_back(static_cast<int32_t>(p.buffers.size()) - 1);
     },
     {"layer 0 core_attention of nano-batch 0", "which nobody has written"}},
    {"no_such_buffer", [](Program& p) { op_of(p, "dispatch 0a").in = 99; }, {"uses buffer 99 of"}},
    {"results_never_sent",
     [](Program& p) {
       Op& combine = op_of(p, "combine 1a'");
       combine.reads.clear();
     },
     {"backward layer 1 core_attention of nano-batch 0", "(accumulators)", "nobody reads"}},
    {"another_role",
     [](Program& p) { op_of(p, "combine 0a").in = op_of(p, "dispatch 0a").in; },
     {"layer 0 combine of nano-batch 0", "receives into", "(qkv_in), not o_in"}},
    {"packs_elsewhere",
     [](Program& p) { op_of(p, "dispatch 0a").writes = op_of(p, "dispatch 0b").writes; },
     {"layer 0 dispatch of nano-batch 0", "packs into", "not what it sends"}},
    {"beyond_the_buffer",
     [](Program& p) { p.buffers[op_of(p, "dispatch 0a").out].bytes -= kMessageAlignment; },
     {"forward layer 0 dispatch of nano-batch 0", "would send", "bytes in buffer", "which has"}},
    {"beyond_the_end",
     [](Program& p) { qkv_to_servers(p).buffer_bytes -= kMessageAlignment; },
     {"exchange 0, Q, K, V with servers", "beyond the end"}},
    {"not_aligned",
     [](Program& p) { qkv_to_servers(p).messages.back().offset -= 1; },
     {"exchange 0, Q, K, V with servers", "not aligned"}},
    {"on_top_of_each_other",
     [](Program& p) { qkv_to_servers(p).messages.back().offset = 0; },
     {"exchange 0, Q, K, V with servers", "within the message before"}},
    {"a_peer_twice",
     [](Program& p) {
       auto& messages = qkv_to_servers(p).messages;
       messages.back().peer = messages.front().peer;
     },
     {"exchange 0, Q, K, V with servers", "peers must ascend"}},
    {"nothing_sent",
     [](Program& p) { qkv_to_servers(p).messages.back().bytes = 0; },
     {"exchange 0, Q, K, V with servers: 0 bytes", "nothing"}},
    {"no_such_exchange",
     [](Program& p) { op_of(p, "dispatch 0a").exchange = 7; },
     {"forward layer 0 dispatch of nano-batch 0", "exchange 7 of 2"}},
    {"messages_without_buffer",
     [](Program& p) { op_of(p, "dispatch 0a").out = -1; },
     {"messages to send and no buffer"}},
    {"bytes_that_do_not_add_up",
     [](Program& p) { qkv_to_servers(p).bytes += 1; },
     {"exchange 0, Q, K, V with servers", "is said to have"}},
    {"a_tag_twice",
     [](Program& p) { op_of(p, "dispatch 0a").tag = op_of(p, "dispatch 0b").tag; },
     {"has tag", "dispatch of nano-batch 0"}},
};
INSTANTIATE_TEST_SUITE_P(buffers, BrokenProgram, ::testing::ValuesIn(kBufferBreaks),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(AllRanks, a_message_that_nobody_receives_is_named) {
  Programs programs = good();
  MessageList& received = messages(programs[2], "dispatch 0a", /*with_servers=*/false);
  const PeerMessage lost = received.messages.front();
  ASSERT_EQ(lost.peer, 0);
  received.messages.erase(received.messages.begin());
  received.bytes -= lost.bytes;
  EXPECT_THAT(validate(programs),
              Contains(AllOf(HasSubstr("rank 0: operation"), HasSubstr("dispatch of nano-batch 0"),
                             HasSubstr(std::to_string(lost.bytes) + " bytes to rank 2"),
                             HasSubstr("receives 0"))));
}

TEST(AllRanks, other_bytes_are_named) {
  Programs programs = good();
  MessageList& received = messages(programs[1], "dispatch 0a", /*with_servers=*/false);
  PeerMessage& message = received.messages.front();
  message.bytes -= 4;
  received.bytes -= 4;
  EXPECT_THAT(validate(programs),
              Contains(AllOf(HasSubstr("rank 0:"), HasSubstr(std::to_string(message.bytes + 4)),
                             HasSubstr("which receives " + std::to_string(message.bytes)))));
}

TEST(AllRanks, a_tag_that_the_peer_does_not_have_is_named_from_both_sides) {
  Programs programs = good();
  op_of(programs[2], "combine 1b'").tag = 999;
  const std::vector<std::string> wrong = validate(programs);
  EXPECT_THAT(wrong, Contains(AllOf(HasSubstr("rank 2:"), HasSubstr("with tag 999"),
                                    HasSubstr("has no such tag"))));
  EXPECT_THAT(wrong, Contains(AllOf(HasSubstr("rank 0:"), HasSubstr("backward layer 1 combine"),
                                    HasSubstr("has no such tag"))));
}

TEST(AllRanks, another_order_of_exchanges_is_named) {
  Programs programs = good();
  move_to(programs[2], "dispatch 0b", "dispatch 0a", /*after=*/false);
  ASSERT_THAT(validate(programs[2]), IsEmpty());
  EXPECT_THAT(validate(programs),
              Contains(AllOf(HasSubstr("ranks 0 and 2"), HasSubstr("another order"),
                             HasSubstr("dispatch of nano-batch 0"),
                             HasSubstr("dispatch of nano-batch 1"))));
}

TEST(AllRanks, a_rank_that_does_not_exist_is_named) {
  Programs programs = good();
  programs.pop_back();
  EXPECT_THAT(validate(programs), Contains(AllOf(HasSubstr("rank 0:"), HasSubstr("rank 2 of 2"))));
}

TEST(AllRanks, faults_of_one_rank_are_said_with_its_number) {
  Programs programs = good();
  op_of(programs[1], "post_attention 0a").wait_for.clear();
  EXPECT_THAT(validate(programs), ElementsAre(HasSubstr("rank 1: operation")));
}

/// Swaps messages with `peer`, in buffers of its own, and waits for the previous operation.
void add_swap(Program& program, int layer, int peer) {
  const auto buffer = static_cast<int32_t>(program.buffers.size());
  program.buffers.push_back({.role = BufferRole::kOOut, .bytes = 64});
  program.buffers.push_back({.role = BufferRole::kOIn, .bytes = 64});
  const auto self = static_cast<int32_t>(program.ops.size());
  program.ops.push_back({.kind = OpKind::kCoreAttention,
                         .layer = layer,
                         .nano_batch = 0,
                         .exchange = static_cast<int32_t>(program.exchanges.size()),
                         .layer_step = 0,
                         .writes = {buffer}});
  add_exchange(program,
               {.kind = OpKind::kCombine,
                .layer = layer,
                .nano_batch = 0,
                .wait_for = {self},
                .tag = static_cast<uint32_t>(layer),
                .out = buffer,
                .in = buffer + 1},
               {{peer, 64}}, {{peer, 64}});
}

TEST(AllRanks, waiting_in_a_circle_is_found_though_every_pair_agrees) {
  const auto programs = [](bool in_a_circle) {
    Programs all(3);
    add_swap(all[0], 1, 1);
    add_swap(all[0], 2, 2);
    add_swap(all[1], in_a_circle ? 3 : 1, in_a_circle ? 2 : 0);
    add_swap(all[1], in_a_circle ? 1 : 3, in_a_circle ? 0 : 2);
    add_swap(all[2], 2, 0);
    add_swap(all[2], 3, 1);
    return all;
  };
  std::vector<std::string> wrong;
  check_ranks(programs(/*in_a_circle=*/true), wrong);
  EXPECT_THAT(wrong,
              ElementsAre(AllOf(HasSubstr("waiting in a circle"),
                                HasSubstr("rank 0 in operation 1 (forward layer 1 combine of "
                                          "nano-batch 0) for rank 1"),
                                HasSubstr("for rank 2"), HasSubstr("for rank 0"))));
  wrong.clear();
  check_ranks(programs(/*in_a_circle=*/false), wrong);
  EXPECT_THAT(wrong, IsEmpty());
}

}  // namespace
}  // namespace distca::testing
