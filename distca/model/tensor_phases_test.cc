// Ranks that divide the matrices of a Llama compute what one does that has them whole: the loss of
// every token, the gradient by the embedded rows, and the gradients by all weights.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "distca/model/tensor_phases.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "distca/comm/aten_types.h"
#include "distca/comm/thread_group.h"
#include "distca/model/model_testing.h"
#include "distca/model/operators.h"
#include "distca/model/tensor_phases_testing.h"
#include "distca/program/program.h"

namespace distca {
namespace {

/// A fault that a test puts in, to see that it would be found.
enum class Fault { kNone, kSharedLeftUnsummed, kTokensOffByOne, kPartAddedTwice };
/// The inner rows that are kept for backward: those of both products, of the first one, or none.
enum class Memory { kProducts, kInputs, kNothing };

struct Setting {
  LlamaConfig config;
  int64_t num_tokens = 0;
  int num_ranks = 1;
  bool leaves = false;  // gradients by matrices are left for later
  Memory memory = Memory::kProducts;
  Fault fault = Fault::kNone;
};

struct Result {
  at::Tensor losses;  // [R]
  double loss = 0;
  at::Tensor d_x;                     // [R, C] by what was embedded
  std::vector<at::Tensor> gradients;  // by the full tensors, in the order of the weights
};

constexpr double kScale = 0.25;
constexpr int64_t kChunkTokens = 12;

at::ScalarType wide(const LlamaConfig& config) {
  return config.dtype == ScalarType::kFloat64 ? at::kDouble : at::kFloat;
}
at::Tensor positions(int64_t num_tokens) { return at::arange(num_tokens, at::kLong); }
at::Tensor ids(const Setting& s) {
  return (positions(s.num_tokens) * 23 + 5) % s.config.vocab_size;
}
at::Tensor targets(const Setting& s) {
  const at::Tensor all = positions(s.num_tokens);
  return (all * 7 + 60).remainder(s.config.vocab_size).masked_fill(all % 5 == 3, -100);
}

/// Stands for core attention: heads and rows meet, and its gradients are easily written down.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t group = q.size(1) / k.size(1);
  return q * k.repeat_interleave(group, 1) + v.roll(1, 0).repeat_interleave(group, 1);
}
std::vector<at::Tensor> attention_backward(const at::Tensor& d_o, const at::Tensor& q,
                                           const at::Tensor& k) {
  const int64_t group = q.size(1) / k.size(1);
  const auto of_keys = [&](const at::Tensor& d) {
    return d.view({d.size(0), k.size(1), group, d.size(2)}).sum(2);
  };
  return {d_o * k.repeat_interleave(group, 1), of_keys(d_o * q), of_keys(d_o).roll(-1, 0)};
}

/// No weight has a value that would hide a mistake, as ones and zeros do.
void draw(const Llama& model) {
  at::manual_seed(3);
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const at::Tensor& parameter = model.parameters()[i];
    if (!model.weights()[i].is_matrix())
      parameter.copy_(at::randn(parameter.sizes(), at::kDouble) * 0.2 +
                      (model.weights()[i].is_bias() ? 0.0 : 1.0));
  }
  model.refresh_copies();
}

/// One model that has all matrices, by the phases of llama.h.
Result one_rank(const Setting& s) {
  const Llama model(s.config, 7, -1);
  draw(model);
  const auto rope = model.rope(positions(s.num_tokens));
  struct Layer {
    at::Tensor x, q, k, v, o;
    std::shared_ptr<Llama::PreAttention> pre;
    std::shared_ptr<Llama::PostAttention> post;
  };
  std::vector<Layer> layers(s.config.num_hidden_layers);
  at::Tensor x = model.embed(ids(s));
  for (int i = 0; i < s.config.num_hidden_layers; ++i) {
    Layer& l = layers[i];
    l.x = x;
    model.pre_attention(i, x, *rope, &l.q, &l.k, &l.v, Keep::kProducts, &l.pre);
    l.o = attention(l.q, l.k, l.v);
    x = model.post_attention(i, x, l.o, Keep::kProducts, &l.post);
  }
  Result result;
  at::Tensor d;
  result.loss = model.chunk_losses(x, targets(s), 1000, kScale, &d, &result.losses)
                    .sum(at::kDouble)
                    .item<double>();
  for (int i = static_cast<int>(s.config.num_hidden_layers) - 1; i >= 0; --i) {
    Layer& l = layers[i];
    const auto [d_residual, d_o] = model.post_attention_backward(i, l.o, *l.post, d);
    const std::vector<at::Tensor> by = attention_backward(d_o, l.q, l.k);
    d = d_residual + model.pre_attention_backward(i, l.x, *rope, *l.pre, by[0], by[1], by[2]);
  }
  result.d_x = d;
  const at::Tensor all = ids(s);
  model.embed_backward(
      *model.occurrences({all.const_data_ptr<int64_t>(), static_cast<size_t>(all.numel())}), d);
  for (const at::Tensor& parameter : model.parameters())
    result.gradients.push_back(parameter.grad());
  return result;
}

/// One of the ranks that divide the matrices.
class Rank {
 public:
  Rank(Communicator& group, const Llama& whole, const Setting& s)
      : setting_(s),
        model_(s.config, stage(group, s), 7, -1),
        phases_(model_),
        rows_(group, s.num_tokens, wide(s.config)),
        rope_(model_.rope(positions(s.num_tokens))),
        layers_(s.config.num_hidden_layers),
        shift_(s.fault == Fault::kTokensOffByOne && group.rank() == 1 ? 1 : 0) {
    if (s.fault == Fault::kPartAddedTwice) rows_.add_a_part_twice();
    for (size_t i = 0; i < model_.parameters().size(); ++i)
      model_.parameters()[i].copy_(part_of(model_.weights()[i].box, whole.parameters()[i]));
    model_.refresh_copies();
  }
  const Llama& model() const { return model_; }

  /// Computes everything but the gradients, which model() then has.
  Result play() {
    at::Tensor x = rows_.sum(phases_.embed_part(ids(setting_) + shift_));
    const auto num_layers = static_cast<int>(setting_.config.num_hidden_layers);
    for (int layer = 0; layer < num_layers; ++layer) x = forward(layer, x);
    Result result;
    at::Tensor d;
    const at::Tensor all_ids = ids(setting_) + shift_, right = targets(setting_),
                     aims = at::where(right < 0, right, right + shift_);
    const at::Tensor sums =
        phases_.chunk_losses(rows_, x, aims, kChunkTokens, kScale, &d, &result.losses);
    EXPECT_TRUE(at::equal(phases_.chunk_losses(rows_, x, aims, kChunkTokens), sums))
        << "without backward";
    result.loss = sums.sum(at::kDouble).item<double>();
    for (int layer = num_layers - 1; layer >= 0; --layer) d = backward(layer, d);
    result.d_x = rows_.gather(d);
    phases_.embed_backward(
        *phases_.own_ids({all_ids.const_data_ptr<int64_t>(), static_cast<size_t>(all_ids.numel())}),
        result.d_x);
    for (const Layer& l : layers_)
      if (l.left != nullptr) model_.add_left(*l.left);
    return result;
  }

 private:
  struct Layer {
    at::Tensor x, m, x_factors, m_factors, q, k, v, o;
    std::shared_ptr<Llama::PreAttention> projected;
    std::shared_ptr<Llama::PostAttention> inner;
    std::shared_ptr<Llama::LeftGradients> left;
  };

  static Stage stage(Communicator& group, const Setting& s) {
    Stage stage = whole_model(s.config);
    stage.tensor = {.size = group.size(), .index = group.rank()};
    return stage;
  }
  std::shared_ptr<Llama::LeftGradients>* left(Layer& l) const {
    return setting_.leaves ? &l.left : nullptr;
  }
  /// Rows of all tokens in the midst of a larger buffer, with the values of an earlier use.
  at::Tensor parts() const {
    const auto options = at::dtype(aten_type(setting_.config.dtype));
    return at::full({setting_.num_tokens + 2, setting_.config.hidden_size},
                    std::numeric_limits<double>::quiet_NaN(), options)
        .narrow(0, 1, setting_.num_tokens);
  }

  at::Tensor forward(int layer, const at::Tensor& x) {
    Layer& l = layers_[layer];
    l.x = x;
    at::Tensor h = rows_.gather(phases_.norm(layer, Branch::kAttention, x, &l.x_factors));
    const bool keeps = setting_.memory != Memory::kNothing;
    phases_.projections(layer, h, *rope_, &l.q, &l.k, &l.v, keeps ? &l.projected : nullptr);
    h.fill_(std::numeric_limits<double>::quiet_NaN());
    l.o = attention(l.q, l.k, l.v);
    const at::Tensor part = parts();
    phases_.out_projection(layer, l.o, part);
    l.m = x + rows_.sum(part);
    h = rows_.gather(phases_.norm(layer, Branch::kMlp, l.m, &l.m_factors));
    phases_.mlp(layer, h, setting_.memory == Memory::kProducts ? Keep::kProducts : Keep::kInputs,
                keeps ? &l.inner : nullptr, part);
    h.fill_(std::numeric_limits<double>::quiet_NaN());
    return l.m + rows_.sum(part);
  }

  at::Tensor backward(int layer, const at::Tensor& d_y) {
    Layer& l = layers_[layer];
    const int64_t width = setting_.config.hidden_size;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    // The gradients and what the MLP has read travel as one row each.
    const at::Tensor both =
        rows_.gather(at::cat({d_y, phases_.norm_again(layer, Branch::kMlp, l.m, l.m_factors)}, 1));
    const at::Tensor h = both.narrow(1, width, width), part = parts();
    if (l.inner == nullptr) l.inner = phases_.mlp_again(layer, h);
    phases_.mlp_backward(layer, *l.inner, both.narrow(1, 0, width), h, left(l), part);
    both.fill_(nan);
    const at::Tensor d_m =
        d_y + phases_.norm_backward(layer, Branch::kMlp, l.m, l.m_factors, rows_.sum(part));
    const at::Tensor gathered = rows_.gather(d_m);
    const at::Tensor d_o = phases_.out_projection_backward(layer, l.o, gathered, left(l));
    gathered.fill_(nan);
    const std::vector<at::Tensor> by = attention_backward(d_o, l.q, l.k);
    const at::Tensor read =
        rows_.gather(phases_.norm_again(layer, Branch::kAttention, l.x, l.x_factors));
    if (l.projected == nullptr) {
      at::Tensor q, k, v;
      phases_.projections(layer, read, *rope_, &q, &k, &v, &l.projected);
    }
    phases_.projections_backward(layer, *l.projected, *rope_, by[0], by[1], by[2], read, left(l),
                                 part);
    read.fill_(nan);
    return d_m +
           phases_.norm_backward(layer, Branch::kAttention, l.x, l.x_factors, rows_.sum(part));
  }

  const Setting& setting_;
  const Llama model_;
  const TensorPhases phases_;
  GatheredRows rows_;
  const std::shared_ptr<const Llama::Rope> rope_;
  std::vector<Layer> layers_;
  const int64_t shift_;
};

/// Adds up the ranks' gradients in rank order. As everywhere, that of a weight without any is zero.
void add_gradients(const Llama& model, Fault fault, std::vector<at::Tensor>& full) {
  full.resize(model.weights().size());
  for (size_t i = 0; i < full.size(); ++i) {
    const Weight& weight = model.weights()[i];
    if (!full[i].defined()) full[i] = at::zeros(weight.shape, at::dtype(wide(model.config())));
    const at::Tensor& gradient = model.parameters()[i].grad();
    if (!gradient.defined()) continue;
    const at::Tensor part = part_of(weight.box, full[i]);
    if (fault == Fault::kSharedLeftUnsummed) part.zero_();
    part.add_(gradient);
  }
}

Result divided(const Setting& s) {
  std::vector<std::unique_ptr<Rank>> ranks(s.num_ranks);
  std::vector<Result> results(s.num_ranks);
  const Llama whole(s.config, 7, -1);
  draw(whole);
  const CommOptions patient{.timeout_s = 300, .grace_s = 1};
  run_ranks(s.num_ranks, patient, [&](Communicator& group) {
    at::set_num_threads(1);
    ranks[group.rank()] = std::make_unique<Rank>(group, whole, s);
    results[group.rank()] = ranks[group.rank()]->play();
  });
  Result result = results[0];
  for (int rank = 0; rank < s.num_ranks; ++rank) {
    EXPECT_TRUE(at::equal(results[rank].losses, result.losses)) << "losses of rank " << rank;
    EXPECT_TRUE(results[rank].loss == result.loss || std::isnan(result.loss));
    add_gradients(ranks[rank]->model(), s.fault, result.gradients);
  }
  return result;
}

/// max|a-b| / max|b|, or, where b is zero, max|a-b| as a part of what it may be there.
double difference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  EXPECT_EQ(a.scalar_type(), b.scalar_type());
  if (b.abs().max().item<double>() > 0) return distance(a, b);
  return a.abs().max().item<double>() * 100;
}

/// The largest difference between two results, and where it is.
std::pair<double, std::string> worst(const Llama& model, const Result& got, const Result& want) {
  std::pair<double, std::string> largest = {
      std::abs(got.loss - want.loss) / std::max(std::abs(want.loss), 1e-2), "loss"};
  const auto see = [&](const at::Tensor& a, const at::Tensor& b, const std::string& what) {
    const double gap = difference(a, b);
    // NaN is the largest difference, and stays it.
    if (gap > largest.first || (std::isnan(gap) && !std::isnan(largest.first)))
      largest = {gap, what};
  };
  see(got.losses, want.losses, "losses");
  see(got.d_x, want.d_x, "d_x");
  for (size_t i = 0; i < want.gradients.size(); ++i)
    see(got.gradients[i], want.gradients[i], model.weights()[i].name);
  return largest;
}

struct Family {
  std::string name;
  ModelType type;
  bool is_tied;
};

LlamaConfig model_of(const Family& kind, int64_t kv_heads,
                     ScalarType dtype = ScalarType::kFloat64) {
  LlamaConfig config;
  config.model_type = kind.type;
  config.tie_word_embeddings = kind.is_tied;
  config.vocab_size = 61;
  config.hidden_size = 40;
  config.intermediate_size = 44;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 8;
  config.num_key_value_heads = kv_heads;
  config.head_dim = 8;
  config.initializer_range = 0.2;
  config.dtype = dtype;
  return config;
}

/// Each rank is a thread of its own, and ATen's further ones would only wait for each other.
class TensorPhasesTest : public ::testing::TestWithParam<Family> {
 protected:
  TensorPhasesTest() { at::set_num_threads(1); }
  ~TensorPhasesTest() override { at::set_num_threads(num_threads_); }

 private:
  const int num_threads_ = at::get_num_threads();
};

INSTANTIATE_TEST_SUITE_P(, TensorPhasesTest,
                         ::testing::Values(Family{"llama", ModelType::kLlama, false},
                                           Family{"llama_tied", ModelType::kLlama, true},
                                           Family{"qwen2", ModelType::kQwen2, false},
                                           Family{"qwen2_tied", ModelType::kQwen2, true},
                                           Family{"qwen3", ModelType::kQwen3, false},
                                           Family{"qwen3_tied", ModelType::kQwen3, true}),
                         [](const auto& info) { return info.param.name; });

TEST_P(TensorPhasesTest, ranks_compute_what_one_does) {
  int turn = 0;
  for (const int64_t kv_heads : {8, 4, 2}) {
    for (const int64_t num_tokens : {41, 7, 4, 2, 1}) {
      Setting s{.config = model_of(GetParam(), kv_heads), .num_tokens = num_tokens};
      const Llama names(s.config, 7, -1);
      const Result want = one_rank(s);
      const int first_turn = turn++;
      for (const int num_ranks : {1, 2, 4, 8}) {
        s.num_ranks = num_ranks;
        // Each of the others' values meets all six pairs of these.
        const int pair = first_turn + std::countr_zero(static_cast<unsigned>(num_ranks));
        s.leaves = pair % 2 == 1;
        s.memory = static_cast<Memory>(pair % 3);
        const auto [gap, what] = worst(names, divided(s), want);
        EXPECT_LE(gap, 1e-10) << what << " of " << num_ranks << " ranks, " << num_tokens
                              << " tokens, " << kv_heads << " key/value heads, leaves " << s.leaves
                              << ", memory " << static_cast<int>(s.memory);
      }
    }
  }
}

/// Along the longest chain a value is rounded about 50 times a layer, at random, and the largest of
/// 1e4 elements lies 4 standard deviations out (train/same_result.h). Sums over ranks add 4 of T
/// parts a layer, each of which is rounded by itself.
double format_bound(const Setting& s) {
  const double fp32 = 0x1p-24, u = s.config.dtype == ScalarType::kFloat32 ? fp32 : 0x1p-8;
  const double roundings = static_cast<double>(s.config.num_hidden_layers) *
                           (50.0 + 4.0 * static_cast<double>(s.num_ranks));
  return 4 * (std::sqrt(roundings) * u + std::sqrt(static_cast<double>(s.num_tokens)) * fp32);
}

TEST_P(TensorPhasesTest, other_formats_differ_by_their_roundings) {
  for (const ScalarType dtype : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    for (const int num_ranks : {2, 8}) {
      const Setting s{.config = model_of(GetParam(), 4, dtype),
                      .num_tokens = 41,
                      .num_ranks = num_ranks,
                      .leaves = num_ranks == 2};
      const auto [gap, what] = worst(Llama(s.config, 7, -1), divided(s), one_rank(s));
      EXPECT_LE(gap, format_bound(s)) << what << " of " << num_ranks << " ranks";
    }
  }
}

TEST_P(TensorPhasesTest, a_server_without_tokens_has_no_loss_and_no_gradient) {
  const Setting s{.config = model_of(GetParam(), 4), .num_tokens = 0, .num_ranks = 2};
  const Result result = divided(s);
  EXPECT_EQ(result.loss, 0);
  EXPECT_EQ(result.losses.sizes(), at::IntArrayRef({0}));
  EXPECT_EQ(result.d_x.sizes(), at::IntArrayRef({0, 40}));
  for (const at::Tensor& gradient : result.gradients)
    EXPECT_EQ(gradient.abs().max().item<double>(), 0);
}

TEST_P(TensorPhasesTest, two_runs_have_the_same_bits) {
  for (const ScalarType dtype : {ScalarType::kFloat64, ScalarType::kBFloat16}) {
    const Setting s{.config = model_of(GetParam(), 2, dtype), .num_tokens = 41, .num_ranks = 4};
    const Result first = divided(s), second = divided(s);
    EXPECT_EQ(first.loss, second.loss);
    EXPECT_TRUE(at::equal(first.d_x, second.d_x));
    for (size_t i = 0; i < first.gradients.size(); ++i)
      EXPECT_TRUE(at::equal(first.gradients[i], second.gradients[i])) << i;
  }
}

TEST_P(TensorPhasesTest, a_fault_is_a_difference) {
  for (const Fault fault :
       {Fault::kSharedLeftUnsummed, Fault::kTokensOffByOne, Fault::kPartAddedTwice}) {
    Setting s{.config = model_of(GetParam(), 2), .num_tokens = 41, .num_ranks = 4};
    const Result want = one_rank(s);
    s.fault = fault;
    const Result got = divided(s);
    const Llama names(s.config, 7, -1);
    EXPECT_FALSE(worst(names, got, want).first <= 1e-2) << static_cast<int>(fault);
    if (fault != Fault::kSharedLeftUnsummed) continue;
    Stage stage = whole_model(s.config);
    stage.tensor = {.size = s.num_ranks, .index = 0};
    const std::vector<Weight> weights = weight_table(s.config, stage);
    for (size_t i = 0; i < weights.size(); ++i)  // each of them by itself
      EXPECT_EQ(difference(got.gradients[i], want.gradients[i]) > 1e-2,
                weights[i].holders.size() > 1)
          << weights[i].name;
  }
}

}  // namespace
}  // namespace distca
