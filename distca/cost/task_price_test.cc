#include "distca/cost/task_price.h"

#include <gtest/gtest.h>

#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/base/random.h"

namespace distca {
namespace {

const AttentionShape kShape{.num_heads = 4, .num_kv_heads = 1};

/// Times of a machine that jitters by up to a fifth, on an uneven grid.
AttentionProfile jittering_profile(uint64_t seed) {
  Random random(seed);
  AttentionProfile profile{.machine = "m", .path = "p", .shape = kShape};
  profile.q_tokens = {16, 100, 128, 700, 1024, 4096};
  profile.kv_tokens = {64, 128, 1000, 2048, 4096, 16384};
  for (const int64_t q : profile.q_tokens) {
    for (const int64_t kv : profile.kv_tokens) {
      const int64_t ns = 5000 + Mask{}.pairs({kv - q, kv}, {0, kv}) / 3;
      const auto jittered = [&] {
        return q > kv ? 0 : ns + static_cast<int64_t>(random.below(static_cast<uint64_t>(ns / 5)));
      };
      profile.forward_ns.push_back(jittered());
      profile.backward_ns.push_back(3 * jittered());
    }
  }
  return profile;
}

Range random_range(Random& random, int64_t begin, int64_t end) {
  const auto draw = [&] {
    return begin + static_cast<int64_t>(random.below(static_cast<uint64_t>(end - begin + 1)));
  };
  const int64_t a = draw(), b = draw();
  return {std::min(a, b), std::max(a, b)};
}

/// Somewhere between a few tokens and 2^most_bits.
int64_t random_length(Random& random, uint64_t most_bits) {
  return 2 + static_cast<int64_t>(random.below(uint64_t{1} << (2 + random.below(most_bits - 1))));
}

TEST(TaskPrice, without_a_profile_is_pairs) {
  const TaskPrice price(AttentionShape{.mask = {.window_left = 10}});
  EXPECT_TRUE(price.in_pairs());
  EXPECT_EQ(price({50, 80}, {0, 80}), 30 * 11);
  EXPECT_EQ(price({50, 80}, {0, 40}, MaskKind::kFull), 30 * 40);
  EXPECT_THROW(price.passes({0, 1}, {0, 1}).forward, CheckFailure);
}

TEST(TaskPrice, is_the_profile_at_its_points) {
  const AttentionProfile profile = h200_profile();
  const TaskPrice price(kShape, &profile);
  EXPECT_FALSE(price.in_pairs());
  const size_t columns = profile.kv_tokens.size();
  for (size_t i = 0; i < profile.forward_ns.size(); ++i) {
    const int64_t q = profile.q_tokens[i / columns], kv = profile.kv_tokens[i % columns];
    if (q > kv) continue;
    EXPECT_EQ(price.passes({kv - q, kv}, {0, kv}).forward, profile.forward_ns[i]) << q << " " << kv;
    EXPECT_EQ(price.passes({kv - q, kv}, {0, kv}).backward, profile.backward_ns[i])
        << q << " " << kv;
    EXPECT_EQ(price({kv - q, kv}, {0, kv}), profile.forward_ns[i] + profile.backward_ns[i]);
  }
}

TEST(TaskPrice, between_points_is_pairs_over_the_bilinear_throughput) {
  const AttentionProfile profile = h200_profile();
  const TaskPrice price(kShape, &profile);
  const size_t columns = profile.kv_tokens.size();
  const auto rate = [&](size_t i, size_t j) {
    const int64_t q = profile.q_tokens[i], kv = profile.kv_tokens[j];
    return static_cast<double>(Mask{}.pairs({kv - q, kv}, {0, kv})) /
           static_cast<double>(profile.forward_ns[i * columns + j]);
  };
  Random random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    const size_t i = random.below(columns - 2), j = i + 1 + random.below(columns - i - 2);
    const double u = random.uniform(), v = random.uniform();
    const auto q = static_cast<int64_t>(static_cast<double>(profile.q_tokens[i]) * (1 + u));
    const auto kv = static_cast<int64_t>(static_cast<double>(profile.kv_tokens[j]) * (1 + v));
    const double throughput = (rate(i, j) * (1 - v) + rate(i, j + 1) * v) * (1 - u) +
                              (rate(i + 1, j) * (1 - v) + rate(i + 1, j + 1) * v) * u;
    const double expected = static_cast<double>(Mask{}.pairs({kv - q, kv}, {0, kv})) / throughput;
    EXPECT_NEAR(static_cast<double>(price.passes({kv - q, kv}, {0, kv}).forward), expected,
                2 + 0.005 * expected)
        << q << " " << kv;
  }
}

TEST(TaskPrice, beyond_the_grid_goes_by_pairs) {
  const AttentionProfile profile = h200_profile();
  const TaskPrice price(kShape, &profile);
  const int64_t most = profile.kv_tokens.back();
  const Range full{0, int64_t{1} << 30};
  const auto ratio = [&](const Range& q, const Range& of_q, int64_t of_end) {
    return static_cast<double>(price.passes(q, full).forward) /
           static_cast<double>(price.passes(of_q, {0, of_end}).forward);
  };
  const auto pairs = [](const Range& q) {
    return static_cast<double>(Mask{}.pairs(q, {0, q.end}));
  };
  // Documents, shards of 128 at the end of a long one, and both sizes beyond the grid.
  EXPECT_NEAR(ratio({0, full.end}, {0, most}, most), pairs({0, full.end}) / pairs({0, most}), 1);
  const Range shard{full.end - 128, full.end}, last{most - 128, most};
  EXPECT_NEAR(ratio(shard, last, most), pairs(shard) / pairs(last), 1);
}

TEST(TaskPrice, a_shard_below_the_tile_costs_a_tile) {
  const AttentionProfile profile = h200_profile();
  const TaskPrice price(kShape, &profile);
  for (const int64_t q : {1, 17, 127}) {
    EXPECT_EQ(price({5000 - q, 5000}, {0, 5000}), price({4872, 5000}, {0, 5000}));
    EXPECT_EQ(price({0, q}, {0, q}), price({0, 128}, {0, 128}));
  }
  AttentionProfile measured = jittering_profile(1);
  EXPECT_LT(TaskPrice(kShape, &measured)({4980, 5000}, {0, 5000}),
            TaskPrice(kShape, &measured)({4872, 5000}, {0, 5000}));
}

TEST(TaskPrice, more_queries_or_keys_never_cost_less) {
  for (const uint64_t seed : {0, 1, 2, 3}) {
    const AttentionProfile profile = seed == 0 ? h200_profile() : jittering_profile(seed);
    const TaskPrice everything(kShape, &profile);
    Random random(seed);
    for (int trial = 0; trial < 30000; ++trial) {
      const int64_t length = random_length(random, trial % 2 == 0 ? 13 : 30);
      AttentionShape shape = kShape;
      if (trial % 64 == 0) shape.mask.window_left = static_cast<int64_t>(random.below(length));
      const TaskPrice windowed = trial % 64 == 0 ? TaskPrice(shape, &profile) : everything;
      const MaskKind mask = random.below(4) == 0 ? MaskKind::kFull : MaskKind::kCausal;
      const Range q = random_range(random, 0, length), kv = random_range(random, 0, length);
      // By a single token, where rounding would show, or by many.
      const auto more = [&](const Range& range) {
        if (random.below(2) == 0) return random_range(random, range.begin, range.end);
        Range smaller = range;
        (random.below(2) == 0 ? smaller.begin : smaller.end) += random.below(2) == 0 ? 1 : -1;
        return intersect(smaller, range);
      };
      const Range less_q = more(q), less_kv = more(kv);
      for (const auto& [fewer_q, fewer_kv] :
           {std::pair{less_q, kv}, std::pair{q, less_kv}, std::pair{less_q, less_kv}}) {
        if (fewer_q.empty() || fewer_kv.empty()) continue;
        EXPECT_LE(windowed.passes(fewer_q, fewer_kv, mask).forward,
                  windowed.passes(q, kv, mask).forward);
        EXPECT_LE(windowed(fewer_q, fewer_kv, mask), windowed(q, kv, mask))
            << "[" << fewer_q.begin << ", " << fewer_q.end << ") x [" << fewer_kv.begin << ", "
            << fewer_kv.end << ") in [" << q.begin << ", " << q.end << ") x [" << kv.begin << ", "
            << kv.end << ")";
      }
    }
  }
}

// Ranks may be built by different compilers; a change of prices on purpose changes this number.
TEST(TaskPrice, has_the_same_bits_on_every_compiler) {
  const AttentionProfile profiles[] = {h200_profile(), jittering_profile(7)};
  Fnv1a64 hash;
  for (const AttentionProfile& profile : profiles) {
    const TaskPrice price(kShape, &profile);
    Random random(4);
    for (int trial = 0; trial < 20000; ++trial) {
      const int64_t length = random_length(random, 30);
      const Range q = random_range(random, 0, length), kv = random_range(random, 0, length);
      const TaskPrice::Passes ns = price.passes(q, kv);
      hash.add(fmt::format("{} {}\n", ns.forward, ns.backward));
    }
  }
  EXPECT_EQ(hash.hex(), "fdffb9618b45469d");
}

TEST(TaskPrice, the_parts_of_a_cut_task_cost_little_more_than_the_whole) {
  const AttentionProfile profile = h200_profile();
  const TaskPrice price(kShape, &profile);
  Random random(5);
  for (int trial = 0; trial < 3000; ++trial) {
    const int64_t length = 128 * (64 + static_cast<int64_t>(random.below(4096)));
    const int64_t cut = 128 * (1 + static_cast<int64_t>(random.below(length / 128 - 1)));
    const Range all{0, length}, low{0, cut}, high{cut, length};
    const auto whole = static_cast<double>(price(all, all));
    EXPECT_NEAR(static_cast<double>(price(low, low) + price(high, all)), whole, 0.005 * whole)
        << length << " at " << cut;
    // A rectangle that is cut between its keys keeps about its price, too.
    const Range later{length, length + 4096};
    const auto rectangle = static_cast<double>(price(later, all));
    EXPECT_NEAR(static_cast<double>(price(later, low) + price(later, high)), rectangle,
                0.02 * rectangle)
        << length << " at " << cut;
  }
}

TEST(TaskPrice, pairs_decide_whatever_keys_they_are_of) {
  const AttentionProfile profile = h200_profile();
  AttentionShape shape = kShape;
  const TaskPrice everything(shape, &profile);
  shape.mask.window_left = 1023;
  const TaskPrice windowed(shape, &profile);
  // 4,096 queries that see 1,024 keys each, as a window and as a rectangle.
  EXPECT_EQ(windowed({8192, 12288}, {0, 12288}), everything({8192, 12288}, {0, 1024}));
  EXPECT_EQ(everything({8192, 12288}, {0, 1024}),
            everything({0, 4096}, {0, 1024}, MaskKind::kFull));
  EXPECT_EQ(everything({10, 20}, {20, 30}), 0);
  EXPECT_EQ(everything({10, 10}, {0, 30}), 0);
}

TEST(TaskPrice, other_shapes_go_by_heads_and_dims) {
  const AttentionProfile profile = h200_profile();
  const TaskPrice one(kShape, &profile);
  const TaskPrice two({.num_heads = 8, .num_kv_heads = 1}, &profile);
  const TaskPrice quarter({.num_heads = 2, .head_dim_qk = 64, .head_dim_v = 64}, &profile);
  const Range all{0, 20000};
  EXPECT_NEAR(static_cast<double>(two(all, all)), 2.0 * static_cast<double>(one(all, all)), 2);
  EXPECT_NEAR(static_cast<double>(quarter(all, all)), 0.25 * static_cast<double>(one(all, all)), 2);
}

TEST(TaskPrice, the_largest_task_of_the_slowest_machine_does_not_overflow) {
  AttentionProfile profile{.machine = "m", .path = "p", .shape = kShape};
  profile.q_tokens = profile.kv_tokens = {1};
  profile.forward_ns = profile.backward_ns = {int64_t{1} << 50};
  const TaskPrice price(kShape, &profile);
  const Range all{0, int64_t{1} << 30};
  EXPECT_EQ(price(all, all), 2 * TaskPrice::kMostNs);
  EXPECT_EQ(price(all, all, MaskKind::kFull), 2 * TaskPrice::kMostNs);
}

}  // namespace
}  // namespace distca
