#pragma once
// For tests of launches: plays them in double by what FlashAttention says it computes, a sequence
// at a time, and compares with the reference over the tasks.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "distca/kernels/attention_testing.h"
#include "distca/kernels/reference/attention.h"
#include "distca/kernels/varlen_launches.h"

namespace distca::kernels::testing {

inline constexpr ScalarType kType = ScalarType::kFloat64;
inline constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 8;
inline const Shape kShape{.num_heads = kHeads,
                          .num_kv_heads = kKvHeads,
                          .head_dim_qk = kDim,
                          .head_dim_v = kDim,
                          .softmax_scale = 0.4};

inline Tensor query_rows(int64_t tokens, int64_t dim = kDim) {
  return {kType, tokens, kHeads, dim};
}
inline Tensor key_rows(int64_t tokens) { return {kType, tokens, kKvHeads, kDim, /*gap=*/2}; }

/// A key buffer.
struct Store {
  explicit Store(int64_t tokens)
      : k(key_rows(tokens)), v(key_rows(tokens)), dk(key_rows(tokens)), dv(key_rows(tokens)) {}
  Tensor k, v, dk, dv;
};

/// A query buffer.
struct QueryStore {
  explicit QueryStore(int64_t tokens)
      : q(query_rows(tokens)), d_o(q), o(q), dq(q), lse(query_rows(tokens, 1)), delta(lse) {}
  Tensor q, d_o, o, dq, lse, delta;
};

/// Tasks, their memory and what comes out.
class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {}

  TaskList list;
  LaunchLimits limits{};

  size_t add_store(int64_t tokens) {
    Store& store = stores_.emplace_back(tokens);
    for (Tensor* t : {&store.k, &store.v}) fill(*t);
    list.keys.push_back({.tokens = tokens,
                         .k = store.k.rows(),
                         .v = store.v.rows(),
                         .dk = store.dk.rows(),
                         .dv = store.dv.rows()});
    return stores_.size() - 1;
  }
  /// A task whose queries are a buffer of their own.
  Task& add_task(const Range& queries, const Mask& mask = {}) {
    QueryStore& store = queries_.emplace_back(queries.size());
    for (Tensor* t : {&store.q, &store.d_o, &store.delta}) fill(*t);
    list.queries.push_back({.tokens = queries.size(),
                            .q = store.q.rows(),
                            .o = store.o.rows(),
                            .lse = store.lse.rows(),
                            .d_o = store.d_o.rows(),
                            .delta = store.delta.rows(),
                            .dq = store.dq.rows()});
    list.tasks.push_back({.query_buffer = static_cast<int64_t>(queries_.size()) - 1,
                          .q_tokens = queries.size(),
                          .q_position = queries.begin,
                          .mask = mask});
    return list.tasks.back();
  }
  VarlenPlan forward_plan() const { return plan_forward_launches(kType, list, limits); }
  VarlenPlan backward_plan() const { return plan_backward_launches(kType, list, limits); }
  /// O and LSE, or with `gradients` dQ, dK, dV, of everything.
  std::vector<double> values(bool gradients) {
    std::vector<double> all;
    const auto append = [&](const Tensor& t) {
      const std::vector<double> v = t.values();
      all.insert(all.end(), v.begin(), v.end());
    };
    for (const QueryStore& t : queries_) {
      if (gradients) append(t.dq);
      if (!gradients) append(t.o), append(t.lse);
    }
    for (const Store& s : stores_) {
      if (gradients) append(s.dk), append(s.dv);
    }
    return all;
  }
  void clear(bool gradients) {
    for (QueryStore& t : queries_) {
      if (gradients) t.dq.fill([] { return 0; });
      if (gradients) continue;
      t.o.fill([] { return 0; });
      t.lse.fill([] { return kNoKey; });
    }
    for (Store& s : stores_) {
      if (gradients) s.dk.fill([] { return 0; }), s.dv.fill([] { return 0; });
    }
  }
  int64_t uniform(int64_t low, int64_t high) {  // both included
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

 private:
  void fill(Tensor& tensor) {
    std::normal_distribution<double> normal;
    tensor.fill([&] { return normal(random_); });
  }

  std::mt19937_64 random_;
  std::deque<Store> stores_;
  std::deque<QueryStore> queries_;
};

/// Gives the task keys [position, position + tokens): rows of a store from `row` on.
inline void add_keys(Task& task, int64_t position, int64_t tokens, size_t store, int64_t row) {
  task.keys.push_back({static_cast<int64_t>(store), row, tokens, position});
}

inline void copy_row(const Rows& from, int64_t row, const Rows& to, int64_t to_row, int64_t head,
                     int64_t dim, bool add = false) {
  std::vector<double> values(dim);
  read_row(from, kType, row, head, values);
  (add ? add_to_row : write_row)(to, kType, to_row, head, values);
}
inline void copy_rows(const Rows& from, const Rows& to, int64_t tokens, int64_t heads, int64_t dim,
                      bool add = false) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) copy_row(from, t, to, t, h, dim, add);
  }
}

/// Plays the launches of a plan as the operator does, on packed rows.
class Player {
 public:
  Player(World& world, const VarlenPlan& plan, bool backward)
      : world_(world), list_(world.list), plan_(plan) {
    gathered_.emplace(plan.gathered_rows());
    for (const auto& [buffer, from, tokens, row] : plan.gathered) {
      const KeyBuffer& keys = list_.keys[buffer];
      copy_rows(shifted(keys.k, kType, from, 0), gathered_->k.rows(row), tokens, kKvHeads, kDim);
      copy_rows(shifted(keys.v, kType, from, 0), gathered_->v.rows(row), tokens, kKvHeads, kDim);
    }
    for (const VarlenLaunch& launch : plan.launches) {
      check(launch, backward);
      backward ? play_backward(launch) : play_forward(launch);
    }
  }

 private:
  /// A packed tensor of the launch's queries, from or to their buffers.
  Tensor pack(const VarlenLaunch& launch, Rows QueryBuffer::*field, int64_t dim) {
    Tensor packed = query_rows(launch.query_rows(), dim);
    for_pieces(launch, [&](int64_t row, const QueryBuffer& buffer, int64_t from, int64_t tokens) {
      copy_rows(shifted(buffer.*field, kType, from, 0), packed.rows(row), tokens, kHeads, dim);
    });
    return packed;
  }
  void unpack(const VarlenLaunch& launch, Tensor& packed, Rows QueryBuffer::*field, int64_t dim,
              bool add) {
    for_pieces(launch, [&](int64_t row, const QueryBuffer& buffer, int64_t to, int64_t tokens) {
      copy_rows(packed.rows(row), shifted(buffer.*field, kType, to, 0), tokens, kHeads, dim, add);
    });
  }
  template <typename Body>
  void for_pieces(const VarlenLaunch& launch, Body body) {
    int64_t row = 0;
    for (const QueryPiece& piece : launch.pieces) {
      const Task& task = list_.tasks[piece.task];
      body(row, list_.queries[task.query_buffer],
           task.q_row + piece.queries.begin - task.q_position, piece.queries.size());
      row += piece.queries.size();
    }
    ASSERT_EQ(row, launch.query_rows());
  }

  void check(const VarlenLaunch& launch, bool backward) {
    const LaunchLimits& limits = world_.limits;
    ASSERT_LE(launch.sequences(), limits.sequences);
    if (backward && launch.sequences() > 1) {
      ASSERT_LE(launch.sequences() * kPaddingRows,
                std::max(limits.padding_rows, launch.query_rows()));
    }
    std::set<int> lengths;
    ASSERT_EQ(launch.cu_seqlens_q.size(), launch.keys_used.size() + 1);
    ASSERT_EQ(launch.key_starts.size(), launch.keys_used.size() + 1);
    ASSERT_LE(launch.key_rows.end, keys_of(launch).tokens);
    for (int64_t b = 0; b < launch.sequences(); ++b) {
      ASSERT_GE(launch.key_starts[b], 0);
      ASSERT_LE(launch.key_starts[b] + launch.keys_used[b], launch.key_rows.size());
      const int64_t queries = launch.cu_seqlens_q[b + 1] - launch.cu_seqlens_q[b];
      ASSERT_GT(launch.keys_used[b], 0);
      ASSERT_LE(queries, launch.max_queries);
      if (queries > 0) {
        const int64_t keys = launch.keys_used[b];
        lengths.insert(length_class(backward ? std::max(queries, keys) : queries, limits));
      }
      ASSERT_TRUE(queries == 0 || launch.keys_used[b] <= launch.max_keys);
    }
    ASSERT_EQ(lengths.size(), 1u);
    ASSERT_LT(launch.window_left, launch.max_keys) << "rows and window are added in 32 bits";
  }

  KeyBuffer keys_of(const VarlenLaunch& launch) {
    if (launch.buffer != kGathered) return list_.keys[launch.buffer];
    return {.tokens = plan_.gathered_rows(), .k = gathered_->k.rows(), .v = gathered_->v.rows()};
  }
  /// One sequence of the launch: its queries of `queries`, the last of both at one position.
  TaskList sequence(const VarlenLaunch& launch, int64_t b, const QueryBuffer& queries,
                    const KeyBuffer& keys, int64_t first_key_row) {
    const int64_t first = launch.cu_seqlens_q[b], n = launch.cu_seqlens_q[b + 1] - first;
    return {.queries = {queries},
            .keys = {keys},
            .tasks = {{.q_row = first,
                       .q_tokens = n,
                       .q_position = launch.keys_used[b],
                       .keys = {{.row = first_key_row + launch.key_starts[b],
                                 .tokens = launch.keys_used[b],
                                 .position = n}},
                       .mask = mask(launch)}}};
  }
  /// The operator's mask, in positions that start at `queries`.
  static Mask mask(const VarlenLaunch& launch) {
    Mask mask{.causal = launch.right_limited};
    if (launch.window_left >= 0) {
      mask.window_left = launch.window_left;
      if (!launch.right_limited) mask.window_right = launch.max_keys;
    }
    return mask;
  }

  void play_forward(const VarlenLaunch& launch) {
    Tensor q = pack(launch, &QueryBuffer::q, kDim);
    Tensor o = query_rows(launch.query_rows()), lse = query_rows(launch.query_rows(), 1);
    const QueryBuffer queries{
        .tokens = launch.query_rows(), .q = q.rows(), .o = o.rows(), .lse = lse.rows()};
    for (int64_t b = 0; b < launch.sequences(); ++b) {
      reference_forward(kShape, kType, kType,
                        sequence(launch, b, queries, keys_of(launch), launch.key_rows.begin));
    }
    for (const double x : lse.values()) ASSERT_NE(x, kNoKey) << "a row that sees no key";
    unpack(launch, o, &QueryBuffer::o, kDim, false);
    unpack(launch, lse, &QueryBuffer::lse, 1, false);
  }

  void play_backward(const VarlenLaunch& launch) {
    Tensor q = pack(launch, &QueryBuffer::q, kDim), d_o = pack(launch, &QueryBuffer::d_o, kDim);
    Tensor lse = pack(launch, &QueryBuffer::lse, 1), delta = pack(launch, &QueryBuffer::delta, 1);
    Tensor dq = query_rows(launch.query_rows());
    dq.fill([] { return 0; });
    Tensor dk = key_rows(launch.key_rows.size()), dv = dk;
    const QueryBuffer queries{.tokens = launch.query_rows(),
                              .q = q.rows(),
                              .lse = lse.rows(),
                              .d_o = d_o.rows(),
                              .delta = delta.rows(),
                              .dq = dq.rows()};
    KeyBuffer rows = keys_of(launch);  // the launch's keys
    rows = {.tokens = launch.key_rows.size(),
            .k = shifted(rows.k, kType, launch.key_rows.begin, 0),
            .v = shifted(rows.v, kType, launch.key_rows.begin, 0),
            .dk = dk.rows(),
            .dv = dv.rows()};
    for (int64_t b = 0; b < launch.sequences(); ++b) {
      ASSERT_EQ(launch.key_starts[b] + launch.keys_used[b], launch.key_starts[b + 1]);
      if (launch.cu_seqlens_q[b] == launch.cu_seqlens_q[b + 1]) continue;  // no gradients written
      for (int64_t row = launch.key_starts[b]; row < launch.key_starts[b + 1]; ++row) {
        for (int64_t h = 0; h < kKvHeads; ++h) {
          for (int64_t i = 0; i < kDim; ++i) dk.set(row, h, i, 0), dv.set(row, h, i, 0);
        }
      }
      reference_backward(kShape, kType, sequence(launch, b, queries, rows, 0));
    }
    unpack(launch, dq, &QueryBuffer::dq, kDim, true);
    for (const auto& [buffer, to, tokens, row] : launch.gradients) {
      const KeyBuffer& keys = list_.keys[buffer];
      copy_rows(dk.rows(row), shifted(keys.dk, kType, to, 0), tokens, kKvHeads, kDim, true);
      copy_rows(dv.rows(row), shifted(keys.dv, kType, to, 0), tokens, kKvHeads, kDim, true);
    }
  }

  World& world_;
  const TaskList& list_;
  const VarlenPlan& plan_;
  std::optional<Store> gathered_;
};

inline void expect_equal(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i]) continue;  // -infinity too
    ASSERT_NEAR(actual[i], expected[i], 1e-11 * (1 + std::abs(expected[i]))) << i;
  }
}

/// Returns true if no key is gathered twice.
inline bool copies_once(const VarlenPlan& plan) {
  std::set<std::pair<int64_t, int64_t>> seen;  // (buffer, row)
  for (const RowRun& run : plan.gathered) {
    for (int64_t t = 0; t < run.tokens; ++t) {
      if (!seen.emplace(run.buffer, run.from + t).second) return false;
    }
  }
  return true;
}

/// Both passes; LSE of the reference's forward goes into both backwards.
inline void expect_like_the_reference(World& world) {
  world.clear(false);
  Player(world, world.forward_plan(), false);
  const std::vector<double> forward = world.values(false);
  world.clear(false);
  reference_forward(kShape, kType, kType, world.list);
  expect_equal(forward, world.values(false));
  world.clear(true);
  Player(world, world.backward_plan(), true);
  const std::vector<double> backward = world.values(true);
  world.clear(true);
  reference_backward(kShape, kType, world.list);
  expect_equal(backward, world.values(true));
}

}  // namespace distca::kernels::testing
