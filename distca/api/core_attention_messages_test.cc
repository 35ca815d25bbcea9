// In which order a rank hands its messages to the group.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/api/core_attention.h"
#include "distca/comm/thread_group.h"

namespace distca::api {
namespace {

/// Notes what it is given, and hands it on.
class NotingGroup : public Communicator {
 public:
  explicit NotingGroup(Communicator& real) : real_(real) {}
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
                  testing::ElementsAre("O of forward 0: sends false, receives true",
                                       "Q, K, V of forward 0: sends true, receives false",
                                       "gradients of backward 1: sends false, receives true",
                                       "dO of backward 1: sends true, receives false"));
    }
  });
}

}  // namespace
}  // namespace distca::api
