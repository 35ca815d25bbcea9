// O and gradients of ranks against one rank's, whoever holds and computes what; handles in any
// order, from any thread, dropped.

#include "distca/api/core_attention.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <thread>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/c10d_group.h"
#include "distca/comm/launch/local_store.h"
#include "distca/comm/test_groups.h"
#include "distca/comm/thread_group.h"
#include "distca/plan/plan.h"

namespace distca::api {
namespace {

using ::testing::HasSubstr;

const std::vector<int64_t> kOffsets = {0, 700, 701, 831, 1931, 2060, 2444};
constexpr int64_t kTokens = 2444;
constexpr CommOptions kComm{.timeout_s = 300, .grace_s = 1};

Shape shape_of(ScalarType dtype) {
  return {.num_heads = 4, .num_kv_heads = 2, .head_dim = 16, .head_dim_v = 8, .dtype = dtype};
}

/// Q, K, V, dO, or O, LSE, dQ, dK, dV, of the whole batch: [tokens, heads, dim].
using Tensors = std::vector<at::Tensor>;

Tensors inputs(ScalarType dtype, int64_t tokens = kTokens, uint64_t seed = 1) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  Tensors result;
  for (const auto& [heads, dim] :
       std::initializer_list<std::array<int64_t, 2>>{{4, 16}, {2, 16}, {2, 8}, {4, 8}})
    result.push_back(at::randn({tokens, heads, dim}, generator, at::kDouble).to(aten_type(dtype)));
  return result;
}

/// A rank's rows of the batch's tensors, and back.
Tensors held(const Tensors& whole, const std::vector<Range>& tokens) {
  Tensors mine;
  for (const at::Tensor& tensor : whole) {
    Tensors rows = {tensor.narrow(0, 0, 0)};
    for (const Range& range : tokens) rows.push_back(tensor.narrow(0, range.begin, range.size()));
    mine.push_back(at::cat(rows));
  }
  return mine;
}
void put_back(const Tensors& mine, const std::vector<Range>& tokens, Tensors& whole) {
  for (size_t i = 0; i < mine.size(); ++i) {
    int64_t row = 0;
    for (const Range& range : tokens) {
      whole[i].narrow(0, range.begin, range.size()).copy_(mine[i].narrow(0, row, range.size()));
      row += range.size();
    }
  }
}

/// For results; not a number where no rank writes.
Tensors unwritten(const Tensors& in) {
  return {at::full_like(in[3], NAN), at::full({in[0].size(0), 4}, NAN, at::kDouble),
          at::full_like(in[0], NAN), at::full_like(in[1], NAN), at::full_like(in[2], NAN)};
}

Tensors results(Forward& forward, Backward& backward) {
  const auto [dq, dk, dv] = backward.wait();
  return {forward.wait(), forward.lse().to(at::kDouble), dq, dk, dv};
}

/// O, LSE, dQ, dK, dV of the plan's ranks as threads.
Tensors run(const BatchPlan& plan, const Tensors& in, const Shape& shape,
            const CoreAttentionOptions& options = {}) {
  Tensors out = unwritten(in);
  run_ranks(plan.num_ranks(), kComm, [&](Communicator& comm) {
    at::set_num_threads(1);
    CoreAttention attention(comm, shape, options);
    attention.compare(plan);
    const std::vector<Range>& tokens = plan.tokens()[comm.rank()];
    const Tensors mine = held(in, tokens);
    Forward forward = attention.forward(plan, mine[0], mine[1], mine[2]);
    forward.wait();
    Backward backward = attention.backward(forward, mine[3]);
    put_back(results(forward, backward), tokens, out);
  });
  return out;
}

BatchRequest request_for(int ranks, const Shape& shape, int64_t window_left = -1) {
  return {.cu_seqlens = kOffsets, .num_ranks = ranks, .shape = shape, .window_left = window_left};
}

double difference(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor reference = want.to(at::kDouble);
  return ((got.to(at::kDouble) - reference).norm() / reference.norm()).item<double>();
}

bool same_bits(const Tensors& a, const Tensors& b, size_t count) {
  return std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(count), b.begin(),
                    [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}

constexpr std::array<const char*, 5> kResults = {"O", "LSE", "dQ", "dK", "dV"};

/// Ways to hold and compute the batch.
std::vector<std::pair<std::string, BatchRequest>> requests(int ranks, const Shape& shape) {
  std::vector<std::pair<std::string, BatchRequest>> all;
  const BatchRequest plain = request_for(ranks, shape);
  const auto add = [&](const char* name, const auto& change) {
    all.emplace_back(name, plain);
    change(all.back().second);
  };
  add("the planner's tokens", [](auto&) {});
  add("greedy", [](auto& r) { r.scheduler = "greedy"; });
  add("split-KV", [](auto& r) {
    r.split_kv = true;
    r.tolerance = 0;
  });
  add("capacities", [](auto& r) {
    for (int rank = 0; rank < r.num_ranks; ++rank) r.capacity.push_back(1 + 2 * rank);
    if (r.num_ranks > 2) r.capacity[0] = 0;
  });
  if (ranks == 1) return all;
  // Rank 0 the middle and the end, the last one the begin, others in between nothing.
  add("uneven tokens", [](auto& r) {
    r.tokens.resize(r.num_ranks);
    r.tokens[0] = {{1087, 2444}, {701, 831}};
    r.tokens.back() = {{831, 1087}, {0, 701}};
  });
  add("a rank that only computes", [](auto& r) { r.num_holders = r.num_ranks - 1; });
  return all;
}

class ApiTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ranks, ApiTest, ::testing::Values(1, 2, 3, 4));

TEST_P(ApiTest, o_and_gradients_are_one_ranks) {
  const Shape exact = shape_of(ScalarType::kFloat64), ours = shape_of(ScalarType::kFloat32);
  const Tensors in = inputs(ScalarType::kFloat64), rounded = inputs(ScalarType::kFloat32);
  for (const int64_t window_left : {-1, 200}) {
    const Tensors want = run(plan_batch(request_for(1, exact, window_left)), in, exact);
    const Tensors bits = run(plan_batch(request_for(1, ours, window_left)), rounded, ours);
    for (auto& [name, request] : requests(GetParam(), exact)) {
      SCOPED_TRACE(fmt::format("{}, window {}", name, window_left));
      request.window_left = window_left;
      const Tensors got = run(plan_batch(request), in, exact);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_LE(difference(got[i], want[i]), 1e-10) << kResults[i];
      request.shape = ours;
      const Tensors fast = run(plan_batch(request), rounded, ours, {.threads = 2});
      EXPECT_TRUE(request.split_kv || same_bits(fast, bits, 2)) << "O and LSE";
      for (size_t i = 2; i < fast.size(); ++i)
        EXPECT_LE(difference(fast[i], want[i]), 1e-5) << kResults[i];
    }
  }
}

TEST(Api, several_are_under_way_and_waited_for_in_any_order) {
  const Shape shape = shape_of(ScalarType::kFloat32);
  const std::vector<BatchPlan> plans = {
      plan_batch(request_for(3, shape)), plan_batch(request_for(3, shape, 100)),
      plan_batch({.cu_seqlens = {0, 1000, 1500}, .num_ranks = 3, .shape = shape})};
  std::vector<Tensors> in, want, got;
  for (const BatchPlan& plan : plans) {
    in.push_back(inputs(ScalarType::kFloat32, plan.plan().nano_batch.num_tokens(), in.size()));
    want.push_back(run(plan, in.back(), shape));
    got.push_back(unwritten(in.back()));
  }
  run_ranks(3, kComm, [&](Communicator& comm) {
    at::set_num_threads(1);
    CoreAttention attention(comm, shape);
    std::vector<Forward> forwards;
    std::vector<Backward> backwards;
    std::vector<Tensors> mine;
    for (size_t i = 0; i < plans.size(); ++i) {
      mine.push_back(held(in[i], plans[i].tokens()[comm.rank()]));
      forwards.push_back(attention.forward(plans[i], mine[i][0], mine[i][1], mine[i][2]));
    }
    // Each rank another one first.
    for (size_t i = 0; i < plans.size(); ++i) forwards[(i + comm.rank()) % plans.size()].wait();
    for (size_t i = plans.size(); i-- > 0;)
      backwards.push_back(attention.backward(forwards[i], mine[i][3]));
    backwards[1].compute();
    for (size_t i = 0; i < plans.size(); ++i) backwards[(i + comm.rank()) % plans.size()].wait();
    for (size_t i = 0; i < plans.size(); ++i) {
      put_back(results(forwards[i], backwards[plans.size() - 1 - i]),
               plans[i].tokens()[comm.rank()], got[i]);
    }
  });
  for (size_t i = 0; i < plans.size(); ++i) EXPECT_TRUE(same_bits(got[i], want[i], 5)) << i;
}

/// Whose products autocast would round.
const CoreAttentionOptions kAten{.kernel = "aten"};

/// A step whose backward another thread calls, as autograd's does, with autocast and gradients on,
/// and with Q, K and V computed again.
void attend_as_pytorch_does(Communicator& comm, const BatchPlan& plan, const Shape& shape,
                            const Tensors& in, Tensors& out) {
  at::set_num_threads(1);
  const std::vector<Range>& tokens = plan.tokens()[comm.rank()];
  Tensors mine = held(in, tokens);
  for (at::Tensor& tensor : mine) tensor.requires_grad_();
  CoreAttention attention(comm, shape, kAten);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  Forward forward = attention.forward(plan, mine[0], mine[1], mine[2]);
  EXPECT_FALSE(forward.wait().requires_grad());
  at::autocast::set_autocast_enabled(at::kCPU, false);
  forward.drop_inputs();
  EXPECT_EQ(mine[0].storage().use_count(), 1);
  EXPECT_THROW(attention.backward(forward, mine[3]), Error);
  std::exception_ptr failed;
  std::thread autograd([&] {
    at::set_num_threads(1);
    try {
      Backward backward = attention.backward(forward, mine[3], mine[0], mine[1], mine[2]);
      put_back(results(forward, backward), tokens, out);
    } catch (...) {
      failed = std::current_exception();
    }
  });
  autograd.join();
  if (failed) std::rethrow_exception(failed);
}

TEST(Api, forward_and_backward_come_from_different_threads) {
  const Shape shape = shape_of(ScalarType::kFloat32);
  const Tensors in = inputs(ScalarType::kFloat32);
  const BatchPlan plan = plan_batch(request_for(3, shape));
  const Tensors want = run(plan, in, shape, kAten);
  Tensors out = unwritten(in);
  run_on(Backend::kThreads, 3, kComm,
         [&](Communicator& comm) { attend_as_pytorch_does(comm, plan, shape, in, out); });
  EXPECT_TRUE(same_bits(out, want, 5));
}

TEST(Api, works_over_a_process_group_that_somebody_else_made) {
  const Shape shape = shape_of(ScalarType::kFloat32);
  const Tensors in = inputs(ScalarType::kFloat32);
  const BatchPlan plan = plan_batch(request_for(3, shape));
  const Tensors want = run(plan, in, shape, kAten);
  Tensors out = unwritten(in);
  run_with_store(3, [&](uint16_t port, int rank) {
    c10d::TCPStoreOptions meeting{.port = port, .waitWorkers = false};
    auto store = c10::make_intrusive<c10d::TCPStore>(loopback_address(), meeting);
    auto options = c10d::ProcessGroupGloo::Options::create();
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(loopback_address())};
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, 3, options);
    const auto comm = make_c10d_group(*group, *store, kComm);
    attend_as_pytorch_does(*comm, plan, shape, in, out);
  });
  EXPECT_TRUE(same_bits(out, want, 5));
}

TEST(Api, a_dropped_handle_does_its_part_for_the_others) {
  const Shape shape = shape_of(ScalarType::kFloat32);
  const Tensors in = inputs(ScalarType::kFloat32);
  const BatchPlan plan = plan_batch(request_for(3, shape));
  const Tensors want = run(plan, in, shape);
  Tensors out = unwritten(in);
  run_ranks(3, kComm, [&](Communicator& comm) {
    at::set_num_threads(1);
    CoreAttention attention(comm, shape);
    const std::vector<Range>& tokens = plan.tokens()[comm.rank()];
    const Tensors mine = held(in, tokens);
    const auto forward = [&] { return attention.forward(plan, mine[0], mine[1], mine[2]); };
    forward();  // by all
    Forward one = forward();
    auto dropped = std::make_optional(forward());  // by rank 1, while the others want its O
    if (comm.rank() != 1) {
      EXPECT_TRUE(at::equal(dropped->wait(), one.wait()));
    }
    dropped.reset();
    one.wait();
    attention.backward(one, mine[3]);
    Forward last = forward();
    last.wait();
    Backward backward = attention.backward(last, mine[3]);
    put_back(results(last, backward), tokens, out);
  });
  EXPECT_TRUE(same_bits(out, want, 5));
}

TEST(Api, a_rank_that_fails_with_handles_under_way_ends_the_others) {
  const Shape shape = shape_of(ScalarType::kFloat32);
  const Tensors in = inputs(ScalarType::kFloat32);
  const BatchPlan plan = plan_batch(request_for(3, shape));
  const auto body = [&](Communicator& comm) {
    at::set_num_threads(1);
    CoreAttention attention(comm, shape);
    const Tensors mine = held(in, plan.tokens()[comm.rank()]);
    Forward forward = attention.forward(plan, mine[0], mine[1], mine[2]);
    if (comm.rank() == 1) throw std::out_of_range("mine");
    forward.wait();
  };
  EXPECT_THROW(run_ranks(3, kComm, body), std::out_of_range);
}

TEST(Api, backward_may_be_repeated_and_outlive_its_forward) {
  const Shape shape = shape_of(ScalarType::kFloat32);
  const Tensors in = inputs(ScalarType::kFloat32);
  const BatchPlan plan = plan_batch(request_for(2, shape));
  run_ranks(2, kComm, [&](Communicator& comm) {
    at::set_num_threads(1);
    auto attention = std::make_unique<CoreAttention>(comm, shape);
    const Tensors mine = held(in, plan.tokens()[comm.rank()]);
    auto forward = std::make_unique<Forward>(attention->forward(plan, mine[0], mine[1], mine[2]));
    EXPECT_TRUE(forward->wait().is_same(forward->wait()));
    Backward first = attention->backward(*forward, mine[3]);
    Backward second = attention->backward(*forward, mine[3]);
    forward.reset();
    attention.reset();
    const auto [dq, dk, dv] = first.wait();
    const auto [dq_again, dk_again, dv_again] = second.wait();
    EXPECT_TRUE(same_bits({dq, dk, dv}, {dq_again, dk_again, dv_again}, 3));
  });
}

TEST(Api, rows_may_have_any_strides) {
  const Shape shape = shape_of(ScalarType::kFloat32);
  const BatchPlan plan = plan_batch(request_for(2, shape));
  run_ranks(2, kComm, [&](Communicator& comm) {
    at::set_num_threads(1);
    CoreAttention attention(comm, shape);
    const Tensors mine = held(inputs(ScalarType::kFloat32), plan.tokens()[comm.rank()]);
    const auto gradients = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& d_o) {
      Forward forward = attention.forward(plan, q, k, mine[2]);
      forward.wait();
      Backward backward = attention.backward(forward, d_o);
      return results(forward, backward);
    };
    const at::Tensor ones = at::ones_like(mine[3]);
    const Tensors want = gradients(mine[0], mine[1], ones);
    // Heads first, as Hugging Face has them; dims first; what the gradient of a sum is.
    const Tensors got = gradients(mine[0].transpose(0, 1).contiguous().transpose(0, 1),
                                  mine[1].transpose(0, 2).contiguous().transpose(0, 2),
                                  at::ones({}).expand(ones.sizes()));
    EXPECT_TRUE(same_bits(got, want, 5));
    // One token, or one head, for all: strides of 0.
    const at::Tensor token = mine[0].narrow(0, 0, 1).expand(mine[0].sizes());
    const at::Tensor head = mine[1].narrow(1, 0, 1).expand(mine[1].sizes());
    EXPECT_TRUE(same_bits(gradients(token, head, ones),
                          gradients(token.contiguous(), head.contiguous(), ones), 5));
  });
}

TEST(Api, memory_of_messages_is_reused) {
  const Shape shape = shape_of(ScalarType::kBFloat16);
  const BatchPlan plan = plan_batch(request_for(3, shape));
  run_ranks(3, kComm, [&](Communicator& comm) {
    at::set_num_threads(1);
    CoreAttention attention(comm, shape, {.wide_gradients = true});
    const Tensors mine = held(inputs(ScalarType::kBFloat16), plan.tokens()[comm.rank()]);
    int64_t first = 0;
    for (int step = 0; step < 3; ++step) {
      std::vector<Forward> layers;
      for (int layer = 0; layer < 3; ++layer) {
        layers.push_back(attention.forward(plan, mine[0], mine[1], mine[2]));
        layers.back().wait();
      }
      for (Forward& layer : layers) attention.backward(layer, mine[3]).wait();
      if (step == 0) first = attention.message_memory_bytes();
      EXPECT_EQ(attention.message_memory_bytes(), first) << "step " << step;
    }
    EXPECT_GT(first, 0);
    EXPECT_GT(attention.sent_bytes(), 0);
  });
}

/// Returns the message of the error that refuses a call, which must be one line.
template <typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    return error.what();
  }
  return "no error";
}

TEST(Api, says_in_one_line_what_is_wrong) {
  const Shape shape = shape_of(ScalarType::kFloat32);
  const BatchPlan plan = plan_batch(request_for(1, shape));
  const Tensors in = inputs(ScalarType::kFloat32);
  run_ranks(1, kComm, [&](Communicator& comm) {
    CoreAttention attention(comm, shape);
    const auto with = [&](const at::Tensor& q, const BatchPlan& of) {
      return refusal([&] { attention.forward(of, q, in[1], in[2]); });
    };
    EXPECT_EQ(
        with(in[0].narrow(0, 0, 9), plan),
        "q is [9, 4, 16] of Float on cpu; rank 0 gives [2444, 4, 16] of Float on cpu: tokens, "
        "heads, dim");
    EXPECT_THAT(with(in[0].to(at::kDouble), plan), HasSubstr("q is [2444, 4, 16] of Double"));
    EXPECT_THAT(with({}, plan), HasSubstr("q is undefined"));
    EXPECT_EQ(with(in[0], plan_batch(request_for(2, shape))), "a plan for 2 ranks, followed by 1");
    EXPECT_THAT(with(in[0], plan_batch(request_for(1, shape_of(ScalarType::kBFloat16)))),
                HasSubstr("2 bytes a number; CoreAttention was made for 4 on 2 of 16 and 8, 4"));
    Forward forward = attention.forward(plan, in[0], in[1], in[2]);
    EXPECT_EQ(refusal([&] { attention.backward(forward, in[3]); }),
              "backward needs O: wait for the forward first");
    forward.wait();
    EXPECT_THAT(refusal([&] { attention.backward(forward, in[0]); }),
                HasSubstr("d_o is [2444, 4, 16] of Float on cpu; rank 0 gives [2444, 4, 8]"));
    const auto made = [&](const Shape& of, const CoreAttentionOptions& options) {
      return refusal([&] { CoreAttention(comm, of, options); });
    };
    EXPECT_EQ(made(shape, {.kernel = "fast"}),
              "kernel = fast: one of auto, cpu, aten, fa4, reference");
    EXPECT_THAT(made(shape_of(ScalarType::kFloat64), {.kernel = "cpu"}),
                HasSubstr("kernel = cpu computes float32 and bfloat16"));
    EXPECT_EQ(made(shape, {.threads = 0}), "threads = 0: 1 or more");
    EXPECT_EQ(made(shape, {.softmax_scale = INFINITY}), "softmax_scale = inf: a finite number");
    EXPECT_EQ(refusal([&] { attention.forward(plan, in[0], in[1], in[2], NAN); }),
              "softmax_scale = nan: a finite number");
    EXPECT_THAT(made({.num_heads = 3}, {}), HasSubstr("num_heads = 3"));
  });
}

TEST(Api, different_plans_are_reported_to_all_ranks) {
  const Shape shape = shape_of(ScalarType::kFloat32);
  run_ranks(2, kComm, [&](Communicator& comm) {
    CoreAttention attention(comm, shape);
    const BatchPlan plan = plan_batch(request_for(2, shape, /*window_left=*/comm.rank()));
    EXPECT_THAT(refusal([&] { attention.compare(plan); }),
                HasSubstr("all ranks plan the same request"));
  });
}

}  // namespace
}  // namespace distca::api
