// Core attention on a CUDA device against whole matrices in double. Without a device only what
// needs none is tested, and FlashAttention 4's cases over stand-ins of its kernels.

#include "distca/runtime/cuda/cuda_attention.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/kernels/attention_testing.h"
#include "distca/kernels/merge.h"
#include "distca/runtime/attention_kernel.h"
#include "distca/runtime/cuda/compiled_kernels.h"
#include "distca/runtime/cuda/flash4_testing.h"

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

/// Copies of documents' tensors on a device, and back: those of one kind one behind the other, as
/// documents lie in a packed batch.
class OnDevice {
 public:
  explicit OnDevice(Document& doc) : OnDevice({&doc}, kDevice) {}
  OnDevice(std::vector<Document*> docs, int cuda_device) : docs_(std::move(docs)) {
    for (Tensor Document::*field :
         {&Document::q, &Document::k, &Document::v, &Document::o, &Document::lse, &Document::d_o,
          &Document::delta, &Document::dq, &Document::dk, &Document::dv}) {
      std::vector<at::Tensor> of_docs;
      for (Document* doc : docs_) of_docs.push_back(host(doc->*field));
      copies_.push_back({field, at::cat(of_docs).to(aten_device(cuda_device))});
    }
  }
  /// Tasks with their memory on the device: `cuts` of each document's queries against all keys that
  /// they may see.
  TaskList list(const std::vector<Range>& cuts) const {
    TaskList list = docs_[0]->list({});
    kernels::QueryBuffer& queries = list.queries[0];
    kernels::KeyBuffer& keys = list.keys[0];
    queries.tokens = keys.tokens = 0;
    for (const Document* doc : docs_) {
      const Case& c = doc->spec;
      for (const Range& cut : cuts) {
        const Range part = intersect(cut, doc->all_queries());
        if (part.empty()) continue;
        const int64_t seen = c.mask.causal ? c.q_position + part.end : c.k_tokens;
        Task& task = list.tasks.emplace_back(doc->task(part, {0, std::min(seen, c.k_tokens)}));
        task.q_row += queries.tokens;
        for (kernels::KeyRange& range : task.keys) range.row += keys.tokens;
      }
      queries.tokens += c.q_tokens, keys.tokens += c.k_tokens;
    }
    for (Rows* rows : {&queries.q, &queries.o, &queries.lse, &queries.d_o, &queries.delta,
                       &queries.dq, &keys.k, &keys.v, &keys.dk, &keys.dv}) {
      rows->data = on_device(rows->data);
    }
    return list;
  }
  void copy_back() const {
    for (const Copy& copy : copies_) {
      int64_t begin = 0;
      for (Document* doc : docs_) {
        const at::Tensor to = host(doc->*copy.field);
        to.copy_(copy.device.narrow(0, begin, to.numel()));
        begin += to.numel();
      }
    }
  }

 private:
  struct Copy {
    Tensor Document::*field;
    at::Tensor device;
  };
  /// The bytes of all rows.
  static at::Tensor host(Tensor& tensor) {
    auto* const begin = static_cast<std::byte*>(tensor.rows().data);
    const std::byte* const end = static_cast<std::byte*>(tensor.rows(tensor.tokens()).data);
    return at::from_blob(begin, {end - begin}, at::kByte);
  }
  void* on_device(const void* host) const {
    for (const Copy& copy : copies_) {
      if ((docs_[0]->*copy.field).rows().data == host) return copy.device.data_ptr();
    }
    ADD_FAILURE() << "rows of no tensor";
    return nullptr;
  }
  const std::vector<Document*> docs_;
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

/// Compares documents with whole matrices, each `cuts` of all of them in one call.
void expect_like_whole_matrix(const std::vector<Case>& cases, const std::vector<Range>& cuts,
                              int cuda_device, const Flash4& flash4) {
  std::deque<Document> docs;
  std::vector<Document*> all;
  std::vector<WholeMatrix> wholes;
  for (const Case& c : cases) {
    all.push_back(&docs.emplace_back(c, /*seed=*/docs.size() + 1));
    wholes.emplace_back(docs.back());
  }
  const ScalarType type = cases[0].type;
  const kernels::Shape& shape = cases[0].shape;
  const auto bounds = [&](size_t i) {
    return bounds_of(cases[i], wholes[i], 2 * static_cast<int64_t>(cuts.size()));
  };
  {
    const OnDevice device(all, cuda_device);
    cuda_forward(shape, type, type, device.list(cuts), cuda_device, nullptr, flash4);
    device.copy_back();
  }
  for (size_t i = 0; i < docs.size(); ++i) {
    kernels::testing::expect_forward(docs[i], wholes[i], bounds(i));
    kernels::testing::set_backward_inputs(docs[i], wholes[i]);
  }
  const OnDevice device(all, cuda_device);
  cuda_backward(shape, type, device.list(cuts), cuda_device, nullptr, flash4);
  device.copy_back();
  for (size_t i = 0; i < docs.size(); ++i)
    kernels::testing::expect_backward(docs[i], wholes[i], bounds(i));
}

void expect_like_whole_matrix(const Case& c, const std::vector<Range>& cuts) {
  expect_like_whole_matrix(std::vector<Case>{c}, cuts, kDevice, {});
}

/// Runs the same tasks twice.
void expect_same_bits(const Case& c, const std::vector<Range>& cuts, int cuda_device,
                      const Flash4& flash4) {
  std::vector<std::vector<std::byte>> bytes;
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  for (int run = 0; run < 2; ++run) {
    Document doc(c);
    doc.lse.fill([] { return 8; });
    doc.delta.fill([] { return 0.25; });
    const OnDevice device({&doc}, cuda_device);
    const TaskList list = device.list(cuts);
    cuda_backward(c.shape, c.type, list, cuda_device, nullptr, flash4);
    cuda_forward(c.shape, c.type, c.type, list, cuda_device, nullptr, flash4);
    device.copy_back();
    for (const Tensor* t : {&doc.o, &doc.lse, &doc.dq, &doc.dk, &doc.dv})
      bytes.push_back(t->bytes());
  }
  at::globalContext().setDeterministicAlgorithms(false, false);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(bytes[i], bytes[i + 5]) << i;
}

/// FlashAttention 4 with kernels that were compiled for such heads, so many for each key head,
/// where they are. On a CPU, stand-ins of its kernels play the same in small.
class CudaFlash4Test : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {
 protected:
  static constexpr int64_t kStandInHeadDim = 16;

  void SetUp() override {
    const auto [head_dim, group] = GetParam();
    if (head_dim == kStandInHeadDim) {
      unsetenv("DISTCA_STAND_INS_COMPUTE_NOTHING");
      stand_ins_.emplace(group, head_dim);
      device_ = -1, tokens_ = 90;
    } else if (!at::hasCUDA()) {
      GTEST_SKIP() << "no CUDA device: this PyTorch or this machine has none";
    }
    shape_.num_kv_heads = shape_.num_heads / group;
    shape_.head_dim_qk = shape_.head_dim_v = head_dim;
    shape_.softmax_scale = 1 / std::sqrt(static_cast<double>(head_dim));
    FoundKernels found = find_compiled_kernels(shape_, ScalarType::kBFloat16, device_);
    if (!found.kernels) GTEST_SKIP() << "no kernels of FlashAttention 4: " << found.reason;
    kernels_ = std::move(found.kernels);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }

  /// The last `queries` of `keys` tokens, or queries behind them, too.
  Case case_of(int64_t position, int64_t queries, int64_t keys, const Mask& mask = {}) const {
    return {.type = ScalarType::kBFloat16,
            .shape = shape_,
            .q_position = position,
            .q_tokens = queries,
            .k_tokens = keys,
            .mask = mask};
  }
  std::vector<Mask> masks() const {
    return {{}, {.window_left = 9}, {.window_left = tokens_ / 2}, {.causal = false}};
  }

  int device_ = kDevice;
  int64_t tokens_ = 270;
  kernels::Shape shape_ = Case{}.shape;
  std::unique_ptr<const CompiledKernels> kernels_;

 private:
  std::optional<StandInKernels> stand_ins_;
};
using HeadDimAndGroup = std::pair<int64_t, int64_t>;
INSTANTIATE_TEST_SUITE_P(head_dims, CudaFlash4Test,
                         ::testing::Values(HeadDimAndGroup(64, 4), HeadDimAndGroup(128, 4),
                                           HeadDimAndGroup(64, 1), HeadDimAndGroup(128, 1)));
INSTANTIATE_TEST_SUITE_P(stand_ins, CudaFlash4Test,
                         ::testing::Values(HeadDimAndGroup(16, 4), HeadDimAndGroup(16, 1)));

TEST_P(CudaFlash4Test, equals_the_whole_matrix_for_every_mask_and_cut) {
  bool is_deterministic = false;
  const int64_t n = tokens_, before = 33;
  const std::vector<Range> whole = {{0, n}}, shards = {{n / 2, n}, {0, 1}, {1, n / 2}};
  for (const Mask& mask : masks()) {
    // Where the keys end before the queries, those behind see them to the end: no right limit.
    for (const int64_t keys : {before + n, before + n / 2}) {
      Case c = case_of(before, n, keys, mask);
      for (const auto& [cuts, gap] :
           {std::pair(&whole, 0), std::pair(&shards, 0), std::pair(&shards, 3)}) {
        c.gap = gap;  // 3: rows that are not aligned
        at::globalContext().setDeterministicAlgorithms(is_deterministic = !is_deterministic, false);
        expect_like_whole_matrix(std::vector<Case>{c}, *cuts, device_, {kernels_.get()});
      }
    }
  }
}

TEST_P(CudaFlash4Test, documents_of_a_batch_equal_their_whole_matrices) {
  for (const bool is_deterministic : {false, true}) {
    at::globalContext().setDeterministicAlgorithms(is_deterministic, false);
    for (const Mask& mask : masks()) {
      std::vector<Case> documents;
      for (const int64_t tokens : {tokens_ / 2, int64_t{1}, tokens_, tokens_ / 4})
        documents.push_back(case_of(0, tokens, tokens, mask));
      expect_like_whole_matrix(documents, {{0, tokens_}}, device_, {kernels_.get()});
    }
  }
}

TEST_P(CudaFlash4Test, the_same_tasks_give_the_same_bits_with_deterministic_algorithms) {
  const int64_t n = 5 * tokens_;
  for (const Mask& mask : masks())
    expect_same_bits(case_of(0, n, n, mask), {{0, n / 4}, {n / 2, n}, {n / 4, n / 2}}, device_,
                     {kernels_.get()});
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
      cuda_forward(c.shape, c.type, partial, list, kDevice);
      part.copy_back();
    }
    std::swap(results.o, o[i]), std::swap(results.lse, lse[i]);
    TaskList list = device.list({doc.all_queries()});
    list.tasks[0].keys = doc.key_ranges(keys);
    cuda_backward(c.shape, c.type, list, kDevice);
    parts.push_back({o[i].rows(), partial, lse[i].rows()});
  }
  device.copy_back();
  kernels::testing::expect_backward(doc, whole, bounds);
  kernels::merge_partials({290, 4, 16}, c.type, parts, {doc.o.rows(), c.type, doc.lse.rows()});
  kernels::testing::expect_forward(doc, whole, bounds);
}

TEST_P(CudaAttentionTest, the_same_tasks_give_the_same_bits_with_deterministic_algorithms) {
  if (GetParam() == ScalarType::kFloat64) GTEST_SKIP() << "fp64 goes through the matmul path";
  expect_same_bits({.type = GetParam(), .q_tokens = 1500, .k_tokens = 1500},
                   {{0, 400}, {900, 1500}, {400, 900}}, kDevice, {});
}

TEST_P(CudaAttentionTest, keys_in_one_memory_are_not_copied) {
  if (GetParam() == ScalarType::kFloat64) GTEST_SKIP() << "fp64 goes through the matmul path";
  const Case c{.type = GetParam(), .q_tokens = 260, .k_tokens = 260};
  Document doc(c);
  const OnDevice device(doc);
  const int64_t o_and_lse = 4 * (16 * element_bytes(c.type) + 4);
  EXPECT_EQ(cuda_forward(c.shape, c.type, c.type, device.list({{0, 128}, {128, 260}}), kDevice),
            260 * o_and_lse);
}

TEST(CudaAttention, a_softcap_is_refused_by_name_before_a_device_is_touched) {
  Case c;
  c.shape.softcap = 50;
  for (const ScalarType type : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    try {
      cuda_forward(c.shape, type, type, {}, kDevice);
      FAIL() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      EXPECT_THAT(error.what(), ::testing::StartsWith("softcap = 50: "));
    }
    EXPECT_THROW(cuda_backward(c.shape, type, {}, kDevice), Error);
  }
}

TEST(CudaAttention, tasks_on_a_device_are_dispatched_to_it) {
  if (at::hasCUDA()) GTEST_SKIP() << "a device is there";
  const Case c{.type = ScalarType::kBFloat16, .q_tokens = 4, .k_tokens = 4};
  Document doc(c);
  AttentionKernel kernel(
      {.choice = KernelChoice::kAten, .shape = c.shape, .type = c.type, .cuda_device = kDevice});
  EXPECT_THROW(kernel.forward(c.type, doc.list()), c10::Error);
}

}  // namespace
}  // namespace distca
