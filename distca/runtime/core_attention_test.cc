// Core attention of plans whose tasks have only part of the keys their queries may see, against
// one worker's.

#include "distca/runtime/core_attention.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "distca/comm/aten_types.h"
#include "distca/comm/thread_group.h"
#include "distca/plan/plan_testing.h"
#include "distca/plan/validate.h"

namespace distca {
namespace {

using ::testing::IsEmpty;

constexpr int64_t kHeads = 4, kKvHeads = 2;

struct Sizes {
  ScalarType dtype = ScalarType::kFloat64;
  int64_t head_dim_qk = 8;
  int64_t head_dim_v = 8;  // another than head_dim_qk: the matmul path
  int64_t window_left = -1;
};

/// Q, K, V, dO in; O, dQ, dK, dV out: [document] [length, heads, dim].
using PerDocument = std::vector<at::Tensor>;
struct Outcome {
  PerDocument o, dq, dk, dv;
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
    CoreAttention attention(index.exchange(rank),
                            {.shape = {.num_heads = kHeads,
                                       .num_kv_heads = kKvHeads,
                                       .head_dim_qk = sizes.head_dim_qk,
                                       .head_dim_v = sizes.head_dim_v,
                                       .softmax_scale = 0.5},
                             .dtype = sizes.dtype,
                             .window_left = sizes.window_left},
                            comm);
    attention.enter(0, in[0], in[1], in[2], "enter");
    attention.attend(0);
    scatter(attention.leave(0, "leave"), segments, outputs[3]);
    attention.enter_backward(0, in[3], "enter backward");
    attention.attend_backward(0);
    at::Tensor gradients[3];
    attention.leave_backward(0, &gradients[0], &gradients[1], &gradients[2], "leave backward");
    for (int i = 0; i < 3; ++i) scatter(gradients[i], segments, outputs[i]);
  });
  return {.o = outputs[3], .dq = outputs[0], .dk = outputs[1], .dv = outputs[2]};
}

Plan one_worker(const Plan& plan) {
  std::vector<int64_t> lengths;
  for (const Document& document : plan.nano_batch.documents) lengths.push_back(document.length);
  return make_plan(testing::request_for(lengths, 1, "local"));
}

/// max|a - b| over max|b|, over all documents.
double difference(const PerDocument& a, const PerDocument& b) {
  double gap = 0, scale = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const at::Tensor want = b[i].to(at::kDouble);
    const double document_gap = (a[i].to(at::kDouble) - want).abs().max().item<double>();
    if (!(document_gap <= gap)) gap = document_gap;  // keeps NaN
    scale = std::max(scale, want.abs().max().item<double>());
  }
  return scale > 0 ? gap / scale : gap;
}

/// Two runs that round differently: every value is a sum over at most `longest` rows, in fp32, and
/// is rounded to the format 8 times forward (P, O of a block, of a task, of a server, of the row,
/// on both sides) and 8 times backward; ATen's bf16 backward adds to bf16 gradients after every 32
/// queries. Roundings at random add up to their root, and among 1e5 elements the largest lies 5
/// standard deviations out.
double bound_of(ScalarType dtype, int64_t longest) {
  if (dtype == ScalarType::kFloat64) return 1e-10;
  const double fp32 = 0x1p-24, u = dtype == ScalarType::kFloat32 ? fp32 : 0x1p-8;
  const auto rows = static_cast<double>(longest);
  return 5 * (std::sqrt(16 + rows / 32) * u + std::sqrt(rows) * fp32);
}

/// What a plan asks of the merge.
struct Merges {
  int64_t on_servers = 0;   // of a server's own tasks' results
  int64_t at_home = 0;      // of results from servers
  int64_t without_key = 0;  // rows of a task that see none of its keys

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
  const double bound = bound_of(sizes.dtype, longest);
  EXPECT_LE(difference(got.o, want.o), bound);
  EXPECT_LE(difference(got.dq, want.dq), bound);
  EXPECT_LE(difference(got.dk, want.dk), bound);
  EXPECT_LE(difference(got.dv, want.dv), bound);
}

const std::vector<int64_t> kLengths = {700, 1, 130, 1100, 129, 384};

class KeySubRangeTest : public ::testing::TestWithParam<std::tuple<ScalarType, int>> {};

TEST_P(KeySubRangeTest, o_and_every_gradient_equal_one_workers) {
  const auto [dtype, workers] = GetParam();
  Random random(17 + workers);
  Merges merges;
  for (const Sizes& sizes : {Sizes{.dtype = dtype}, Sizes{.dtype = dtype, .head_dim_qk = 16},
                             Sizes{.dtype = dtype, .window_left = 200}}) {
    for (const int dedicated : {0, 2}) {
      Plan plan = testing::random_plan(kLengths, workers, dedicated, random);
      testing::cut_tasks(plan, random);
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

INSTANTIATE_TEST_SUITE_P(formats, KeySubRangeTest,
                         ::testing::Combine(::testing::Values(ScalarType::kFloat64,
                                                              ScalarType::kFloat32,
                                                              ScalarType::kBFloat16),
                                            ::testing::Values(1, 2, 3, 4, 7)));

TEST(CoreAttention, rows_with_one_task_keep_their_bits_whatever_is_merged_beside_them) {
  for (const ScalarType dtype : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    const Plan whole = make_plan(testing::request_for({500, 900}, 3));
    Plan cut = whole;
    cut.options.key_sub_ranges = true;
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

TEST(CoreAttention, the_same_plan_with_key_sub_ranges_gives_the_same_bits) {
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
