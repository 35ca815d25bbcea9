// Cases that an average case does not show: nothing to do, nothing to see, infinities behind the
// mask, memory next to the rows.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "distca/base/error.h"
#include "distca/kernels/cpu/attention.h"
#include "distca/kernels/cpu/cpu_attention_testing.h"

namespace distca::kernels {
namespace {

using testing::Case;
using testing::Document;
using testing::kNoKey;
using testing::Tensor;
using testing::WholeMatrix;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class CpuSpecialTest : public testing::CpuAttentionSuite {
 protected:
  Case small_case(int64_t tokens) const {
    return {.type = type(), .q_tokens = tokens, .k_tokens = tokens};
  }
  void forward_all(Document& doc) const { forward(doc.spec.shape, doc.list()); }
  void backward_all(Document& doc) const { backward(doc.spec.shape, doc.list()); }
};

INSTANTIATE_TEST_SUITE_P(isa, CpuSpecialTest, ::testing::ValuesIn(testing::variants()),
                         ::testing::PrintToStringParamName());

TEST_P(CpuSpecialTest, an_empty_batch_and_empty_tasks_are_nothing_to_do) {
  Document doc(small_case(3));
  const Shape& shape = doc.spec.shape;
  forward(shape, {});
  backward(shape, {});
  const TaskList no_tokens{.queries = {{}}, .tasks = std::vector<Task>(3)};
  forward(shape, no_tokens);
  backward(shape, no_tokens);
  // Empty ones among others.
  forward(shape, doc.list({Task{}, doc.task({0, 3}, {0, 3}), doc.task({3, 3}, {0, 3})}), 4);
  testing::expect_forward(doc, WholeMatrix(doc), bounds(doc.spec, WholeMatrix(doc)));
}

TEST_P(CpuSpecialTest, without_keys_o_is_0_and_lse_is_minus_infinity) {
  Document doc(small_case(70));
  const Shape& shape = doc.spec.shape;
  for (const std::vector<KeyRange>& keys : {std::vector<KeyRange>(), std::vector<KeyRange>(2)}) {
    doc.o.fill([] { return 7; });
    doc.lse.fill([] { return 7; });
    TaskList list = doc.list();
    list.tasks[0].keys = keys;
    forward(shape, list);
    for (const double value : doc.o.values()) ASSERT_EQ(value, 0);
    for (const double value : doc.lse.values()) ASSERT_EQ(value, kNoKey);
    doc.dq.fill([] { return 3; });
    doc.delta.fill([] { return 1; });
    backward(shape, list);
    for (const double value : doc.dq.values()) ASSERT_EQ(value, 3);
  }
}

TEST_P(CpuSpecialTest, queries_that_see_no_key_get_nothing_and_give_nothing) {
  Case c = small_case(80);
  c.q_tokens = 200;
  c.mask.window_left = 20;  // queries from 100 on see none
  Document doc(c);
  doc.o.fill([] { return 7; });
  forward_all(doc);
  const WholeMatrix whole(doc);
  testing::expect_forward(doc, whole, bounds(c, whole));
  EXPECT_NE(doc.lse.at(99, 0, 0), kNoKey);
  for (int64_t i = 100; i < 200; ++i) {
    EXPECT_EQ(doc.lse.at(i, 1, 0), kNoKey);
    EXPECT_EQ(doc.o.at(i, 1, 5), 0);
  }
  testing::set_backward_inputs(doc, whole);
  for (int64_t i = 100; i < 200; ++i) doc.delta.set(i, 0, 0, 1);
  backward_all(doc);
  testing::expect_backward(doc, whole, bounds(c, whole));
}

TEST_P(CpuSpecialTest, a_row_whose_lse_is_minus_infinity_adds_nothing) {
  Document doc(small_case(90));
  const WholeMatrix whole(doc);
  testing::set_backward_inputs(doc, whole);
  for (Tensor* gradient : {&doc.dq, &doc.dk, &doc.dv}) gradient->fill([] { return 2; });
  doc.lse.fill([] { return kNoKey; });
  backward_all(doc);
  for (const Tensor* gradient : {&doc.dq, &doc.dk, &doc.dv}) {
    for (const double value : gradient->values()) ASSERT_EQ(value, 2);
  }
}

TEST_P(CpuSpecialTest, a_lone_key_takes_all_however_low_its_score) {
  for (const double size : {0x1p10, 0x1p50}) {  // scores -2^22, -2^102
    Case c = small_case(1);
    c.q_tokens = 40;
    Document doc(c);
    doc.q.fill([&] { return size; });
    doc.k.fill([&] { return -size; });
    forward_all(doc);
    for (int64_t i = 0; i < 40; ++i) {
      EXPECT_EQ(doc.o.at(i, 3, 9), doc.v.at(0, 1, 9));
      EXPECT_NEAR(doc.lse.at(i, 3, 0), -4 * size * size, 4 * 0x1p-24 * 4 * size * size);
    }
  }
}

TEST_P(CpuSpecialTest, a_finite_lse_is_not_no_key_however_low) {
  constexpr double kSize = 0x1p50;  // scores -2^102, below -1e30
  Case c = small_case(1);
  c.q_tokens = 40;
  Document doc(c);
  doc.q.fill([] { return kSize; });
  doc.k.fill([] { return -kSize; });
  const WholeMatrix whole(doc);
  testing::set_backward_inputs(doc, whole);
  ASSERT_EQ(doc.lse.at(39, 3, 0), -4 * kSize * kSize);
  backward_all(doc);
  // Every probability is 1, to within exp2's polynomial.
  testing::expect_close("dv", doc.dv.values(), whole.dv, 0x1p-12, 0);
}

/// A document with a window, in which a spoiled key touches few rows.
class CpuPoisonTest : public CpuSpecialTest {
 protected:
  static constexpr uint64_t kSeed = 5;
  static constexpr int64_t kSpoiled[] = {77, 150};  // keys of head 1, in key tiles cut by the mask

  Case spec() const {
    Case c = small_case(220);
    c.mask.window_left = 50;
    return c;
  }
  Document poisoned(bool in_k, double poison) const {
    Document doc(spec(), kSeed);
    for (const int64_t j : kSpoiled) {
      for (const int64_t x : {0, 9}) (in_k ? doc.k : doc.v).set(j, 1, x, poison);
    }
    return doc;
  }
  /// Bit for bit the same, but for the rows for which `touched(token, head)` is true.
  template <typename Touched>
  static void expect_kept(const char* name, const Tensor& now, const Tensor& clean, int64_t heads,
                          int64_t dim, Touched touched) {
    for (int64_t t = 0; t < clean.tokens(); ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t x = 0; x < dim && !touched(t, h); ++x) {
          ASSERT_EQ(now.at(t, h, x), clean.at(t, h, x))
              << name << " of token " << t << " head " << h;
        }
      }
    }
  }
  template <typename Run>
  void for_every_poison(Run run) const {
    for (const double poison : {kInfinity, -kInfinity, std::nan("")}) {
      for (const bool in_k : {true, false}) {
        SCOPED_TRACE(::testing::Message() << (in_k ? "k" : "v") << " holds " << poison);
        Document doc = poisoned(in_k, poison);
        run(doc);
      }
    }
  }
  bool sees_spoiled(int64_t i, int64_t h) const {
    const auto sees = [&](int64_t j) { return testing::sees(spec().mask, i, j); };
    return h >= 2 && std::any_of(std::begin(kSpoiled), std::end(kSpoiled), sees);
  }
};

INSTANTIATE_TEST_SUITE_P(isa, CpuPoisonTest, ::testing::ValuesIn(testing::variants()),
                         ::testing::PrintToStringParamName());

TEST_P(CpuPoisonTest, infinities_and_nan_behind_the_mask_do_not_change_o) {
  Document clean(spec(), kSeed);
  forward_all(clean);
  const auto touched = [&](int64_t i, int64_t h) { return sees_spoiled(i, h); };
  for_every_poison([&](Document& doc) {
    forward_all(doc);
    expect_kept("o", doc.o, clean.o, 4, 16, touched);
    expect_kept("lse", doc.lse, clean.lse, 4, 1, touched);
  });
}

TEST_P(CpuPoisonTest, infinities_and_nan_behind_the_mask_do_not_change_gradients) {
  Document clean(spec(), kSeed);
  const WholeMatrix whole(clean);
  testing::set_backward_inputs(clean, whole);
  backward_all(clean);
  const auto is_spoiled = [&](int64_t j, int64_t h) {
    return h == 1 && std::count(std::begin(kSpoiled), std::end(kSpoiled), j) > 0;
  };
  for_every_poison([&](Document& doc) {
    testing::set_backward_inputs(doc, whole);
    backward_all(doc);
    const auto touched = [&](int64_t i, int64_t h) { return sees_spoiled(i, h); };
    expect_kept("dq", doc.dq, clean.dq, 4, 16, touched);
    expect_kept("dk", doc.dk, clean.dk, 2, 16, is_spoiled);
    expect_kept("dv", doc.dv, clean.dv, 2, 16, is_spoiled);
  });
}

TEST_P(CpuSpecialTest, a_query_of_nan_spoils_no_other_row) {
  Case c = small_case(130);
  Document clean(c, 5), doc(c, 5);
  forward_all(clean);
  for (int64_t x = 0; x < 16; ++x) doc.q.set(70, 2, x, std::nan(""));
  forward_all(doc);
  for (int64_t i = 0; i < c.q_tokens; ++i) {
    for (int64_t h = 0; h < 4; ++h) {
      if (i == 70 && h == 2) continue;
      ASSERT_EQ(doc.lse.at(i, h, 0), clean.lse.at(i, h, 0)) << "query " << i << " head " << h;
      for (int64_t x = 0; x < 16; ++x) {
        ASSERT_EQ(doc.o.at(i, h, x), clean.o.at(i, h, x)) << "query " << i << " head " << h;
      }
    }
  }
}

/// Bytes of `a` and `b` that differ, outside of the rows of tokens [tokens.begin, tokens.end).
int64_t changed_outside(const Tensor& a, const Tensor& b, const Range& tokens, int64_t row_bytes,
                        int64_t stride_bytes) {
  int64_t changed = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(a.bytes().size()); ++i) {
    const int64_t token = i / stride_bytes;
    const bool inside = tokens.contains({token, token + 1}) && i - token * stride_bytes < row_bytes;
    if (!inside && a.bytes()[i] != b.bytes()[i]) ++changed;
  }
  return changed;
}

TEST_P(CpuSpecialTest, writes_only_its_own_rows) {
  for (const int64_t dim : {8, 16, 24, 72}) {
    Case c = small_case(150);
    c.gap = 8;
    c.shape.head_dim_qk = c.shape.head_dim_v = dim;
    c.mask.causal = false;
    Document doc(c);
    const Document before(c);
    const TaskList list = doc.list({40, 77}, {33, 99});
    forward(c.shape, list, 3);
    const auto expect_kept = [&](const Tensor& now, const Tensor& then, const Range& tokens,
                                 int64_t row, ScalarType type) {
      const int64_t bytes = element_bytes(type);
      EXPECT_EQ(changed_outside(now, then, tokens, row * bytes, (row + c.gap) * bytes), 0);
    };
    const ScalarType fp32 = ScalarType::kFloat32;
    expect_kept(doc.o, before.o, {40, 77}, 4 * dim, type());
    expect_kept(doc.lse, before.lse, {40, 77}, 4, fp32);
    doc.lse.fill([] { return 4; });
    doc.delta.fill([] { return 1; });
    backward(c.shape, list, 3);
    expect_kept(doc.dq, before.dq, {40, 77}, 4 * dim, fp32);
    expect_kept(doc.dk, before.dk, {33, 99}, 2 * dim, fp32);
    expect_kept(doc.dv, before.dv, {33, 99}, 2 * dim, fp32);
  }
}

/// A copy of a tensor without gaps right before or right behind a page that nobody may touch.
class Guarded {
 public:
  Guarded(const Tensor& tensor, ScalarType type, int64_t row, int64_t dim, bool guard_behind)
      : row_(row), dim_(dim), bytes_(tensor.tokens() * row * element_bytes(type)) {
    const size_t page = sysconf(_SC_PAGESIZE);
    mapped_ = (bytes_ + page - 1) / page * page + 2 * page;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    DISTCA_CHECK(base_ != MAP_FAILED, "no memory for a guarded tensor");
    data_ = guard_behind ? base_ + mapped_ - page - bytes_ : base_ + page;
    std::memcpy(data_, tensor.bytes().data(), bytes_);
    mprotect(base_, page, PROT_NONE);
    mprotect(base_ + mapped_ - page, page, PROT_NONE);
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() { munmap(base_, mapped_); }

  Rows rows() const { return {data_, row_, dim_}; }
  bool holds(const Tensor& tensor) const {
    return std::memcmp(data_, tensor.bytes().data(), bytes_) == 0;
  }

 private:
  int64_t row_, dim_;
  size_t bytes_, mapped_;
  std::byte* base_;
  std::byte* data_;
};

TEST_P(CpuSpecialTest, touches_no_memory_beside_its_tensors) {
  const ScalarType fp32 = ScalarType::kFloat32;
  for (const int64_t dim : {8, 24, 40, 72}) {
    for (const bool behind : {false, true}) {
      for (const int64_t tokens : {1, 33, 131}) {
        Case c = small_case(tokens);
        c.shape.head_dim_qk = dim, c.shape.head_dim_v = 80 - dim;
        const int64_t e = c.shape.head_dim_v;
        Document doc(c);
        doc.delta.fill([] { return 0.5; });
        const auto guarded = [&](const Tensor& tensor, ScalarType of, int64_t heads,
                                 int64_t width) {
          return Guarded(tensor, of, heads * width, width, behind);
        };
        const Guarded q = guarded(doc.q, type(), 4, dim), k = guarded(doc.k, type(), 2, dim);
        const Guarded v = guarded(doc.v, type(), 2, e), d_o = guarded(doc.d_o, type(), 4, e);
        const Guarded o = guarded(doc.o, type(), 4, e), lse = guarded(doc.lse, fp32, 4, 1);
        const Guarded delta = guarded(doc.delta, fp32, 4, 1), dq = guarded(doc.dq, fp32, 4, dim);
        const Guarded dk = guarded(doc.dk, fp32, 2, dim), dv = guarded(doc.dv, fp32, 2, e);
        forward_all(doc);
        backward_all(doc);
        TaskList list = doc.list();
        list.queries[0] = {.tokens = tokens,
                           .q = q.rows(),
                           .o = o.rows(),
                           .lse = lse.rows(),
                           .d_o = d_o.rows(),
                           .delta = delta.rows(),
                           .dq = dq.rows()};
        list.keys[0] = {
            .tokens = tokens, .k = k.rows(), .v = v.rows(), .dk = dk.rows(), .dv = dv.rows()};
        forward(c.shape, list);
        backward(c.shape, list);
        EXPECT_TRUE(o.holds(doc.o) && lse.holds(doc.lse));
        EXPECT_TRUE(dq.holds(doc.dq) && dk.holds(doc.dk) && dv.holds(doc.dv));
      }
    }
  }
}

}  // namespace
}  // namespace distca::kernels
