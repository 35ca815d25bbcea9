// Launches are played in double by what FlashAttention says it computes, a sequence at a time, and
// compared with the reference over the tasks.

#include "distca/kernels/varlen_launches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <set>

#include "distca/base/error.h"
#include "distca/kernels/attention_testing.h"
#include "distca/kernels/reference/attention.h"

namespace distca::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::kNoKey;
using testing::Tensor;

constexpr ScalarType kType = ScalarType::kFloat64;
constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 8;
const Shape kShape{.num_heads = kHeads,
                   .num_kv_heads = kKvHeads,
                   .head_dim_qk = kDim,
                   .head_dim_v = kDim,
                   .softmax_scale = 0.4};

Tensor query_rows(int64_t tokens, int64_t dim = kDim) { return {kType, tokens, kHeads, dim}; }
Tensor key_rows(int64_t tokens) { return {kType, tokens, kKvHeads, kDim, /*gap=*/2}; }

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
    return plan_forward_launches(kType, all);
  }
  VarlenPlan backward_plan() {
    std::vector<VarlenTask> all;
    for (const BackwardTask& task : backward_tasks()) all.push_back(varlen_task(task));
    return plan_backward_launches(kType, all);
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

void copy_row(const Rows& from, int64_t row, const Rows& to, int64_t to_row, int64_t head,
              int64_t dim, bool add = false) {
  std::vector<double> values(dim);
  read_row(from, kType, row, head, values);
  (add ? add_to_row : write_row)(to, kType, to_row, head, values);
}
void copy_rows(const Rows& from, const Rows& to, int64_t tokens, int64_t heads, int64_t dim,
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

void expect_equal(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i]) continue;  // -infinity too
    ASSERT_NEAR(actual[i], expected[i], 1e-11 * (1 + std::abs(expected[i]))) << i;
  }
}

/// Whether no key of the gathered buffers is copied twice.
bool copies_once(const VarlenPlan& plan) {
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
void expect_like_the_reference(World& world) {
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

/// Keys of a document as they lie in memory.
struct Segment {
  Range keys;
  size_t store;
  int64_t row;
};

void add_random_task(World& world, const std::vector<Segment>& document, const Mask& mask) {
  const int64_t length = document.back().keys.end;
  const int64_t begin = world.uniform(0, length), end = world.uniform(begin, length);
  TaskRows& task = world.add_task({begin, end}, mask);
  Range keys{0, world.uniform(0, 3) == 0 ? length : end};
  if (world.uniform(0, 2) == 0) keys = {world.uniform(0, keys.end), world.uniform(0, keys.end)};
  for (const Segment& segment : document) {
    Range part = intersect(keys, segment.keys);
    while (!part.empty()) {
      const int64_t tokens = world.uniform(0, 2) == 0 ? world.uniform(1, part.size()) : part.size();
      world.add_keys(task, part.begin, tokens, segment.store,
                     segment.row + part.begin - segment.keys.begin);
      part.begin += tokens;
    }
  }
}

TEST(VarlenLaunches, equal_the_reference_for_random_tasks_in_any_memory) {
  const Mask masks[] = {{},
                        {.causal = false},
                        {.window_left = 0},
                        {.window_left = 7},
                        {.causal = false, .window_left = 9, .window_right = 4},
                        {.causal = false, .window_left = 12},
                        {.causal = false, .window_right = 3}};
  for (uint64_t seed = 0; seed < 140; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    std::vector<int64_t> used;
    for (int store = 0; store < 3; ++store) world.add_store(200), used.push_back(0);
    for (int64_t documents = world.uniform(1, 3); documents > 0; --documents) {
      std::vector<Segment> document;
      for (int64_t at = 0, n = world.uniform(1, 4); n > 0; --n) {
        const int64_t tokens = world.uniform(1, 15), store = world.uniform(0, 2);
        int64_t& row = used[store] += world.uniform(0, 1) * world.uniform(0, 5);
        document.push_back({{at, at + tokens}, static_cast<size_t>(store), row});
        at += tokens, row += tokens;
      }
      for (int64_t tasks = world.uniform(0, 6); tasks > 0; --tasks) {
        add_random_task(world, document, masks[seed % std::size(masks)]);
      }
    }
    expect_like_the_reference(world);
    EXPECT_TRUE(copies_once(world.forward_plan()));
    EXPECT_TRUE(copies_once(world.backward_plan()));
    if (HasFailure()) return;
  }
}

TEST(VarlenLaunches, a_lone_key_needs_no_token_stride) {
  World world(1);
  world.add_store(3);
  for (const Range& queries : {Range{0, 4}, Range{4, 6}}) {
    TaskRows& task = world.add_task(queries);
    world.add_keys(task, 0, 1, 0, 1);
    task.keys[0].k.token_stride = task.keys[0].v.token_stride = 0;
  }
  expect_like_the_reference(world);
  EXPECT_EQ(world.forward_plan().buffers.size(), 1u);
}

/// A document of `length` keys in store 0, and a task for each shard with the keys it may see.
World shards(int64_t length, const std::vector<Range>& queries, const Mask& mask = {}) {
  World world(1);
  world.add_store(length);
  for (const Range& range : queries) {
    world.add_keys(world.add_task(range, mask), 0, range.end, 0, 0);
  }
  return world;
}

TEST(VarlenLaunches, forward_shards_of_a_document_share_its_keys_where_they_lie) {
  World world = shards(100, {{10, 30}, {60, 100}});
  const VarlenPlan plan = world.forward_plan();
  ASSERT_EQ(plan.buffers.size(), 1u);
  EXPECT_FALSE(plan.buffers[0].gathered());
  EXPECT_EQ(plan.buffers[0].k.data, world.tasks()[0].keys[0].k.data);
  ASSERT_EQ(plan.launches.size(), 1u);
  const VarlenLaunch& launch = plan.launches[0];
  EXPECT_TRUE(launch.right_limited);
  EXPECT_THAT(launch.cu_seqlens_q, ElementsAre(0, 20, 60));
  EXPECT_THAT(launch.key_starts, ElementsAre(0, 0, 100));
  EXPECT_THAT(launch.keys_used, ElementsAre(30, 100));
  EXPECT_EQ(launch.max_queries, 40);
  EXPECT_EQ(launch.max_keys, 100);
}

TEST(VarlenLaunches, backward_neighbours_are_one_sequence_and_others_another_launch) {
  World world = shards(100, {{30, 40}, {10, 30}, {60, 100}});
  const VarlenPlan plan = world.backward_plan();
  ASSERT_EQ(plan.launches.size(), 2u);
  EXPECT_THAT(plan.launches[0].pieces,
              ElementsAre(QueryPiece{1, {10, 30}}, QueryPiece{0, {30, 40}}));
  EXPECT_THAT(plan.launches[0].keys_used, ElementsAre(40));
  EXPECT_THAT(plan.launches[1].keys_used, ElementsAre(100));
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, backward_keys_that_no_sequence_reads_are_a_sequence_without_queries) {
  World world(1);
  world.add_store(100);
  world.add_keys(world.add_task({0, 20}), 0, 20, 0, 0);    // document 1: rows 0 to 20
  world.add_keys(world.add_task({0, 50}), 0, 50, 0, 20);   // document 2: rows 20 to 70
  world.add_keys(world.add_task({90, 99}), 0, 50, 0, 20);  // ... seen whole: another mask
  world.add_keys(world.add_task({0, 30}), 0, 30, 0, 70);   // document 3: rows 70 to 100
  world.add_keys(world.add_task({85, 95}), 10, 15, 0, 5);  // of document 1, seen whole
  const VarlenPlan plan = world.backward_plan();
  ASSERT_EQ(plan.launches.size(), 2u);
  EXPECT_TRUE(plan.launches[0].right_limited);
  EXPECT_THAT(plan.launches[0].key_starts, ElementsAre(0, 20, 70, 100));
  EXPECT_FALSE(plan.launches[1].right_limited);
  EXPECT_EQ(plan.launches[1].key_rows, (Range{5, 70}));
  EXPECT_THAT(plan.launches[1].cu_seqlens_q, ElementsAre(0, 10, 19));
  EXPECT_THAT(plan.launches[1].key_starts, ElementsAre(0, 15, 65));
  expect_like_the_reference(world);
  world.tasks()[4].keys[0].tokens = 10;
  const VarlenPlan gap = world.backward_plan();
  EXPECT_THAT(gap.launches[1].cu_seqlens_q, ElementsAre(0, 10, 10, 19));
  EXPECT_THAT(gap.launches[1].key_starts, ElementsAre(0, 10, 15, 65));
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, gradients_that_adjoin_in_memory_are_added_at_once) {
  World world(1);
  world.add_store(60);
  for (const int64_t row : {40, 0, 20}) {
    world.add_keys(world.add_task({0, 20}), 0, 20, 0, row);
  }
  const VarlenPlan plan = world.backward_plan();
  ASSERT_EQ(plan.launches.size(), 1u);
  EXPECT_EQ(plan.launches[0].sequences(), 3);
  ASSERT_EQ(plan.launches[0].gradients.size(), 1u);
  EXPECT_EQ(plan.launches[0].gradients[0].tokens, 60);
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, keys_that_end_before_the_diagonal_are_cut_into_causal_and_full) {
  World world(1);
  world.add_store(100);
  world.add_keys(world.add_task({30, 90}), 20, 40, 0, 20);  // keys 20 to 60
  world.add_keys(world.add_task({0, 10}), 20, 40, 0, 20);   // sees none
  const VarlenPlan plan = world.forward_plan();
  ASSERT_EQ(plan.launches.size(), 2u);
  EXPECT_TRUE(plan.launches[0].right_limited);
  EXPECT_THAT(plan.launches[0].pieces, ElementsAre(QueryPiece{0, {30, 60}}));
  EXPECT_FALSE(plan.launches[1].right_limited);
  EXPECT_THAT(plan.launches[1].pieces, ElementsAre(QueryPiece{0, {60, 90}}));
  EXPECT_THAT(plan.launches[1].keys_used, ElementsAre(40));
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, a_window_alone_at_the_left_may_have_more_queries_than_keys) {
  World world(1);
  world.add_store(10);
  world.add_keys(world.add_task({10, 40}, {.window_left = 25}), 0, 10, 0, 0);
  expect_like_the_reference(world);
  const VarlenPlan plan = world.forward_plan();
  ASSERT_EQ(plan.launches.size(), 1u);
  EXPECT_THAT(plan.launches[0].pieces, ElementsAre(QueryPiece{0, {10, 35}}));
  EXPECT_EQ(plan.launches[0].max_keys, 25);
}

TEST(VarlenLaunches, keys_in_several_memories_are_gathered_once_for_all_their_tasks) {
  World world(1);
  for (int store = 0; store < 3; ++store) world.add_store(100);
  const auto document = [&](TaskRows& task, int64_t to) {
    world.add_keys(task, 0, 20, 0, 5);
    world.add_keys(task, 20, std::min<int64_t>(to, 50) - 20, 1, 7);
    if (to > 50) world.add_keys(task, 50, to - 50, 2, 0);
  };
  document(world.add_task({20, 40}), 40);
  document(world.add_task({45, 80}), 80);
  world.add_keys(world.add_task({0, 20}), 0, 20, 0, 5);  // lies in a row
  const VarlenPlan plan = world.forward_plan();
  ASSERT_EQ(plan.buffers.size(), 2u);
  EXPECT_FALSE(plan.buffers[0].gathered());
  EXPECT_EQ(plan.buffers[1].rows, 80);
  ASSERT_EQ(plan.buffers[1].copies.size(), 3u);
  EXPECT_EQ(plan.buffers[1].copies[2].row, 50);
  ASSERT_EQ(plan.launches.size(), 2u);
  EXPECT_THAT(plan.launches[1].key_starts, ElementsAre(0, 0, 80));
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, a_position_stored_twice_is_read_from_where_each_task_has_it) {
  World world(1);
  for (int store = 0; store < 2; ++store) world.add_store(60);
  for (const size_t store : {0, 1}) {
    TaskRows& task = world.add_task({20, 40});
    world.add_keys(task, 0, 20, 0, 0);
    world.add_keys(task, 20, 20, 1, store == 0 ? 3 : 30);
  }
  EXPECT_EQ(world.forward_plan().buffers.back().rows, 80);
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, neighbours_with_gradients_in_other_memory_stay_two_sequences) {
  World world = shards(40, {{0, 20}, {20, 40}});
  EXPECT_EQ(world.backward_plan().launches.size(), 1u);
  const size_t other = world.add_store(40);
  TaskRows elsewhere = world.tasks()[1];
  world.add_keys(elsewhere, 0, 40, other, 0);
  world.tasks()[1].gradients[0] = elsewhere.gradients.back();
  EXPECT_EQ(world.backward_plan().launches.size(), 2u);
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, documents_share_a_buffer_only_if_both_k_and_v_are_rows_of_it) {
  World world(1);
  world.add_store(40);
  world.add_keys(world.add_task({0, 20}), 0, 20, 0, 0);
  world.add_keys(world.add_task({0, 20}), 0, 20, 0, 20);
  EXPECT_EQ(world.forward_plan().buffers.size(), 1u);
  EXPECT_EQ(world.backward_plan().buffers.size(), 1u);
  std::swap(world.tasks()[0].keys[0].v, world.tasks()[1].keys[0].v);
  EXPECT_EQ(world.forward_plan().buffers.size(), 2u);
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, forward_shares_a_buffer_over_gaps_and_backward_does_not) {
  World world(1);
  world.add_store(100);
  world.add_keys(world.add_task({0, 20}), 0, 20, 0, 0);
  world.add_keys(world.add_task({0, 20}), 0, 20, 0, 50);
  EXPECT_EQ(world.forward_plan().launches.size(), 1u);
  EXPECT_EQ(world.backward_plan().launches.size(), 2u);
  expect_like_the_reference(world);
}

TEST(VarlenLaunches, memory_that_is_not_aligned_is_gathered) {
  World world(1);
  world.add_store(20);
  TaskRows& task = world.add_task({0, 20});
  world.add_keys(task, 0, 20, 0, 0);
  std::vector<std::byte> moved(world.tasks()[0].keys[0].tokens * 20 * 8 + 24);
  EXPECT_FALSE(world.forward_plan().buffers[0].gathered());
  task.keys[0].k.data = moved.data() + 8;
  EXPECT_TRUE(world.forward_plan().buffers[0].gathered());
}

TEST(VarlenLaunches, nothing_to_do_is_no_launch) {
  World world = shards(10, {{4, 4}});
  world.add_task({0, 5});  // no keys
  EXPECT_THAT(world.forward_plan().launches, IsEmpty());
  EXPECT_THAT(world.backward_plan().launches, IsEmpty());
  EXPECT_THAT(plan_forward_launches(kType, {}).buffers, IsEmpty());
}

TEST(VarlenLaunches, a_gap_between_keys_is_a_check) {
  World world(1);
  world.add_store(20);
  TaskRows& task = world.add_task({0, 20});
  world.add_keys(task, 0, 5, 0, 0);
  world.add_keys(task, 6, 5, 0, 6);
  EXPECT_FALSE(keys_are_consecutive(task.keys));
  EXPECT_THROW(world.forward_plan(), CheckFailure);
}

}  // namespace
}  // namespace distca::kernels
