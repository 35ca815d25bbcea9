// Core attention on a CUDA device against whole matrices in double. Without a device only what
// needs none is tested.

#include "distca/runtime/cuda/cuda_attention.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/kernels/attention_testing.h"
#include "distca/kernels/merge.h"
#include "distca/runtime/aten_attention.h"
#include "distca/runtime/cuda/compiled_kernels.h"

namespace distca {
namespace {

using kernels::accumulator_type;
using kernels::Mask;
using kernels::Partial;
using kernels::Rows;
using kernels::Task;
using kernels::TaskList;
using kernels::testing::Bounds;
using kernels::testing::Case;
using kernels::testing::Document;
using kernels::testing::Tensor;
using kernels::testing::WholeMatrix;

constexpr int kDevice = 0;

/// Copies of a document's tensors on the device, and back.
class OnDevice {
 public:
  explicit OnDevice(Document& doc) : doc_(doc) {
    for (Tensor* tensor : {&doc.q, &doc.k, &doc.v, &doc.o, &doc.lse, &doc.d_o, &doc.delta, &doc.dq,
                           &doc.dk, &doc.dv}) {
      copies_.push_back({static_cast<std::byte*>(tensor->rows().data), host(*tensor).to(device())});
    }
  }
  /// Tasks with their memory on the device: `cuts` of the queries against all keys they may see.
  TaskList list(const std::vector<Range>& cuts) const {
    std::vector<Task> tasks;
    for (const Range& cut : cuts) {
      tasks.push_back(
          doc_.task(cut, {0, std::min(doc_.spec.q_position + cut.end, doc_.spec.k_tokens)}));
    }
    TaskList list = doc_.list(std::move(tasks));
    kernels::QueryBuffer& queries = list.queries[0];
    kernels::KeyBuffer& keys = list.keys[0];
    for (Rows* rows : {&queries.q, &queries.o, &queries.lse, &queries.d_o, &queries.delta,
                       &queries.dq, &keys.k, &keys.v, &keys.dk, &keys.dv}) {
      rows->data = on_device(rows->data);
    }
    return list;
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
  void* on_device(const void* host) const {
    for (const Copy& copy : copies_) {
      if (copy.host == host) return copy.device.data_ptr();
    }
    ADD_FAILURE() << "rows of no tensor";
    return nullptr;
  }
  Document& doc_;
  std::vector<Copy> copies_;
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

void expect_like_whole_matrix(const Case& c, const std::vector<Range>& cuts,
                              const CompiledKernels* flash4 = nullptr) {
  Document doc(c);
  const WholeMatrix whole(doc);
  const Bounds bounds = bounds_of(c, whole, 2 * static_cast<int64_t>(cuts.size()));
  {
    const OnDevice device(doc);
    cuda_forward(c.shape, c.type, c.type, device.list(cuts), kDevice, nullptr, {flash4});
    device.copy_back();
  }
  kernels::testing::expect_forward(doc, whole, bounds);
  kernels::testing::set_backward_inputs(doc, whole);
  const OnDevice device(doc);
  cuda_backward(c.shape, c.type, device.list(cuts), kDevice, nullptr, {flash4});
  device.copy_back();
  kernels::testing::expect_backward(doc, whole, bounds);
}

/// FlashAttention 4 with kernels that were compiled for such heads, where they are.
class CudaFlash4Test : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(head_dims, CudaFlash4Test, ::testing::Values(64, 128));

TEST_P(CudaFlash4Test, equals_the_whole_matrix_for_every_mask_and_cut) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device: this PyTorch or this machine has none";
  Case c{.type = ScalarType::kBFloat16, .q_position = 33, .q_tokens = 270, .k_tokens = 303};
  c.shape.num_kv_heads = 1;
  c.shape.head_dim_qk = c.shape.head_dim_v = GetParam();
  c.shape.softmax_scale = 1 / std::sqrt(static_cast<double>(GetParam()));
  const FoundKernels found = find_compiled_kernels(c.shape, c.type, kDevice);
  if (!found.kernels) GTEST_SKIP() << "no kernels of FlashAttention 4: " << found.reason;
  for (const bool is_deterministic : {false, true}) {
    at::globalContext().setDeterministicAlgorithms(is_deterministic, false);
    for (const Mask& mask : {Mask{}, Mask{.window_left = 9}, Mask{.window_left = 150}}) {
      for (const int64_t gap : {0, 3}) {  // 3: rows that are not aligned
        c.mask = mask, c.gap = gap;
        expect_like_whole_matrix(c, {{0, 270}}, found.kernels.get());
        expect_like_whole_matrix(c, {{130, 270}, {0, 1}, {1, 130}}, found.kernels.get());
      }
    }
  }
  at::globalContext().setDeterministicAlgorithms(false, false);
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
    Document results(c);  // for O and LSE of this part
    std::swap(results.o, o[i]), std::swap(results.lse, lse[i]);
    {
      const OnDevice part(results);
      TaskList list = part.list({doc.all_queries()});
      list.tasks[0].keys = doc.key_ranges(keys);
      aten_forward(c.shape, c.type, list, kDevice, partial);
      part.copy_back();
    }
    std::swap(results.o, o[i]), std::swap(results.lse, lse[i]);
    TaskList list = device.list({doc.all_queries()});
    list.tasks[0].keys = doc.key_ranges(keys);
    aten_backward(c.shape, c.type, list, kDevice);
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
    const TaskList list = device.list({{0, 400}, {900, 1500}, {400, 900}});
    cuda_backward(c.shape, c.type, list, kDevice);
    cuda_forward(c.shape, c.type, c.type, list, kDevice);
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
  const int64_t o_and_lse = 4 * (16 * element_bytes(c.type) + 4);
  EXPECT_EQ(aten_forward(c.shape, c.type, device.list({{0, 128}, {128, 260}}), kDevice),
            260 * o_and_lse);
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
  EXPECT_THROW(aten_forward(c.shape, c.type, doc.list(), kDevice), c10::Error);
}

}  // namespace
}  // namespace distca
