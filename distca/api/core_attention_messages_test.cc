// In which order a rank hands its messages to the group.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>

#include <array>
#include <memory>

#include "distca/api/core_attention.h"
#include "distca/comm/test_groups.h"
#include "distca/comm/thread_group.h"

namespace distca::api {
namespace {

/// Notes what it is given, and hands it on.
class NotingGroup : public Communicator {
 public:
  explicit NotingGroup(Communicator& real) : real_(real) {}
  bool ends_in_order() const override { return real_.ends_in_order(); }
  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  void set_step(int64_t step) override { real_.set_step(step); }
  std::unique_ptr<PendingExchange> exchange(std::span<const Message> sends,
                                            std::span<const Message> receives,
                                            std::string_view operation) override {
    noted.push_back(
        fmt::format("{}: sends {}, receives {}", operation, !sends.empty(), !receives.empty()));
    return real_.exchange(sends, receives, operation);
  }
  std::vector<std::string> noted;

 private:
  Communicator& real_;
};

/// O, dQ, dK and dV of two layers of each rank, under way at once as those of two halves of a batch
/// are. `noted`: what rank 0 handed to its group.
std::vector<std::vector<at::Tensor>> attend_twice(Backend backend,
                                                  std::vector<std::string>& noted) {
  const Shape shape{
      .num_heads = 2, .num_kv_heads = 1, .head_dim = 16, .dtype = ScalarType::kFloat32};
  const auto plan_of = [&](std::vector<int64_t> cu_seqlens,
                           std::vector<std::vector<Range>> tokens) {
    return plan_batch({.cu_seqlens = std::move(cu_seqlens),
                       .num_ranks = 3,
                       .shape = shape,
                       .tokens = std::move(tokens)});
  };
  const std::vector<BatchPlan> plans = {
      plan_of({0, 1500, 1530, 1700}, {{{0, 1500}}, {{1500, 1530}}, {{1530, 1700}}}),
      plan_of({0, 40, 900}, {{}, {{0, 40}}, {{40, 900}}})};
  std::vector<std::vector<at::Tensor>> all(3);
  run_on(backend, 3, {.timeout_s = 300, .grace_s = 1}, [&](Communicator& comm) {
    NotingGroup noting(comm);
    CoreAttention attention(noting, shape);
    at::Generator generator = at::detail::createCPUGenerator(comm.rank());
    std::vector<at::Tensor> in;
    std::vector<Forward> forwards;
    std::vector<Backward> backwards;
    for (const BatchPlan& plan : plans) {
      const int64_t tokens = plan.num_tokens(comm.rank());
      for (const int64_t heads : {2, 1, 1, 2})
        in.push_back(at::randn({tokens, heads, 16}, generator));
      const at::Tensor* const mine = &in[in.size() - 4];
      forwards.push_back(attention.forward(plan, mine[0], mine[1], mine[2]));
    }
    for (Forward& forward : forwards) forward.compute();
    for (const size_t half : {1, 0}) all[comm.rank()].push_back(forwards[half].wait());
    for (const size_t half : {1, 0})
      backwards.push_back(attention.backward(forwards[half], in[4 * half + 3]));
    for (Backward& backward : backwards) {
      const auto [dq, dk, dv] = backward.wait();
      for (const at::Tensor& gradient : {dq, dk, dv}) all[comm.rank()].push_back(gradient);
    }
    if (comm.rank() == 0) noted = noting.noted;
  });
  return all;
}

/// Nothing that a rank receives may stand before what its sender waits for.
TEST(ApiMessages, where_exchanges_end_in_order_results_are_one_exchange_and_bits_stay) {
  std::vector<std::string> of_threads, noted;
  const auto want = attend_twice(Backend::kThreads, of_threads);
  const auto got = attend_twice(Backend::kNccl, noted);
  for (size_t rank = 0; rank < want.size(); ++rank) {
    ASSERT_EQ(got[rank].size(), want[rank].size());
    for (size_t i = 0; i < want[rank].size(); ++i)
      EXPECT_TRUE(at::equal(got[rank][i], want[rank][i])) << "rank " << rank << ", " << i;
  }
  EXPECT_EQ(of_threads.front(), "O of forward 0: sends false, receives true");
  EXPECT_THAT(noted, ::testing::ElementsAre("Q, K, V of forward 0: sends true, receives false",
                                            "Q, K, V of forward 1: sends false, receives true",
                                            "O of forward 0: sends false, receives true",
                                            "O of forward 1: sends true, receives false",
                                            "dO of backward 2: sends false, receives true",
                                            "dO of backward 3: sends true, receives false",
                                            "gradients of backward 2: sends true, receives false",
                                            "gradients of backward 3: sends false, receives true"));
}

/// A peer learns of a receive by a message, which must not wait behind those of the dispatch.
TEST(ApiMessages, results_are_expected_before_anything_is_sent) {
  const Shape shape{
      .num_heads = 2, .num_kv_heads = 1, .head_dim = 16, .dtype = ScalarType::kFloat32};
  // Rank 1 holds nothing and serves rank 0.
  const BatchPlan plan = plan_batch(
      {.cu_seqlens = {0, 1024}, .num_ranks = 2, .shape = shape, .tokens = {{{0, 1024}}, {}}});
  run_ranks(2, {}, [&](Communicator& comm) {
    NotingGroup noting(comm);
    CoreAttention attention(noting, shape);
    const int64_t tokens = plan.num_tokens(comm.rank());
    const at::Tensor q = at::ones({tokens, 2, 16}), k = at::ones({tokens, 1, 16});
    Forward forward = attention.forward(plan, q, k, k);
    forward.wait();
    attention.backward(forward, q).wait();
    if (comm.rank() == 0) {
      EXPECT_THAT(noting.noted,
                  ::testing::ElementsAre("O of forward 0: sends false, receives true",
                                         "Q, K, V of forward 0: sends true, receives false",
                                         "gradients of backward 1: sends false, receives true",
                                         "dO of backward 1: sends true, receives false"));
    }
  });
}

/// Layers of two shapes under way at once on one communicator, each with a scale of its own.
TEST(ApiMessages, shapes_beside_each_other_share_a_communicator_and_calls_have_a_scale_each) {
  const auto shape_of = [](int64_t heads) {
    return Shape{
        .num_heads = heads, .num_kv_heads = 1, .head_dim = 16, .dtype = ScalarType::kFloat32};
  };
  const auto plan_of = [&](int64_t heads) {
    return plan_batch({.cu_seqlens = {0, 1024, 1030},
                       .num_ranks = 2,
                       .shape = shape_of(heads),
                       .tokens = {{{0, 1024}}, {{1024, 1030}}}});
  };
  run_ranks(2, {}, [&](Communicator& comm) {
    auto first = std::make_unique<CoreAttention>(comm, shape_of(2));
    CoreAttention second(*first, shape_of(4));
    const std::vector<BatchPlan> plans = {plan_of(2), plan_of(4)};
    const int64_t tokens = plans[0].num_tokens(comm.rank());
    at::Generator generator = at::detail::createCPUGenerator(comm.rank());
    const at::Tensor k = at::randn({tokens, 1, 16}, generator);
    const at::Tensor q = at::randn({tokens, 4, 16}, generator), d_o = at::randn_like(q);
    const auto heads = [](const at::Tensor& all, size_t i) { return all.narrow(1, 0, i ? 4 : 2); };
    const std::array<CoreAttention*, 2> both = {first.get(), &second};
    std::vector<Forward> forwards;
    for (const double scale : {0.3, -0.3}) {
      for (const size_t i : {0, 1})
        forwards.push_back(both[i]->forward(plans[i], heads(q, i), k, k, scale));
    }
    forwards[3].wait();             // computes what others wait for of the three before it
    std::vector<at::Tensor> found;  // O of two heads, which both shapes have
    for (const size_t number : {3, 0, 2, 1}) {
      const size_t i = number % 2;
      const at::Tensor o = forwards[number].wait();
      Backward backward = both[i]->backward(forwards[number], heads(d_o, i));
      const auto [dq, dk, dv] = backward.wait();
      found.push_back(o.narrow(1, 0, 2));
      if (number < 2) continue;
      // A negative scale gives the same attention as -Q with a positive one.
      Forward plain = both[i]->forward(plans[i], -heads(q, i), k, k, 0.3);
      EXPECT_TRUE(at::equal(plain.wait(), o));
      Backward plain_backward = both[i]->backward(plain, heads(d_o, i));
      const auto [plain_dq, plain_dk, plain_dv] = plain_backward.wait();
      EXPECT_TRUE(at::equal(plain_dq, -dq) && at::equal(plain_dk, dk) && at::equal(plain_dv, dv));
    }
    EXPECT_TRUE(at::equal(found[0], found[2]) && at::equal(found[1], found[3]));
    EXPECT_FALSE(at::equal(found[0], found[1]));
    EXPECT_EQ(first->sent_bytes(), second.sent_bytes());
    first.reset();
    second.forward(plans[1], q, k, k).wait();
  });
}

}  // namespace
}  // namespace distca::api
