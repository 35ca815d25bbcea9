#pragma once
// For tests of launches: plays them in double by what FlashAttention says it computes, a sequence
// at a time, and compares with the reference over the tasks.

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>
#include <set>
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

/// Memory that keys and their gradients lie in.
struct Store {
  explicit Store(int64_t tokens)
      : k(key_rows(tokens)), v(key_rows(tokens)), dk(key_rows(tokens)), dv(key_rows(tokens)) {}
  Tensor k, v, dk, dv;
};

struct TaskRows {
  Range queries;
  Mask mask;
  std::vector<KeyFragment> keys{};
  std::vector<KeyGradient> gradients{};
  Tensor q = query_rows(queries.size()), d_o = q, o = q, dq = q,
         lse = query_rows(queries.size(), 1), delta = lse;
};

/// Tasks, their memory and what comes out.
class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {}

  int64_t most_sequences = kMostSequences;  // of a launch

  size_t add_store(int64_t tokens) {
    Store& store = stores_.emplace_back(tokens);
    for (Tensor* t : {&store.k, &store.v}) fill(*t);
    return stores_.size() - 1;
  }
  TaskRows& add_task(const Range& queries, const Mask& mask = {}) {
    TaskRows& task = tasks_.emplace_back(TaskRows{.queries = queries, .mask = mask});
    for (Tensor* t : {&task.q, &task.d_o, &task.delta}) fill(*t);
    return task;
  }
  /// Gives the task `tokens` more keys, which lie from `row` of a store on.
  void add_keys(TaskRows& task, int64_t position, int64_t tokens, size_t store, int64_t row) {
    Store& s = stores_[store];
    task.keys.push_back({s.k.rows(row), s.v.rows(row), tokens, position});
    task.gradients.push_back({s.dk.rows(row), s.dv.rows(row)});
  }

  std::vector<ForwardTask> forward_tasks() {
    std::vector<ForwardTask> all;
    for (TaskRows& t : tasks_) {
      all.push_back({.q = t.q.rows(),
                     .o = t.o.rows(),
                     .lse = t.lse.rows(),
                     .q_tokens = t.queries.size(),
                     .q_position = t.queries.begin,
                     .keys = t.keys,
                     .mask = t.mask});
    }
    return all;
  }
  std::vector<BackwardTask> backward_tasks() {
    std::vector<BackwardTask> all;
    for (TaskRows& t : tasks_) {
      all.push_back({.q = t.q.rows(),
                     .d_o = t.d_o.rows(),
                     .lse = t.lse.rows(),
                     .delta = t.delta.rows(),
                     .dq = t.dq.rows(),
                     .q_tokens = t.queries.size(),
                     .q_position = t.queries.begin,
                     .keys = t.keys,
                     .key_gradients = t.gradients,
                     .mask = t.mask});
    }
    return all;
  }
  VarlenPlan forward_plan() {
    std::vector<VarlenTask> all;
    for (const ForwardTask& task : forward_tasks()) all.push_back(varlen_task(task));
    return plan_forward_launches(kType, all, most_sequences);
  }
  VarlenPlan backward_plan() {
    std::vector<VarlenTask> all;
    for (const BackwardTask& task : backward_tasks()) all.push_back(varlen_task(task));
    return plan_backward_launches(kType, all, most_sequences);
  }
  /// O and LSE, or with `gradients` dQ, dK, dV, of everything.
  std::vector<double> values(bool gradients) {
    std::vector<double> all;
    const auto append = [&](const Tensor& t) {
      const std::vector<double> v = t.values();
      all.insert(all.end(), v.begin(), v.end());
    };
    for (TaskRows& t : tasks_) {
      if (gradients) append(t.dq);
      if (!gradients) append(t.o), append(t.lse);
    }
    for (Store& s : stores_) {
      if (gradients) append(s.dk), append(s.dv);
    }
    return all;
  }
  void clear(bool gradients) {
    for (TaskRows& t : tasks_) {
      if (gradients) t.dq.fill([] { return 0; });
      if (gradients) continue;
      t.o.fill([] { return 0; });
      t.lse.fill([] { return kNoKey; });
    }
    for (Store& s : stores_) {
      if (gradients) s.dk.fill([] { return 0; }), s.dv.fill([] { return 0; });
    }
  }
  std::deque<TaskRows>& tasks() { return tasks_; }
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
  std::deque<TaskRows> tasks_;
};

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

/// What the operator does, on packed rows.
class Player {
 public:
  Player(World& world, const VarlenPlan& plan, bool backward) : world_(world), plan_(plan) {
    for (const KeyBuffer& buffer : plan.buffers) {
      if (!buffer.gathered()) continue;
      k_ = key_rows(buffer.rows), v_ = key_rows(buffer.rows);
      for (const KeyCopy& copy : buffer.copies) {
        copy_rows(copy.k, k_.rows(copy.row), copy.tokens, kKvHeads, kDim);
        copy_rows(copy.v, v_.rows(copy.row), copy.tokens, kKvHeads, kDim);
      }
    }
    for (const VarlenLaunch& launch : plan.launches) {
      check(launch);
      backward ? play_backward(launch) : play_forward(launch);
    }
  }

 private:
  /// A packed tensor of the launch's queries, from or to the tasks' rows.
  Tensor pack(const VarlenLaunch& launch, Tensor TaskRows::*member, int64_t dim) {
    Tensor packed = query_rows(launch.query_rows(), dim);
    move(launch, packed, dim, member, [&](const Rows& p, const Rows& t, int64_t tokens) {
      copy_rows(t, p, tokens, kHeads, dim);
    });
    return packed;
  }
  void unpack(const VarlenLaunch& launch, Tensor& packed, Tensor TaskRows::*member, int64_t dim,
              bool add) {
    move(launch, packed, dim, member, [&](const Rows& p, const Rows& t, int64_t tokens) {
      copy_rows(p, t, tokens, kHeads, dim, add);
    });
  }
  template <typename Move>
  void move(const VarlenLaunch& launch, Tensor& packed, int64_t, Tensor TaskRows::*member,
            Move body) {
    int64_t row = 0;
    for (const QueryPiece& piece : launch.pieces) {
      TaskRows& task = world_.tasks()[piece.task];
      body(packed.rows(row), (task.*member).rows(piece.queries.begin - task.queries.begin),
           piece.queries.size());
      row += piece.queries.size();
    }
    ASSERT_EQ(row, launch.query_rows());
  }

  void check(const VarlenLaunch& launch) {
    ASSERT_LE(launch.sequences(), world_.most_sequences);
    ASSERT_EQ(launch.cu_seqlens_q.size(), launch.keys_used.size() + 1);
    ASSERT_EQ(launch.key_starts.size(), launch.keys_used.size() + 1);
    ASSERT_LE(launch.key_rows.end, plan_.buffers[launch.buffer].rows);
    for (int64_t b = 0; b < launch.sequences(); ++b) {
      ASSERT_GE(launch.key_starts[b], 0);
      ASSERT_LE(launch.key_starts[b] + launch.keys_used[b], launch.key_rows.size());
      const int64_t queries = launch.cu_seqlens_q[b + 1] - launch.cu_seqlens_q[b];
      ASSERT_GT(launch.keys_used[b], 0);
      ASSERT_LE(queries, launch.max_queries);
      ASSERT_TRUE(queries == 0 || launch.keys_used[b] <= launch.max_keys);
    }
  }

  KeyFragment keys(const VarlenLaunch& launch, int64_t b, int64_t position) {
    const KeyBuffer& buffer = plan_.buffers[launch.buffer];
    const int64_t row = launch.key_rows.begin + launch.key_starts[b];
    return {.k = shifted(buffer.gathered() ? k_.rows() : buffer.k, kType, row, 0),
            .v = shifted(buffer.gathered() ? v_.rows() : buffer.v, kType, row, 0),
            .tokens = launch.keys_used[b],
            .position = position};
  }
  /// The operator's mask, in positions that start at `queries`.
  static Mask mask(const VarlenLaunch& launch) {
    Mask mask{.causal = launch.right_limited};
    if (launch.window_left >= 0 && launch.window_left < launch.max_keys) {
      mask.window_left = launch.window_left;
      if (!launch.right_limited) mask.window_right = launch.max_keys;
    }
    return mask;
  }

  void play_forward(const VarlenLaunch& launch) {
    Tensor q = pack(launch, &TaskRows::q, kDim);
    Tensor o = query_rows(launch.query_rows()), lse = query_rows(launch.query_rows(), 1);
    for (int64_t b = 0; b < launch.sequences(); ++b) {
      const int64_t first = launch.cu_seqlens_q[b], n = launch.cu_seqlens_q[b + 1] - first;
      const KeyFragment fragment = keys(launch, b, n);
      const ForwardTask task{.q = q.rows(first),
                             .o = o.rows(first),
                             .lse = lse.rows(first),
                             .q_tokens = n,
                             .q_position = fragment.tokens,  // the last of both at one position
                             .keys = {&fragment, 1},
                             .mask = mask(launch)};
      reference_forward(kShape, kType, kType, {&task, 1});
    }
    for (const double x : lse.values()) ASSERT_NE(x, kNoKey) << "a row that sees no key";
    unpack(launch, o, &TaskRows::o, kDim, false);
    unpack(launch, lse, &TaskRows::lse, 1, false);
  }

  void play_backward(const VarlenLaunch& launch) {
    Tensor q = pack(launch, &TaskRows::q, kDim), d_o = pack(launch, &TaskRows::d_o, kDim);
    Tensor lse = pack(launch, &TaskRows::lse, 1), delta = pack(launch, &TaskRows::delta, 1);
    Tensor dq = query_rows(launch.query_rows());
    dq.fill([] { return 0; });
    Tensor dk = key_rows(launch.key_rows.size()), dv = dk;
    for (int64_t b = 0; b < launch.sequences(); ++b) {
      const int64_t first = launch.cu_seqlens_q[b], n = launch.cu_seqlens_q[b + 1] - first;
      ASSERT_EQ(launch.key_starts[b] + launch.keys_used[b], launch.key_starts[b + 1]);
      if (n == 0) continue;  // its gradients are not written
      for (int64_t row = launch.key_starts[b]; row < launch.key_starts[b + 1]; ++row) {
        for (int64_t h = 0; h < kKvHeads; ++h) {
          for (int64_t i = 0; i < kDim; ++i) dk.set(row, h, i, 0), dv.set(row, h, i, 0);
        }
      }
      const KeyFragment fragment = keys(launch, b, n);
      const KeyGradient gradient{dk.rows(launch.key_starts[b]), dv.rows(launch.key_starts[b])};
      const BackwardTask task{.q = q.rows(first),
                              .d_o = d_o.rows(first),
                              .lse = lse.rows(first),
                              .delta = delta.rows(first),
                              .dq = dq.rows(first),
                              .q_tokens = n,
                              .q_position = fragment.tokens,
                              .keys = {&fragment, 1},
                              .key_gradients = {&gradient, 1},
                              .mask = mask(launch)};
      reference_backward(kShape, kType, {&task, 1});
    }
    unpack(launch, dq, &TaskRows::dq, kDim, true);
    for (const GradientTarget& target : launch.gradients) {
      copy_rows(dk.rows(target.row), target.to.dk, target.tokens, kKvHeads, kDim, true);
      copy_rows(dv.rows(target.row), target.to.dv, target.tokens, kKvHeads, kDim, true);
    }
  }

  World& world_;
  const VarlenPlan& plan_;
  Tensor k_, v_;
};

inline void expect_equal(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i]) continue;  // -infinity too
    ASSERT_NEAR(actual[i], expected[i], 1e-11 * (1 + std::abs(expected[i]))) << i;
  }
}

/// Whether no key of the gathered buffers is copied twice.
inline bool copies_once(const VarlenPlan& plan) {
  std::set<const void*> seen;
  for (const KeyBuffer& buffer : plan.buffers) {
    for (const KeyCopy& copy : buffer.copies) {
      for (int64_t t = 0; t < copy.tokens; ++t) {
        if (!seen.insert(shifted(copy.k, kType, t, 0).data).second) return false;
      }
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
  reference_forward(kShape, kType, kType, world.forward_tasks());
  expect_equal(forward, world.values(false));
  world.clear(true);
  Player(world, world.backward_plan(), true);
  const std::vector<double> backward = world.values(true);
  world.clear(true);
  reference_backward(kShape, kType, world.backward_tasks());
  expect_equal(backward, world.values(true));
}

}  // namespace distca::kernels::testing
