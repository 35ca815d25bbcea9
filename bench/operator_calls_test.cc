#include <ATen/ATen.h>

#include "bench/operator_calls.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "distca/runtime/attention_tensors.h"

namespace distca::bench {
namespace {

/// Gives numbers back, and notes what it was asked.
class SomeOperator final : public VarlenOperator {
 public:
  std::pair<at::Tensor, at::Tensor> forward(const LaunchInput& input,
                                            const at::Tensor&) const override {
    note("forward", input);
    const at::Tensor& q = input.q;
    return {at::ones_like(q), at::ones({q.size(1), q.size(0)}, at::kFloat)};
  }
  std::array<at::Tensor, 3> backward(const LaunchInput& input,
                                     const OutputGradient&) const override {
    note("backward", input);
    return {at::ones_like(input.q), at::ones_like(input.k), at::ones_like(input.v)};
  }
  mutable std::vector<std::string> asked;

 private:
  void note(const char* pass, const LaunchInput& input) const {
    asked.push_back(
        fmt::format("{} {} {}", pass, input.launch.query_rows(), input.lists[0].numel()));
  }
};

TEST(OperatorCalls, are_played_as_they_were_made) {
  const kernels::Shape shape{.num_heads = 2, .num_kv_heads = 1, .head_dim_qk = 8, .head_dim_v = 8};
  const ScalarType type = ScalarType::kBFloat16;
  AttentionTensors tensors(shape, type, /*queries=*/700, /*keys=*/700);
  // The tasks are of two length classes, and so need two launches.
  tensors.list.tasks = {{.q_tokens = 100, .keys = {{.tokens = 100}}},
                        {.q_row = 100, .q_tokens = 600, .keys = {{.row = 100, .tokens = 600}}}};
  const SomeOperator op;
  const OperatorCalls calls(op);
  varlen_forward(shape, type, type, tensors.list, /*cuda_device=*/-1, calls);
  varlen_backward(shape, type, tensors.list, /*cuda_device=*/-1, calls);
  EXPECT_TRUE(at::equal(tensors.o, at::ones_like(tensors.o)));  // their results are used
  const std::vector<std::string> once = op.asked;
  EXPECT_EQ(once.size(), 4);
  tensors.o.zero_();
  calls.play();
  const std::vector<std::string> again(op.asked.begin() + 4, op.asked.end());
  EXPECT_EQ(again, once);
  EXPECT_TRUE(at::equal(tensors.o, at::zeros_like(tensors.o)));  // or they are dropped
}

}  // namespace
}  // namespace distca::bench
