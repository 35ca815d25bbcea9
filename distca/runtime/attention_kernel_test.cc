#include "distca/runtime/attention_kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "distca/base/error.h"
#include "distca/comm/as_on_device.h"
#include "distca/comm/thread_group.h"
#include "distca/kernels/attention_testing.h"
#include "distca/runtime/cuda/flash4_testing.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

KernelRequest request(KernelChoice choice, ScalarType type, int64_t head_dim = 16) {
  kernels::Shape shape = kernels::testing::Case{}.shape;
  shape.head_dim_qk = shape.head_dim_v = head_dim;
  return {.choice = choice, .shape = shape, .type = type, .threads = 2};
}

std::string name_of(const KernelRequest& asked) { return AttentionKernel(asked).name(); }

TEST(AttentionKernel, auto_takes_our_own_where_it_computes_the_type_and_head_dims) {
  EXPECT_THAT(name_of(request(KernelChoice::kAuto, ScalarType::kFloat32)), StartsWith("cpu-"));
  EXPECT_THAT(name_of(request(KernelChoice::kAuto, ScalarType::kBFloat16)), StartsWith("cpu-"));
  EXPECT_EQ(name_of(request(KernelChoice::kAuto, ScalarType::kFloat64)), "aten-cpu");
  EXPECT_EQ(name_of(request(KernelChoice::kAuto, ScalarType::kFloat32, 512)), "aten-cpu");
  KernelRequest cuda = request(KernelChoice::kAuto, ScalarType::kFloat32);
  cuda.cuda_device = 0;
  EXPECT_EQ(name_of(cuda), "aten-cuda");
}

TEST(AttentionKernel, another_is_taken_where_asked_for) {
  for (const ScalarType type : {ScalarType::kFloat32, ScalarType::kFloat64}) {
    EXPECT_EQ(name_of(request(KernelChoice::kAten, type)), "aten-cpu");
    EXPECT_EQ(name_of(request(KernelChoice::kReference, type)), "reference");
  }
}

TEST(AttentionKernel, what_a_choice_cannot_compute_is_said_with_what_could) {
  EXPECT_THAT(kernel_fault(request(KernelChoice::kCpu, ScalarType::kFloat64)),
              AllOf(HasSubstr("not float64"), HasSubstr("auto or aten")));
  EXPECT_THAT(kernel_fault(request(KernelChoice::kCpu, ScalarType::kFloat32, 264)),
              AllOf(HasSubstr("up to 256"), HasSubstr("head_dim 264")));
  for (const KernelChoice choice : {KernelChoice::kCpu, KernelChoice::kReference}) {
    KernelRequest cuda = request(choice, ScalarType::kFloat32);
    cuda.cuda_device = 0;
    EXPECT_THAT(kernel_fault(cuda), AllOf(HasSubstr("on CUDA"), HasSubstr("auto or aten")));
    EXPECT_THROW(AttentionKernel{cuda}, CheckFailure);
  }
  EXPECT_THAT(kernel_fault(request(KernelChoice::kFa4, ScalarType::kBFloat16)),
              HasSubstr("on CUDA, not on a CPU"));
  KernelRequest flash4 = request(KernelChoice::kFa4, ScalarType::kFloat32);
  flash4.cuda_device = 0;
  EXPECT_THAT(kernel_fault(flash4), HasSubstr("bfloat16, not float32"));
  flash4.type = ScalarType::kBFloat16;
  for (const auto& [head_dim_qk, head_dim_v, is_computed] :
       {std::tuple(64, 64, true), std::tuple(128, 128, true), std::tuple(96, 96, false),
        std::tuple(128, 64, false)}) {
    flash4.shape.head_dim_qk = head_dim_qk, flash4.shape.head_dim_v = head_dim_v;
    const std::string fault = kernel_fault(flash4);
    EXPECT_EQ(fault.empty(), is_computed) << fault;
    if (!is_computed) EXPECT_THAT(fault, HasSubstr("heads of 64 or 128"));
  }
  for (const KernelName& kernel : kKernelNames) {
    if (kernel.choice != KernelChoice::kFa4)
      EXPECT_EQ(kernel_fault(request(kernel.choice, ScalarType::kFloat32)), "");
    EXPECT_EQ(kernel_choice(kernel.name), kernel.choice);
  }
  EXPECT_THROW(kernel_choice("fast"), CheckFailure);
}

TEST(AttentionKernel, flash4_that_is_not_on_all_ranks_is_passed_over_on_all_by_a_free_choice) {
  const StandInKernels stand_ins;
  const KernelRequest cpu = request(KernelChoice::kAuto, ScalarType::kBFloat16);
  KernelRequest flash4 = cpu;
  flash4.shape.num_heads = 4, flash4.shape.num_kv_heads = 2;
  KernelRequest without = flash4;
  flash4.measured = {.forward = {KernelChoice::kFa4}, .backward = {KernelChoice::kFa4}};
  const std::string alone = "fa4 stand-in and aten-cuda by length";
  const std::string reason =
      "FlashAttention 4 is passed over: rank 1: plan.profile names no profile";
  for (const auto& [of_rank_1, is_free, name, words] :
       {std::tuple(flash4, true, alone, ""),
        std::tuple(without, true, std::string("aten-cpu"), reason.c_str()),
        std::tuple(without, false, alone, "")}) {
    run_ranks(2, {.timeout_s = 300}, [&](Communicator& comm) {
      const AsOnDevice as_on_device;
      AttentionKernel kernel(comm.rank() == 0 ? flash4 : of_rank_1);
      agree_on_kernel(comm, is_free, kernel);
      if (comm.rank() == 0) EXPECT_EQ(kernel.name(), name);
      if (comm.rank() == 0 || words[0] != 0)
        EXPECT_THAT(kernel.passed_over(), StartsWith(words)) << comm.rank();
    });
  }
}

/// Every kernel computes the same, whole results and partial ones.
TEST(AttentionKernel, forward_and_backward_are_those_of_the_whole_matrix) {
  using kernels::testing::Bounds, kernels::testing::Case, kernels::testing::Document,
      kernels::testing::Tensor, kernels::testing::WholeMatrix;
  for (const ScalarType type : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    const Case c{.type = type, .q_position = 30, .q_tokens = 100, .k_tokens = 130};
    for (const KernelChoice choice :
         {KernelChoice::kCpu, KernelChoice::kAten, KernelChoice::kReference}) {
      AttentionKernel kernel({.choice = choice, .shape = c.shape, .type = type, .threads = 2});
      SCOPED_TRACE(kernel.name());
      Document doc(c);
      const WholeMatrix whole(doc);
      const Bounds bounds(c, whole,
                          {.sums = ScalarType::kFloat32, .store = type, .store_roundings = 6});
      kernels::TaskList list = doc.list();
      kernel.forward(type, list);
      expect_forward(doc, whole, bounds);

      Tensor partial(ScalarType::kFloat32, c.q_tokens, c.shape.num_heads, c.shape.head_dim_v);
      list.queries[0].o = partial.rows();
      kernel.forward(ScalarType::kFloat32, list);
      const Bounds unrounded(
          c, whole,
          {.sums = ScalarType::kFloat32,
           .store = choice == KernelChoice::kReference ? ScalarType::kFloat32 : type,
           .store_roundings = 1});
      expect_close("partial o", partial.values(), whole.o, unrounded.forward, unrounded.underflow);

      set_backward_inputs(doc, whole);
      kernel.backward(list);
      expect_backward(doc, whole, bounds);
      kernel.forward(type, {});
      kernel.backward({});
    }
  }
}

}  // namespace
}  // namespace distca
