#include "distca/sim/player.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "distca/base/error.h"
#include "distca/program/program_testing.h"

namespace distca::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kUs = 1'000'000;  // picoseconds

/// Computing takes op.flops picoseconds; communications cost what `rates` say.
RatePrices flops_as_ps(const ThreadRates& rates = {}) {
  return RatePrices([](int, const Op& op) { return op.flops * 1e-12; }, rates);
}

/// One byte a microsecond.
constexpr Port kSlow{.bytes_per_s = 1'000'000};

Op computing(int64_t us, std::vector<int32_t> wait_for = {}, std::vector<int32_t> wait_sends = {}) {
  return {.kind = OpKind::kPostAttention,
          .wait_for = std::move(wait_for),
          .wait_sends = std::move(wait_sends),
          .flops = static_cast<double>(us * kUs)};
}

std::vector<Program> ranks(int count) {
  std::vector<Program> programs(static_cast<size_t>(count));
  for (int rank = 0; rank < count; ++rank) programs[static_cast<size_t>(rank)].server = rank;
  return programs;
}

Op dispatch(uint32_t tag) { return {.kind = OpKind::kDispatch, .tag = tag}; }

/// Rank 0 computes 5 us and sends 20 bytes; rank 1 computes 7 us and then waits for them.
std::vector<Program> one_message() {
  std::vector<Program> programs = ranks(2);
  programs[0].ops.push_back(computing(5));
  add_exchange(programs[0], dispatch(1), {{1, 20}}, {});
  add_exchange(programs[1], dispatch(1), {}, {{0, 20}});
  programs[1].ops.push_back(computing(7));
  programs[1].ops.push_back(computing(3, {0}));
  return programs;
}

TEST(Player, a_message_takes_its_latency_and_bytes_and_its_receiver_waits_for_it) {
  const Wire wire{.between = {.latency_ps = 2 * kUs, .bytes_per_s = 1'000'000}};
  const TimedStep step = timed_step(one_message(), flops_as_ps(), wire);
  EXPECT_EQ(step.ops[1][0].end_ps, 27 * kUs);
  EXPECT_EQ(step.ops[0][1].sent_ps, 27 * kUs);
  EXPECT_EQ(step.ranks[1].computed_ps, 10 * kUs);
  EXPECT_EQ(step.ranks[1].exposed_ps, 20 * kUs) << "rank 0 had begun to send";
  EXPECT_EQ(step.ranks[1].late_ps, 0);
  EXPECT_EQ(step.length_ps, 30 * kUs);
  // A rank ends once what it sends has left.
  EXPECT_EQ(step.ranks[0].end_ps, 27 * kUs);
  EXPECT_EQ(step.ranks[0].exposed_ps, 22 * kUs);
}

TEST(Player, a_thread_pays_for_packing_issuing_the_networks_threads_and_landing) {
  std::vector<Program> programs = one_message();
  programs[0].ops.back().kind = programs[1].ops.front().kind = OpKind::kCombine;
  for (Program& program : programs) {
    AttentionExchange& exchange = own_exchange(program, program.ops[program.server == 0 ? 1 : 0]);
    std::swap(exchange.with_homes, exchange.with_servers);
    for (auto* const side : {&exchange.with_homes, &exchange.with_servers})
      std::swap((*side)[0], (*side)[static_cast<size_t>(Content::kO)]);
  }
  const ThreadRates rates{
      .issue_ps = 3 * kUs, .copy_bytes_per_s = 10'000'000, .core_bytes_per_s = 5'000'000};
  const TimedStep step = timed_step(programs, flops_as_ps(rates), {.between = kSlow});
  // Rank 0: 5 computed, 2 packed, 3 issued; the message leaves at 10 and arrives at 30.
  EXPECT_EQ(step.ops[0][1].begin_ps, 10 * kUs);
  EXPECT_EQ(step.ops[1][0].end_ps, 30 * kUs);
  EXPECT_EQ(step.ranks[0].copied_ps, 2 * kUs);
  EXPECT_EQ(step.ranks[0].issued_ps, 3 * kUs);
  EXPECT_EQ(step.ranks[0].core_ps, 4 * kUs);
  EXPECT_EQ(step.ranks[0].exposed_ps, 16 * kUs);
  // Rank 1: 3 issued, 4 of the core, 7 computed, waits from 14 to 30, lands 2, computes 3.
  EXPECT_EQ(step.ranks[1].exposed_ps, 16 * kUs);
  EXPECT_EQ(step.ranks[1].copied_ps, 2 * kUs);
  EXPECT_EQ(step.length_ps, 35 * kUs);
}

TEST(Player, nothing_moves_before_the_receiver_is_at_it) {
  std::vector<Program> programs = one_message();
  std::swap(programs[1].ops[0], programs[1].ops[1]);  // rank 1 starts to receive after 7 us
  programs[1].ops[2].wait_for = {1};
  const TimedStep step = timed_step(programs, flops_as_ps(), {.between = kSlow});
  EXPECT_EQ(step.ops[1][1].end_ps, 27 * kUs);
  EXPECT_EQ(step.ranks[0].late_ps, 2 * kUs) << "for rank 1";
  EXPECT_EQ(step.ranks[0].exposed_ps, 20 * kUs);
}

/// Three ranks send 10, 20 and 30 bytes to rank 0 after 0, 1 and 100 us.
TEST(Player, messages_of_one_communication_share_the_receivers_port) {
  std::vector<Program> programs = ranks(4);
  add_exchange(programs[0], dispatch(1), {}, {{1, 10}, {2, 20}, {3, 30}});
  for (int rank = 1; rank < 4; ++rank) {
    Program& program = programs[static_cast<size_t>(rank)];
    program.ops.push_back(computing(rank == 3 ? 100 : rank - 1));
    add_exchange(program, dispatch(1), {{0, 10 * rank}}, {});
  }
  EXPECT_EQ(timed_step(programs, flops_as_ps(), {.between = kSlow}).length_ps, 130 * kUs);
  programs[3].ops[0] = computing(20);
  EXPECT_EQ(timed_step(programs, flops_as_ps(), {.between = kSlow}).ops[0][0].end_ps, 60 * kUs);
  programs[3].ops[0] = computing(31);
  EXPECT_EQ(timed_step(programs, flops_as_ps(), {.between = kSlow}).ops[0][0].end_ps, 61 * kUs);
}

TEST(Player, messages_of_one_communication_share_the_senders_port_evenly) {
  std::vector<Program> programs = ranks(3);
  add_exchange(programs[0], dispatch(1), {{1, 10}, {2, 30}}, {});
  add_exchange(programs[0], dispatch(2), {{1, 5}}, {});
  add_exchange(programs[1], dispatch(1), {}, {{0, 10}});
  add_exchange(programs[1], dispatch(2), {}, {{0, 5}});
  add_exchange(programs[2], dispatch(1), {}, {{0, 30}});
  const TimedStep step = timed_step(programs, flops_as_ps(), {.between = kSlow});
  EXPECT_EQ(step.ops[1][0].end_ps, 20 * kUs) << "half of the port";
  EXPECT_EQ(step.ops[2][0].end_ps, 40 * kUs);
  EXPECT_EQ(step.ops[1][1].end_ps, 45 * kUs) << "behind the first communication";
}

/// Rank 1 receives by one list twice, of which rank 0 has two.
TEST(Player, communications_that_share_a_list_here_need_not_share_it_there) {
  std::vector<Program> programs = ranks(3);
  add_exchange(programs[0], dispatch(1), {{1, 10}}, {});
  add_exchange(programs[0], dispatch(2), {{1, 10}, {2, 30}}, {});
  add_exchange(programs[1], dispatch(1), {}, {{0, 10}});
  programs[1].ops.push_back(programs[1].ops[0]);
  programs[1].ops[1].tag = 2;
  add_exchange(programs[2], dispatch(2), {}, {{0, 30}});
  const TimedStep step = timed_step(programs, flops_as_ps(), {.between = kSlow});
  EXPECT_EQ(step.ops[1][0].end_ps, 10 * kUs);
  EXPECT_EQ(step.ops[1][1].end_ps, 30 * kUs) << "half of the port, behind the first";
  EXPECT_EQ(step.ops[2][0].end_ps, 50 * kUs);
}

TEST(Player, a_ports_time_is_the_same_for_many_messages) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 10000; ++i) {
    const auto below = [&](int bits) { return static_cast<int64_t>(random() >> (64 - bits)); };
    const Port port{.bytes_per_s = i % 3 == 0   ? below(1 + i % 41)
                                   : i % 3 == 1 ? 1 + below(12) * 1'000'000'000
                                                : 50'000'000'000 * 6 / 5};
    const int64_t bytes = below(1 + i % 45);
    if (port.bytes_per_s > 0 && static_cast<double>(bytes) / port.bytes_per_s > 9e6) continue;
    EXPECT_EQ(PortTime(port)(bytes), port.time_ps(bytes)) << port.bytes_per_s << ", " << bytes;
  }
}

TEST(Player, ranks_of_a_node_have_a_port_of_their_own) {
  std::vector<Program> programs = ranks(3);
  add_exchange(programs[0], dispatch(1), {{1, 10}, {2, 30}}, {});
  add_exchange(programs[1], dispatch(1), {}, {{0, 10}});
  add_exchange(programs[2], dispatch(1), {}, {{0, 30}});
  const Wire wire{.inside = {.bytes_per_s = 10'000'000}, .between = kSlow, .ranks_per_node = 2};
  const TimedStep step = timed_step(programs, flops_as_ps(), wire);
  EXPECT_EQ(step.ops[1][0].end_ps, 1 * kUs);
  EXPECT_EQ(step.ops[2][0].end_ps, 30 * kUs);
}

TEST(Player, a_token_bucket_lets_its_burst_through_at_once) {
  Wire wire{.between = kSlow};
  wire.between.burst_bytes = 8;
  std::vector<Program> programs = one_message();
  EXPECT_EQ(timed_step(programs, flops_as_ps(), wire).ops[1][0].end_ps, 17 * kUs);
  wire.between.burst_bytes = 50;
  EXPECT_EQ(timed_step(programs, flops_as_ps(), wire).ops[1][0].end_ps, 5 * kUs);
}

/// A peer that is late does not hold up another one's message, but with in_order it does.
TEST(Player, communications_are_under_way_together_or_in_order) {
  std::vector<Program> programs = ranks(3);
  add_exchange(programs[0], dispatch(1), {{1, 10}}, {});
  add_exchange(programs[0], dispatch(2), {{2, 10}}, {});
  programs[1].ops.push_back(computing(100));
  add_exchange(programs[1], dispatch(1), {}, {{0, 10}});
  add_exchange(programs[2], dispatch(2), {}, {{0, 10}});
  Wire wire{.between = kSlow};
  EXPECT_EQ(timed_step(programs, flops_as_ps(), wire).ops[2][0].end_ps, 20 * kUs);
  wire.in_order = true;
  EXPECT_EQ(timed_step(programs, flops_as_ps(), wire).ops[2][0].end_ps, 120 * kUs);
}

/// Two ranks of a server that gather rows twice; rank 1 in the other order if `crossed`.
std::vector<Program> gathering_ranks(bool crossed) {
  std::vector<Program> programs(2);
  for (int rank = 0; rank < 2; ++rank) {
    Program& program = programs[static_cast<size_t>(rank)];
    program.stage.tensor = {.size = 2, .index = rank};
    program.tensor_rows.resize(1);
    program.tensor_rows[0].gather_sends.add(1 - rank, 64);
    program.tensor_rows[0].gather_receives.add(1 - rank, 64);
    for (const uint32_t place : {0, 1}) {
      program.ops.push_back({.kind = OpKind::kGatherRows,
                             .stream = Stream::kComm,
                             .nano_batch = 0,
                             .tag = crossed && rank == 1 ? 2 - place : 1 + place});
    }
  }
  return programs;
}

TEST(Player, communications_that_end_in_order_may_wait_in_a_circle_which_is_a_check) {
  const auto us = [](bool crossed, bool in_order) {
    const Wire wire{.between = {.latency_ps = kUs}, .in_order = in_order};
    return timed_step(gathering_ranks(crossed), flops_as_ps(), wire).length_ps / kUs;
  };
  EXPECT_EQ(us(false, true), 2);
  EXPECT_EQ(us(false, false), 1);
  EXPECT_EQ(us(true, false), 1);
  EXPECT_THROW(us(true, true), CheckFailure);
}

std::string refusal(const std::vector<Program>& programs) {
  try {
    timed_step(programs, flops_as_ps(), {});
  } catch (const CheckFailure& failure) {
    return failure.what();
  }
  return "";
}

TEST(Player, what_is_never_sent_is_named) {
  std::vector<Program> programs = one_message();
  programs[0].ops[1].tag = 2;
  EXPECT_THAT(refusal(programs), HasSubstr("with rank 1, which has none"));
  programs = one_message();
  own_exchange(programs[0], programs[0].ops[1]).with_servers[0] = messages_of({{1, 21}});
  EXPECT_THAT(refusal(programs), HasSubstr("different messages"));
  programs.pop_back();
  EXPECT_THAT(refusal(programs), HasSubstr("rank 1, which has no program"));
  // Each waits for the other's dispatch before it starts its own.
  programs = ranks(2);
  for (int rank = 0; rank < 2; ++rank) {
    Program& program = programs[static_cast<size_t>(rank)];
    add_exchange(program, dispatch(1 + static_cast<uint32_t>(rank)), {}, {{1 - rank, 8}});
    Op sends = dispatch(2 - static_cast<uint32_t>(rank));
    sends.wait_for = {0};
    add_exchange(program, sends, {{1 - rank, 8}}, {});
  }
  EXPECT_THAT(refusal(programs), HasSubstr("rank 0 waits for what nobody sends before it plays"));
}

// --- programs as they are built ---

struct Scenario {
  std::vector<Program> programs;
  std::map<OpKind, double> ps_of_flop;
  ThreadRates rates;
  Wire wire;

  RatePrices prices() const {
    return RatePrices(
        [this](int, const Op& op) { return 1e-12 * (1 + op.flops * ps_of_flop.at(op.kind)); },
        rates);
  }
  TimedStep play(Turns turns = Turns::kFirstToLast) const {
    return timed_step(programs, prices(), wire, turns);
  }
};

/// A step of up to 5 servers whose ranks may divide layers, of any overlap, prices and wires.
Scenario random_scenario(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int count) {
    return static_cast<int>(random() % static_cast<uint32_t>(count));
  };
  std::vector<std::vector<int64_t>> lengths(static_cast<size_t>(1 + below(4)));
  for (auto& nano : lengths) {
    for (int left = 1 + below(5); left > 0; --left) nano.push_back(1 + below(1500));
  }
  const int workers = 1 + below(4), dedicated = below(2);
  Style style{
      .overlap = kOverlaps[static_cast<size_t>(below(static_cast<int>(kOverlaps.size())))].overlap,
      .redispatched = below(2) == 0,
      .num_layers = 1 + below(3)};
  if (below(3) == 0) {
    style.tensor = 2;
  } else {
    style.gradients = {.bucket_elements = 400, .distributed_optimizer = below(2) == 0};
  }
  Scenario scenario{.programs =
                        programs_of(plan_step(lengths, pool(workers, dedicated, true)), style)};
  for (int kind = 0; kind < kNumOpKinds; ++kind)
    scenario.ps_of_flop[static_cast<OpKind>(kind)] = .1 * (1 + below(20));
  scenario.rates = {.issue_ps = below(2) * kUs,
                    .copy_bytes_per_s = below(2) * 1'000'000'000LL,
                    .core_bytes_per_s = below(2) * 1'000'000'000LL};
  const auto port = [&] {
    return Port{.latency_ps = below(20) * kUs,
                .bytes_per_s = (1 + below(100)) * 10'000'000LL,
                .burst_bytes = below(2) * 4096};
  };
  scenario.wire = {.inside = port(),
                   .between = port(),
                   .ranks_per_node = style.tensor * (1 + below(2)),
                   .in_order = below(3) == 0};
  return scenario;
}

constexpr uint32_t kScenarios = 200;

TEST(Player, parts_add_up_to_each_ranks_end) {
  for (uint32_t seed = 0; seed < kScenarios; ++seed) {
    const TimedStep step = random_scenario(seed).play();
    for (const RankTime& rank : step.ranks) {
      EXPECT_EQ(rank.computed_ps + rank.copied_ps + rank.issued_ps + rank.core_ps + rank.late_ps +
                    rank.exposed_ps,
                rank.end_ps)
          << seed;
      EXPECT_LE(rank.end_ps, step.length_ps);
    }
  }
}

TEST(Player, the_order_in_which_ranks_are_played_changes_nothing) {
  for (uint32_t seed = 0; seed < kScenarios; ++seed) {
    const Scenario scenario = random_scenario(seed);
    const TimedStep step = scenario.play(), other = scenario.play(Turns::kLastToFirst);
    EXPECT_EQ(step.length_ps, other.length_ps) << seed;
    EXPECT_EQ(step.ops, other.ops) << seed;
    EXPECT_EQ(step.ranks, other.ranks) << seed;
  }
}

/// Changes the scenario so that one thing is cheaper.
void cheapen(Scenario& scenario, std::mt19937& random) {
  switch (random() % 8) {
    case 0:
      scenario.wire.between.bytes_per_s *= 2;
      break;
    case 1:
      scenario.wire.inside.bytes_per_s *= 2;
      break;
    case 2:
      scenario.wire.between.latency_ps /= 2;
      break;
    case 3:
      scenario.wire.between.burst_bytes += 1000;
      break;
    case 4:
      scenario.rates.copy_bytes_per_s = 0;
      break;
    case 5:
      scenario.rates.issue_ps = scenario.rates.core_bytes_per_s = 0;
      break;
    default:
      scenario.ps_of_flop[static_cast<OpKind>(random() % kNumOpKinds)] /= 3;
  }
}

TEST(Player, what_is_cheaper_never_makes_a_step_longer) {
  int shorter = 0;
  for (uint32_t seed = 0; seed < kScenarios; ++seed) {
    Scenario scenario = random_scenario(seed);
    std::mt19937 random(seed);
    TimedStep before = scenario.play();
    for (int i = 0; i < 4; ++i) {
      cheapen(scenario, random);
      TimedStep after = scenario.play();
      for (size_t rank = 0; rank < before.ranks.size(); ++rank)
        ASSERT_LE(after.ranks[rank].end_ps, before.ranks[rank].end_ps) << seed << ", change " << i;
      shorter += after.length_ps < before.length_ps ? 1 : 0;
      before = std::move(after);
    }
  }
  EXPECT_GT(shorter, 200);
}

TEST(Player, links_that_were_found_once_serve_all_prices_and_rates) {
  for (uint32_t seed = 0; seed < kScenarios; ++seed) {
    Scenario scenario = random_scenario(seed);
    const StepLinks links(scenario.programs, scenario.wire.ranks_per_node,
                          /*threads=*/1 + static_cast<int>(seed % 3));
    std::mt19937 random(seed);
    for (int i = 0; i < 3; ++i) {
      const TimedStep alone = scenario.play();
      const RatePrices prices = scenario.prices();
      const PlayedOn machine{.prices = &prices, .wire = scenario.wire};
      const TimedStep linked = timed_together(links, {&machine, 1}, /*with_first=*/true).first;
      EXPECT_EQ(linked.ops, alone.ops) << seed;
      EXPECT_EQ(linked.ranks, alone.ranks) << seed;
      cheapen(scenario, random);
    }
  }
}

TEST(Player, several_machines_together_are_each_as_if_alone) {
  for (uint32_t seed = 0; seed < kScenarios; ++seed) {
    Scenario scenario = random_scenario(seed);
    const StepLinks links(scenario.programs, scenario.wire.ranks_per_node);
    std::mt19937 random(seed);
    std::deque<RatePrices> prices;
    std::vector<PlayedOn> machines;
    std::vector<int64_t> lengths;
    const TimedStep first = scenario.play();
    while (machines.size() < 1 + seed % kMostMachinesTogether) {
      const auto asked = scenario.ps_of_flop;  // cheapen() may change what prices look at
      prices.emplace_back(
          [asked](int, const Op& op) { return 1e-12 * (1 + op.flops * asked.at(op.kind)); },
          scenario.rates);
      machines.push_back({.prices = &prices.back(), .wire = scenario.wire});
      lengths.push_back(scenario.play().length_ps);
      cheapen(scenario, random);
    }
    const TimedTogether together = timed_together(links, machines, /*with_first=*/true);
    EXPECT_EQ(together.lengths_ps, lengths) << seed;
    EXPECT_EQ(together.first.ops, first.ops) << seed;
    EXPECT_EQ(together.first.ranks, first.ranks) << seed;
  }
}

/// The ranks of a server that divide layers evenly are alike, so one of them stands for all.
TEST(Player, the_first_rank_of_each_server_stands_for_its_partners) {
  const StepExchanges exchanges = plan_step({{2000, 300}, {1000, 1000}}, pool(2, 0, true));
  std::vector<Program> all = programs_of(exchanges, {.num_layers = 2, .tensor = 2}), firsts;
  for (size_t rank = 0; rank < all.size(); rank += 2) firsts.push_back(all[rank]);
  const Wire wire{.inside = {.latency_ps = kUs, .bytes_per_s = 1'000'000'000},
                  .between = {.latency_ps = 2 * kUs, .bytes_per_s = 100'000'000},
                  .ranks_per_node = 2};
  const auto prices = RatePrices([](int, const Op& op) { return 1e-9 * op.flops; });
  EXPECT_EQ(timed_step(firsts, prices, wire).length_ps, timed_step(all, prices, wire).length_ps);
}

}  // namespace
}  // namespace distca::testing
