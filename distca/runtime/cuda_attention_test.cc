// Core attention on a CUDA device against whole matrices in double. Without a device only what
// needs none is tested.

#include "distca/runtime/cuda_attention.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "distca/base/error.h"
#include "distca/kernels/attention_testing.h"
#include "distca/kernels/merge.h"
#include "distca/runtime/aten_attention.h"

namespace distca {
namespace {

using kernels::accumulator_type;
using kernels::BackwardTask;
using kernels::ForwardTask;
using kernels::KeyFragment;
using kernels::KeyGradient;
using kernels::Mask;
using kernels::Partial;
using kernels::Rows;
using kernels::testing::Bounds;
using kernels::testing::Case;
using kernels::testing::Document;
using kernels::testing::Tensor;
using kernels::testing::WholeMatrix;

constexpr int kDevice = 0;

/// Copies of a document's tensors on the device, and back.
class OnDevice {
 public:
  explicit OnDevice(Document& doc) {
    for (Tensor* tensor : {&doc.q, &doc.k, &doc.v, &doc.o, &doc.lse, &doc.d_o, &doc.delta, &doc.dq,
                           &doc.dk, &doc.dv}) {
      add(*tensor);
    }
  }
  void add(Tensor& tensor) {
    copies_.push_back({static_cast<std::byte*>(tensor.rows().data), host(tensor).to(device())});
  }
  /// The same rows of the copy.
  Rows rows(Rows host) const {
    const auto* at = static_cast<const std::byte*>(host.data);
    for (const Copy& copy : copies_) {
      if (at < copy.host || at >= copy.host + copy.device.nbytes()) continue;
      host.data = static_cast<std::byte*>(copy.device.data_ptr()) + (at - copy.host);
      return host;
    }
    ADD_FAILURE() << "rows of no tensor";
    return host;
  }
  void copy_back() const {
    for (const Copy& copy : copies_) {
      at::from_blob(copy.host, {static_cast<int64_t>(copy.device.nbytes())}, at::kByte)
          .copy_(copy.device);
    }
  }

 private:
  struct Copy {
    std::byte* host;
    at::Tensor device;
  };
  static at::Device device() { return {at::kCUDA, kDevice}; }
  static at::Tensor host(Tensor& tensor) {
    return at::from_blob(tensor.rows().data, {static_cast<int64_t>(tensor.bytes().size())},
                         at::kByte);
  }
  std::vector<Copy> copies_;
};

/// Tasks of a document with their memory on the device: `cuts` of the queries against `keys`, or
/// against all they may see.
class Batch {
 public:
  void add(Document& doc, const OnDevice& device, const Range& cut,
           std::optional<Range> keys = std::nullopt) {
    if (!keys) keys = {0, std::min(doc.spec.q_position + cut.end, doc.spec.k_tokens)};
    ForwardTask f = doc.forward(cut, *keys);
    BackwardTask b = doc.backward(cut, *keys);
    for (Rows* rows : {&f.q, &f.o, &f.lse, &b.q, &b.d_o, &b.lse, &b.delta, &b.dq}) {
      *rows = device.rows(*rows);
    }
    fragments_.push_back(doc.fragment_list);
    for (KeyFragment& x : fragments_.back()) x.k = device.rows(x.k), x.v = device.rows(x.v);
    gradients_.push_back(doc.gradient_list);
    for (KeyGradient& x : gradients_.back()) x.dk = device.rows(x.dk), x.dv = device.rows(x.dv);
    forward_.push_back(f), backward_.push_back(b);
  }
  std::span<const ForwardTask> forward() {
    for (size_t i = 0; i < forward_.size(); ++i) forward_[i].keys = fragments_[i];
    return forward_;
  }
  std::span<const BackwardTask> backward() {
    for (size_t i = 0; i < backward_.size(); ++i) {
      backward_[i].keys = fragments_[i];
      backward_[i].key_gradients = gradients_[i];
    }
    return backward_;
  }

 private:
  std::vector<std::vector<KeyFragment>> fragments_;
  std::vector<std::vector<KeyGradient>> gradients_;
  std::vector<ForwardTask> forward_;
  std::vector<BackwardTask> backward_;
};

/// FlashAttention rounds P and dS to bf16 before their products, O and a launch's gradients after.
Bounds bounds_of(const Case& c, const WholeMatrix& whole, int64_t launches) {
  return {c,
          whole,
          {.sums = accumulator_type(c.type), .store = c.type, .store_roundings = 4 + launches}};
}

class CudaAttentionTest : public ::testing::TestWithParam<ScalarType> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device: this PyTorch or this machine has none";
  }
};

INSTANTIATE_TEST_SUITE_P(formats, CudaAttentionTest,
                         ::testing::Values(ScalarType::kFloat64, ScalarType::kFloat32,
                                           ScalarType::kBFloat16));

void expect_like_whole_matrix(const Case& c, const std::vector<Range>& cuts) {
  Document doc(c);
  const WholeMatrix whole(doc);
  const Bounds bounds = bounds_of(c, whole, 2 * static_cast<int64_t>(cuts.size()));
  {
    const OnDevice device(doc);
    Batch batch;
    for (const Range& cut : cuts) batch.add(doc, device, cut);
    aten_forward(c.shape, c.type, batch.forward(), kDevice);
    device.copy_back();
  }
  kernels::testing::expect_forward(doc, whole, bounds);
  kernels::testing::set_backward_inputs(doc, whole);
  const OnDevice device(doc);
  Batch batch;
  for (const Range& cut : cuts) batch.add(doc, device, cut);
  aten_backward(c.shape, c.type, batch.backward(), kDevice);
  device.copy_back();
  kernels::testing::expect_backward(doc, whole, bounds);
}

TEST_P(CudaAttentionTest, equals_the_whole_matrix_for_every_mask_and_cut) {
  for (const Mask& mask : {Mask{}, Mask{.window_left = 9}, Mask{.window_left = 45}}) {
    for (const auto& key_cuts : std::vector<std::vector<int64_t>>{{}, {5, 33, 34, 61}}) {
      for (const int64_t gap : {0, 24, 3}) {  // 3: rows that are not aligned
        const Case c{.type = GetParam(),
                     .q_position = 33,
                     .q_tokens = 270,
                     .k_tokens = 303,
                     .mask = mask,
                     .key_cuts = key_cuts,
                     .gap = gap};
        expect_like_whole_matrix(c, {{0, 270}});
        expect_like_whole_matrix(c, {{130, 270}, {0, 1}, {1, 130}});
      }
    }
  }
}

TEST_P(CudaAttentionTest, equals_the_whole_matrix_for_every_head_grouping) {
  for (const auto& [heads, kv_heads] : {std::pair(1, 1), std::pair(4, 1), std::pair(8, 2)}) {
    for (const int64_t dim : {8, 64, 128, 256}) {
      Case c{.type = GetParam(), .q_position = 20, .q_tokens = 140, .k_tokens = 160};
      c.shape = {.num_heads = heads,
                 .num_kv_heads = kv_heads,
                 .head_dim_qk = dim,
                 .head_dim_v = dim,
                 .softmax_scale = 1 / std::sqrt(static_cast<double>(dim))};
      expect_like_whole_matrix(c, {{0, 100}, {100, 140}});
    }
  }
}

TEST_P(CudaAttentionTest, equals_the_whole_matrix_at_odd_lengths) {
  for (const int64_t tokens : {1, 2, 127, 128, 129, 300}) {
    expect_like_whole_matrix({.type = GetParam(), .q_tokens = tokens, .k_tokens = tokens},
                             {{0, tokens}});
  }
}

TEST_P(CudaAttentionTest, partial_keys_with_the_global_lse_add_up_to_the_whole) {
  const Case c{.type = GetParam(), .q_tokens = 290, .k_tokens = 290};
  Document doc(c);
  const WholeMatrix whole(doc);
  const Bounds bounds = bounds_of(c, whole, 6);
  kernels::testing::set_backward_inputs(doc, whole);
  const ScalarType partial = accumulator_type(c.type);
  const OnDevice device(doc);
  Tensor o[2], lse[2];
  std::vector<Partial> parts;
  for (const int i : {0, 1}) {
    const Range keys = i == 0 ? Range{0, 151} : Range{151, 290};
    o[i] = Tensor(partial, 290, 4, 16), lse[i] = Tensor(partial, 290, 4, 1);
    OnDevice results(doc);
    results.add(o[i]), results.add(lse[i]);
    Batch batch;
    batch.add(doc, device, doc.all_queries(), keys);
    ForwardTask task = batch.forward()[0];
    task.o = results.rows(o[i].rows()), task.lse = results.rows(lse[i].rows());
    aten_forward(c.shape, c.type, {&task, 1}, kDevice, partial);
    results.copy_back();
    aten_backward(c.shape, c.type, batch.backward(), kDevice);
    parts.push_back({o[i].rows(), partial, lse[i].rows()});
  }
  device.copy_back();
  kernels::testing::expect_backward(doc, whole, bounds);
  kernels::merge_partials({290, 4, 16}, c.type, parts, {doc.o.rows(), c.type, doc.lse.rows()});
  kernels::testing::expect_forward(doc, whole, bounds);
}

TEST_P(CudaAttentionTest, the_same_tasks_give_the_same_bits_with_deterministic_algorithms) {
  if (GetParam() == ScalarType::kFloat64) GTEST_SKIP() << "fp64 goes through the matmul path";
  const Case c{.type = GetParam(), .q_tokens = 1500, .k_tokens = 1500};
  std::vector<std::vector<std::byte>> bytes;
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  for (int run = 0; run < 2; ++run) {
    Document doc(c);
    doc.lse.fill([] { return 8; });
    doc.delta.fill([] { return 0.25; });
    const OnDevice device(doc);
    Batch batch;
    for (const Range& cut : {Range{0, 400}, Range{900, 1500}, Range{400, 900}}) {
      batch.add(doc, device, cut);
    }
    cuda_backward(c.shape, c.type, batch.backward(), kDevice);
    cuda_forward(c.shape, c.type, c.type, batch.forward(), kDevice);
    device.copy_back();
    for (const Tensor* t : {&doc.o, &doc.lse, &doc.dq, &doc.dk, &doc.dv})
      bytes.push_back(t->bytes());
  }
  at::globalContext().setDeterministicAlgorithms(false, false);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(bytes[i], bytes[i + 5]) << i;
}

TEST_P(CudaAttentionTest, keys_in_one_memory_are_not_copied) {
  if (GetParam() == ScalarType::kFloat64) GTEST_SKIP() << "fp64 goes through the matmul path";
  const Case c{.type = GetParam(), .q_tokens = 260, .k_tokens = 260};
  Document doc(c);
  const OnDevice device(doc);
  Batch batch;
  for (const Range& cut : {Range{0, 128}, Range{128, 260}}) batch.add(doc, device, cut);
  const int64_t o_and_lse = 4 * (16 * element_bytes(c.type) + 4);
  EXPECT_EQ(aten_forward(c.shape, c.type, batch.forward(), kDevice), 260 * o_and_lse);
}

TEST(CudaAttention, a_softcap_is_refused_by_name_before_a_device_is_touched) {
  Case c;
  c.shape.softcap = 50;
  for (const ScalarType type : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    try {
      aten_forward(c.shape, type, {}, kDevice);
      FAIL() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      EXPECT_THAT(error.what(), ::testing::StartsWith("softcap = 50: "));
    }
    EXPECT_THROW(aten_backward(c.shape, type, {}, kDevice), Error);
  }
}

TEST(CudaAttention, tasks_on_a_device_are_dispatched_to_it) {
  if (at::hasCUDA()) GTEST_SKIP() << "a device is there";
  const Case c{.type = ScalarType::kBFloat16, .q_tokens = 4, .k_tokens = 4};
  Document doc(c);
  const ForwardTask task = doc.forward(doc.all_queries(), doc.all_keys());
  EXPECT_THROW(aten_forward(c.shape, c.type, {&task, 1}, kDevice), c10::Error);
}

}  // namespace
}  // namespace distca
