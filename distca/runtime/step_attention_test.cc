// Core attention of plans whose tasks have only part of the keys their queries may see, against
// one worker's.

#include "distca/runtime/step_attention.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/thread_group.h"
#include "distca/plan/plan_testing.h"
#include "distca/plan/validate.h"
#include "distca/runtime/step_attention_testing.h"

namespace distca {
namespace {

using testing::Bounds;
using testing::bounds_of;
using testing::difference;
using ::testing::IsEmpty;
using testing::PerDocument;
using testing::same_bytes;

constexpr int64_t kHeads = 4, kKvHeads = 2;

struct Sizes {
  ScalarType dtype = ScalarType::kFloat64;
  int64_t head_dim_qk = 8;
  int64_t head_dim_v = 8;  // another than head_dim_qk: the matmul path
  int64_t window_left = -1;
  KernelChoice kernel = KernelChoice::kAuto;
  int threads = 1;
  bool backward = true;
  Overlap overlap = Overlap::kNone;
};

struct Outcome {
  PerDocument o, dq, dk, dv;
  std::vector<ExchangeBytes> bytes;  // [rank]
};

at::Tensor random_document(int64_t document, int which, int64_t length, int64_t heads, int64_t dim,
                           const Sizes& sizes) {
  at::Generator generator = at::detail::createCPUGenerator(document * 10 + which);
  return at::randn({length, heads, dim}, generator, at::kDouble).to(aten_type(sizes.dtype));
}

/// The rows of a worker's segments, and back.
at::Tensor gather(const PerDocument& documents, const std::vector<Segment>& segments,
                  const at::Tensor& like) {
  std::vector<at::Tensor> rows = {like};  // no rows: a worker may hold nothing
  for (const Segment& segment : segments) {
    rows.push_back(
        documents[segment.document].narrow(0, segment.tokens.begin, segment.tokens.size()));
  }
  return at::cat(rows);
}
void scatter(const at::Tensor& local, const std::vector<Segment>& segments,
             PerDocument& documents) {
  int64_t row = 0;
  for (const Segment& segment : segments) {
    const int64_t tokens = segment.tokens.size();
    documents[segment.document]
        .narrow(0, segment.tokens.begin, tokens)
        .copy_(local.narrow(0, row, tokens));
    row += tokens;
  }
}

Outcome run(const Plan& plan, const Sizes& sizes) {
  const std::array<int64_t, 4> heads = {kHeads, kKvHeads, kKvHeads, kHeads};  // Q, K, V, dO
  const std::array<int64_t, 4> dims = {sizes.head_dim_qk, sizes.head_dim_qk, sizes.head_dim_v,
                                       sizes.head_dim_v};
  std::array<PerDocument, 4> inputs, outputs;
  for (const Document& document : plan.nano_batch.documents) {
    for (int i = 0; i < 4; ++i) {
      inputs[i].push_back(
          random_document(document.id, i, document.length, heads[i], dims[i], sizes));
      outputs[i].push_back(at::full_like(inputs[i].back(), NAN));
    }
  }
  const PlanIndex index(plan);
  std::vector<ExchangeBytes> bytes(plan.cluster.num_servers());
  run_ranks(plan.cluster.num_servers(), {}, [&](Communicator& comm) {
    at::set_num_threads(1);
    const int rank = comm.rank();
    const std::vector<Segment> segments =
        rank < plan.layout.num_workers() ? plan.layout.workers[rank] : std::vector<Segment>{};
    std::array<at::Tensor, 4> in;
    for (int i = 0; i < 4; ++i) {
      in[i] =
          gather(inputs[i], segments, at::empty({0, heads[i], dims[i]}, aten_type(sizes.dtype)));
    }
    AttentionKernel kernel({.choice = sizes.kernel,
                            .shape = {.num_heads = kHeads,
                                      .num_kv_heads = kKvHeads,
                                      .head_dim_qk = sizes.head_dim_qk,
                                      .head_dim_v = sizes.head_dim_v,
                                      .softmax_scale = 0.5},
                            .type = sizes.dtype,
                            .threads = sizes.threads});
    testing::AttentionLayers layers = {{{.q = in[0], .k = in[1], .v = in[2], .d_o = in[3]}}};
    ExchangeBuffers buffers(/*cuda_device=*/-1);
    bytes[rank] = testing::play_attention(
        {index.exchange(rank)},
        {.overlap = sizes.overlap, .backward = sizes.backward, .window_left = sizes.window_left},
        kernel, comm, buffers, layers, rank < plan.cluster.num_workers);
    if (rank >= plan.cluster.num_workers) return;
    const testing::AttentionLayer& layer = layers[0][0];
    scatter(layer.o, segments, outputs[3]);
    if (!sizes.backward) return;
    scatter(layer.dq, segments, outputs[0]);
    scatter(layer.dk, segments, outputs[1]);
    scatter(layer.dv, segments, outputs[2]);
  });
  return {.o = outputs[3],
          .dq = outputs[0],
          .dk = outputs[1],
          .dv = outputs[2],
          .bytes = std::move(bytes)};
}

Plan one_worker(const Plan& plan) {
  std::vector<int64_t> lengths;
  for (const Document& document : plan.nano_batch.documents) lengths.push_back(document.length);
  return make_plan(testing::request_for(lengths, 1, "local"));
}

/// The number of merges that plans ask for.
struct Merges {
  int64_t on_servers = 0;   // merges of results of a server's own tasks
  int64_t at_home = 0;      // merges with results from servers
  int64_t without_key = 0;  // tasks with rows that see none of their keys

  void add(const Plan& plan) {
    const PlanIndex index(plan);
    for (int rank = 0; rank < plan.cluster.num_servers(); ++rank) {
      for (const RowMerge& merge : index.exchange(rank).merges) {
        const bool arrived = merge.parts.back().arrived;
        on_servers += !arrived && merge.parts.size() > 1;
        at_home += arrived;
      }
    }
    for (const Task& task : plan.tasks) without_key += task.q.begin < task.kv.begin;
  }
};

void expect_like_one_worker(const Plan& plan, const Sizes& sizes) {
  ASSERT_THAT(validate(plan, {.even_tokens = false}), IsEmpty());
  const Outcome want = run(one_worker(plan), sizes);
  const Outcome got = run(plan, sizes);
  int64_t longest = 0;
  for (const Document& document : plan.nano_batch.documents)
    longest = std::max(longest, document.length);
  const Bounds bounds = bounds_of(sizes.dtype, longest);
  EXPECT_LE(difference(got.o, want.o), bounds.forward);
  EXPECT_LE(difference(got.dq, want.dq), bounds.backward);
  EXPECT_LE(difference(got.dk, want.dk), bounds.backward);
  EXPECT_LE(difference(got.dv, want.dv), bounds.backward);
}

const std::vector<int64_t> kLengths = {700, 1, 130, 1100, 129, 384};

/// A kernel in a format.
struct Computed {
  KernelChoice kernel;
  ScalarType dtype;
};
constexpr Computed kExactAndOurs[] = {{KernelChoice::kAten, ScalarType::kFloat64},
                                      {KernelChoice::kCpu, ScalarType::kFloat32},
                                      {KernelChoice::kCpu, ScalarType::kBFloat16}};
constexpr Computed kAtens[] = {{KernelChoice::kAten, ScalarType::kFloat32},
                               {KernelChoice::kAten, ScalarType::kBFloat16}};

class SplitKvTest : public ::testing::TestWithParam<std::tuple<Computed, int>> {};

TEST_P(SplitKvTest, o_and_every_gradient_equal_one_workers) {
  const auto [computed, workers] = GetParam();
  const auto [kernel, dtype] = computed;
  Random random(17 + workers);
  Merges merges;
  for (Sizes sizes : {Sizes{.dtype = dtype}, Sizes{.dtype = dtype, .head_dim_qk = 16},
                      Sizes{.dtype = dtype, .window_left = 200}}) {
    sizes.kernel = kernel;
    for (const int dedicated : {0, 2}) {
      Plan plan = testing::random_plan(kLengths, workers, dedicated, random);
      testing::cut_tasks(plan, random);
      // Overlap: rows merged at home from tasks before and after what comes home was sent for.
      sizes.overlap = dedicated == 0 ? Overlap::kWithin : Overlap::kNone;
      SCOPED_TRACE(fmt::format("{} dedicated, head_dim_qk {}, window {}", dedicated,
                               sizes.head_dim_qk, sizes.window_left));
      merges.add(plan);
      expect_like_one_worker(plan, sizes);
    }
  }
  EXPECT_GT(merges.on_servers, 0);
  EXPECT_GT(merges.at_home, 0);
  EXPECT_GT(merges.without_key, 0);
}

INSTANTIATE_TEST_SUITE_P(formats, SplitKvTest,
                         ::testing::Combine(::testing::ValuesIn(kExactAndOurs),
                                            ::testing::Values(1, 2, 3, 4, 7)));
INSTANTIATE_TEST_SUITE_P(aten, SplitKvTest,
                         ::testing::Combine(::testing::ValuesIn(kAtens), ::testing::Values(3)));
INSTANTIATE_TEST_SUITE_P(full, SplitKvTest,
                         ::testing::Combine(::testing::ValuesIn(kAtens),
                                            ::testing::Values(1, 2, 4, 7)));

/// DESIGN rule 2: given the same bits of Q, K, V, those of O do not depend on the plan.
class SameBitsTest : public ::testing::TestWithParam<std::tuple<Computed, std::vector<int>>> {};

TEST_P(SameBitsTest, o_is_the_same_for_every_plan_without_split_kv) {
  const auto [computed, worker_counts] = GetParam();
  for (const int64_t window_left : {-1, 200}) {
    Sizes sizes{.dtype = computed.dtype, .head_dim_qk = 16, .window_left = window_left};
    sizes.kernel = computed.kernel;
    const PerDocument want = run(make_plan(testing::request_for(kLengths, 1, "local")), sizes).o;
    for (const int workers : worker_counts) {
      for (const char* scheduler : {"local", "greedy", "balanced", "per-document-cp", "wlb"}) {
        SCOPED_TRACE(fmt::format("{} workers, {}, window {}", workers, scheduler, window_left));
        sizes.threads = 1 + workers % 3;
        const Plan plan = make_plan(testing::request_for(kLengths, workers, scheduler));
        const PerDocument got = run(plan, sizes).o;
        for (size_t i = 0; i < kLengths.size(); ++i) EXPECT_TRUE(same_bytes(got[i], want[i])) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    ours, SameBitsTest,
    ::testing::Combine(::testing::Values(Computed{KernelChoice::kCpu, ScalarType::kFloat32},
                                         Computed{KernelChoice::kCpu, ScalarType::kBFloat16}),
                       ::testing::Values(std::vector<int>{1, 2, 3, 4, 7})));
INSTANTIATE_TEST_SUITE_P(reference, SameBitsTest,
                         ::testing::Combine(::testing::Values(Computed{KernelChoice::kReference,
                                                                       ScalarType::kFloat32}),
                                            ::testing::Values(std::vector<int>{3})));

TEST(StepAttention, rows_with_one_task_keep_their_bits_whatever_is_merged_beside_them) {
  for (const ScalarType dtype : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    const Plan whole = make_plan(testing::request_for({500, 900}, 3));
    Plan cut = whole;
    cut.options.split_kv = true;
    for (size_t i = 0; i < whole.tasks.size(); ++i) {
      Task& task = cut.tasks[i];
      if (task.document == 0 || task.kv.size() <= kBlockTokens) continue;
      Task rest = task;
      task.kv.end = kBlockTokens;
      rest.kv.begin = kBlockTokens;
      rest.server = (task.server + 1) % 3;
      cut.tasks.push_back(rest);
    }
    testing::complete(cut);
    ASSERT_THAT(validate(cut), IsEmpty());
    ASSERT_GT(cut.tasks.size(), whole.tasks.size());
    const Sizes sizes{.dtype = dtype};
    const Outcome a = run(whole, sizes), b = run(cut, sizes);
    EXPECT_TRUE(at::equal(a.o[0], b.o[0]));
    EXPECT_FALSE(at::equal(a.o[1], b.o[1])) << "nothing was merged";
  }
}

TEST(StepAttention, a_row_that_nobody_wrote_is_a_difference_whichever_document_has_it) {
  PerDocument want;
  for (const int64_t length : kLengths)
    want.push_back(random_document(length, 0, length, kHeads, 8, {}));
  EXPECT_EQ(difference(want, want), 0);
  for (size_t i = 0; i < want.size(); ++i) {
    PerDocument got = want;
    got[i] = got[i].clone();
    got[i][kLengths[i] / 2].fill_(NAN);
    EXPECT_TRUE(std::isnan(difference(got, want))) << "document " << i;
  }
}

TEST(StepAttention, a_kernel_for_another_device_is_a_check) {
  run_ranks(1, {}, [&](Communicator& comm) {
    AttentionKernel kernel(
        {.shape = {.num_heads = kHeads, .num_kv_heads = kKvHeads}, .cuda_device = 0});
    const ExchangeBuffers buffers(/*cuda_device=*/-1);
    EXPECT_THROW(StepAttention({}, kernel, comm, buffers), CheckFailure);
  });
}

/// Packed, unpacked and merged by a rank in forward, row by row.
int64_t forward_copies(const RankExchange& rank, const Sizes& sizes) {
  const int64_t bytes = element_bytes(sizes.dtype);
  const int64_t q = kHeads * sizes.head_dim_qk * bytes;
  const int64_t kv = kKvHeads * (sizes.head_dim_qk + sizes.head_dim_v) * bytes;
  const int64_t o = kHeads * (sizes.head_dim_v * bytes + 4);  // with an LSE of fp32
  int64_t copied = 0;
  std::set<int64_t> written;  // rows of local O that are not where they were computed
  for (const PeerTransfer& message : rank.sends) {
    copied += message.q_tokens * q + message.kv_tokens * kv;
    for (const RowRange& range : message.q) {
      for (int64_t i = 0; i < range.tokens.size(); ++i) written.insert(range.row + i);
    }
  }
  for (const RowMerge& merge : rank.merges) {
    for (int64_t i = 0; i < merge.tokens; ++i) {
      if (merge.buffer == 0) written.insert(merge.row + i);
    }
    if (merge.buffer != 0) copied += merge.tokens * o;
  }
  return copied + static_cast<int64_t>(written.size()) * o;
}

TEST(StepAttention, a_row_counts_as_copied_once_whether_it_comes_home_whole_or_is_merged) {
  Random random(4);
  const Sizes sizes{.dtype = ScalarType::kBFloat16, .backward = false};
  Plan plan = testing::random_plan(kLengths, 3, 1, random);
  testing::cut_tasks(plan, random);
  Merges merges;
  merges.add(plan);
  ASSERT_GT(merges.on_servers, 0);
  ASSERT_GT(merges.at_home, 0);
  const std::vector<ExchangeBytes> bytes = run(plan, sizes).bytes;
  const PlanIndex index(plan);
  for (int rank = 0; rank < plan.cluster.num_servers(); ++rank) {
    const ExchangeBytes& counted = bytes[rank];
    EXPECT_EQ(counted.packed + counted.unpacked + counted.copied,
              forward_copies(index.exchange(rank), sizes))
        << "rank " << rank;
    EXPECT_LE(counted.packed, counted.sent) << "rank " << rank;
    EXPECT_LE(counted.unpacked, counted.received) << "rank " << rank;
  }
}

TEST(StepAttention, the_same_plan_with_split_kv_gives_the_same_bits) {
  Random random(3);
  Plan plan = testing::random_plan(kLengths, 3, 1, random);
  testing::cut_tasks(plan, random);
  const Sizes sizes{.dtype = ScalarType::kFloat32};
  const Outcome a = run(plan, sizes), b = run(plan, sizes);
  for (size_t i = 0; i < kLengths.size(); ++i) {
    EXPECT_TRUE(at::equal(a.o[i], b.o[i]));
    EXPECT_TRUE(at::equal(a.dq[i], b.dq[i]));
    EXPECT_TRUE(at::equal(a.dk[i], b.dk[i]));
    EXPECT_TRUE(at::equal(a.dv[i], b.dv[i]));
  }
}

}  // namespace
}  // namespace distca
