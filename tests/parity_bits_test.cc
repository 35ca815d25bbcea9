// Results of a step that have the same bits (DESIGN rule 2): core attention's outputs on recorded
// Q, K, V under every schedule, plan and choice of servers; a layout's loss; a step with kept keys
// and with redispatched ones; a step that is repeated. And the exchange's gradients against finite
// differences.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "distca/base/random.h"
#include "distca/comm/aten_types.h"
#include "distca/config/config.h"
#include "distca/runtime/step_attention_testing.h"
#include "tests/parity_testing.h"

namespace distca::parity {
namespace {

constexpr int64_t kKvHeads = 2;  // heads of K and V, for 4 query heads

/// Q, K, V, dO of documents, or O, dQ, dK, dV: [nano-batch][document], [length, heads, dim].
using PerDocument = std::vector<std::vector<at::Tensor>>;
using Recorded = std::array<PerDocument, 4>;

/// Rows of a worker's segments in order, and back.
at::Tensor rows_of(const std::vector<at::Tensor>& documents, const std::vector<Segment>& segments,
                   const at::Tensor& none) {
  std::vector<at::Tensor> rows = {none};  // a worker may hold nothing
  for (const auto& [document, tokens] : segments)
    rows.push_back(documents[document].narrow(0, tokens.begin, tokens.size()));
  return at::cat(rows);
}
void put_rows(const at::Tensor& local, const std::vector<Segment>& segments,
              std::vector<at::Tensor>& documents) {
  int64_t row = 0;
  for (const auto& [document, tokens] : segments) {
    documents[document]
        .narrow(0, tokens.begin, tokens.size())
        .copy_(local.narrow(0, row, tokens.size()));
    row += tokens.size();
  }
}

/// Core attention of one layer of several nano-batches, on ranks as threads.
class Attention {
 public:
  Attention(const LlamaConfig& model, std::vector<Plan> plans, const Play& play)
      : model_(model), plans_(std::move(plans)), play_(play) {}

  /// Random inputs, which are the same for every plan of the same documents.
  Recorded inputs() const {
    Recorded in;
    const std::array<int64_t, 4> heads = heads_of_inputs();
    uint64_t seed = 0;
    for (const Plan& plan : plans_) {
      for (size_t i = 0; i < in.size(); ++i) {
        std::vector<at::Tensor>& documents = in[i].emplace_back();
        for (const Document& document : plan.nano_batch.documents) {
          at::Generator generator = at::detail::createCPUGenerator(++seed);
          documents.push_back(
              at::randn({document.length, heads[i], model_.head_dim}, generator, at::kDouble)
                  .to(aten_type(model_.dtype)));
        }
      }
    }
    return in;
  }

  /// O, dQ, dK, dV.
  Recorded play(const Recorded& in, KernelChoice kernel) const {
    Recorded out;  // with the shapes of dO, Q, K, V
    for (size_t i = 0; i < out.size(); ++i) {
      for (const std::vector<at::Tensor>& documents : in[(i + 3) % 4]) {
        out[i].emplace_back();
        for (const at::Tensor& document : documents)
          out[i].back().push_back(at::full_like(document, NAN));
      }
    }
    std::vector<PlanIndex> indices(plans_.begin(), plans_.end());
    run_ranks(plans_[0].cluster.num_servers(), {}, [&](Communicator& comm) {
      at::set_num_threads(1);
      play_rank(in, kernel, indices, comm, &out);
    });
    return out;
  }

 private:
  std::array<int64_t, 4> heads_of_inputs() const {
    return {model_.num_attention_heads, model_.num_key_value_heads, model_.num_key_value_heads,
            model_.num_attention_heads};
  }

  const std::vector<Segment>& segments(size_t nano_batch, int rank) const {
    static const std::vector<Segment> none;
    const Layout& layout = plans_[nano_batch].layout;
    return rank < layout.num_workers() ? layout.workers[rank] : none;
  }

  void play_rank(const Recorded& in, KernelChoice choice, const std::vector<PlanIndex>& indices,
                 Communicator& comm, Recorded* out) const {
    const int rank = comm.rank();
    const bool holds_weights = rank < plans_[0].cluster.num_workers;
    const std::array<int64_t, 4> heads = heads_of_inputs();
    std::vector<RankExchange> exchanges;
    testing::AttentionLayers layers;
    for (size_t n = 0; n < plans_.size(); ++n) {
      exchanges.push_back(indices[n].exchange(rank));
      testing::AttentionLayer& layer = layers.emplace_back(1)[0];
      if (!holds_weights) continue;
      const std::array<at::Tensor*, 4> inputs = {&layer.q, &layer.k, &layer.v, &layer.d_o};
      for (size_t i = 0; i < in.size(); ++i) {
        *inputs[i] = rows_of(in[i][n], segments(n, rank),
                             at::empty({0, heads[i], model_.head_dim}, aten_type(model_.dtype)));
      }
    }
    AttentionKernel kernel(
        {.choice = choice, .shape = model_.attention_shape(), .type = model_.dtype});
    ExchangeBuffers buffers(-1);
    testing::play_attention(exchanges,
                            {.overlap = play_.overlap, .redispatched = play_.redispatched}, kernel,
                            comm, buffers, layers, holds_weights);
    for (size_t n = 0; n < plans_.size() && holds_weights; ++n) {
      const testing::AttentionLayer& layer = layers[n][0];
      const std::array<at::Tensor, 4> outputs = {layer.o, layer.dq, layer.dk, layer.dv};
      for (size_t i = 0; i < outputs.size(); ++i)
        put_rows(outputs[i], segments(n, rank), (*out)[i][n]);
    }
  }

  LlamaConfig model_;
  std::vector<Plan> plans_;
  Play play_;
};

const Documents kMixed = both_ways("mixed", {700, 300, 129});

std::vector<Plan> plans_by(const std::string& planner_name, const LlamaConfig& model, int workers,
                           const Servers& servers, const Documents& documents = kMixed) {
  std::vector<Plan> plans;
  for (const std::vector<int64_t>& lengths : documents.nano_batches)
    plans.push_back(plan_by(planner(planner_name), model, lengths, workers, servers));
  return plans;
}

Recorded recorded(const LlamaConfig& model, const std::string& planner, int workers,
                  const Play& play) {
  const Attention attention(model, plans_by(planner, model, workers, play.servers), play);
  return attention.play(attention.inputs(), KernelChoice::kCpu);
}

constexpr std::array<const char*, 4> kOutputs = {"O", "dQ", "dK", "dV"};

/// The first `count` of O, dQ, dK, dV.
void expect_same_outputs(const Recorded& got, const Recorded& want, size_t count,
                         const std::string& what) {
  for (size_t i = 0; i < count; ++i) {
    for (size_t n = 0; n < want[i].size(); ++n) {
      for (size_t d = 0; d < want[i][n].size(); ++d) {
        EXPECT_TRUE(at::equal(got[i][n][d], want[i][n][d]))
            << what << ": " << kOutputs[i] << " of document " << d << " of nano-batch " << n;
      }
    }
  }
}

constexpr std::array<ScalarType, 2> kFormats = {ScalarType::kFloat32, ScalarType::kBFloat16};

TEST(parity_bits, o_of_recorded_q_k_v_is_the_same_under_every_schedule_plan_and_choice_of_servers) {
  for (const ScalarType dtype : kFormats) {
    const LlamaConfig model = small_llama(kKvHeads, dtype);
    const Recorded one = recorded(model, "local", 1, {});
    for (const Planner& planner : planners()) {
      if (planner.split_kv || planner.cut_tasks) continue;  // merges round
      for (const Play& play : plays()) {
        expect_same_outputs(recorded(model, planner.name, 3, play), one, 1,
                            planner.name + ", " + name_of(play));
      }
    }
  }
}

TEST(parity_bits, o_of_split_kv_is_the_same_under_every_schedule) {
  for (const ScalarType dtype : kFormats) {
    const LlamaConfig model = small_llama(kKvHeads, dtype);
    for (const char* planner : {"balanced_keys", "greedy_cut"}) {
      for (const Servers& who : servers()) {
        const Recorded none = recorded(model, planner, 3, {.servers = who});
        for (const Play& play : plays()) {
          if (std::string(play.servers.name) != who.name) continue;
          expect_same_outputs(recorded(model, planner, 3, play), none, 1,
                              std::string(planner) + ", " + name_of(play));
        }
      }
    }
  }
}

TEST(parity_bits, gradients_of_kept_keys_are_those_of_resent_keys) {
  for (const ScalarType dtype : kFormats) {
    const LlamaConfig model = small_llama(kKvHeads, dtype);
    for (const char* planner : {"greedy", "balanced_keys", "greedy_cut"}) {
      for (Play play : plays()) {
        if (play.redispatched) continue;
        const Recorded kept = recorded(model, planner, 3, play);
        play.redispatched = true;
        expect_same_outputs(recorded(model, planner, 3, play), kept, 4,
                            std::string(planner) + ", " + name_of(play));
      }
    }
  }
}

StepRun step_of(ScalarType dtype, const char* planner, const Play& play) {
  return {.model = small_llama(kKvHeads, dtype),
          .documents = kMixed,
          .workers = 3,
          .planner = planner,
          .play = play,
          .options = {.kernel = {.choice = KernelChoice::kCpu}}};
}

TEST(parity_bits, a_steps_kept_keys_give_the_bits_of_resent_ones_for_more_bytes) {
  for (const ScalarType dtype : kFormats) {
    for (const char* planner : {"greedy", "greedy_cut"}) {
      for (Play play : plays()) {
        if (play.redispatched) continue;
        const Outcome kept = run(step_of(dtype, planner, play));
        play.redispatched = true;
        const Outcome redispatched = run(step_of(dtype, planner, play));
        expect_same_bits(redispatched, kept, std::string(planner) + ", " + name_of(play));
        EXPECT_GT(redispatched.bytes_sent, kept.bytes_sent) << planner << ", " << name_of(play);
      }
    }
  }
}

TEST(parity_bits, a_step_is_reproducible_under_every_schedule) {
  for (const Play& play : plays()) {
    const StepRun step = step_of(ScalarType::kFloat32, "greedy_cut", play);
    expect_same_bits(run(step), run(step), name_of(play));
  }
}

// The layout decides how many rows a matrix product has, and with the bits of Q, K, V those of O.
TEST(parity_bits, the_loss_of_a_layout_is_the_same_under_every_schedule_and_choice_of_servers) {
  for (const ScalarType dtype : kFormats) {
    StepRun step = step_of(dtype, "greedy", {});
    step.evaluate = true;
    const double loss = run(step).loss;
    EXPECT_GT(loss, 0);
    for (const Play& play : plays()) {
      step.play = play;
      EXPECT_EQ(run(step).loss, loss) << name_of(play);
    }
  }
}

TEST(parity_bits, schedules_differ_in_the_rounding_of_gradients_alone) {
  for (const ScalarType dtype : kFormats) {
    for (const char* planner : {"greedy", "greedy_cut"}) {
      for (const Servers& who : servers()) {
        const Outcome none = run(step_of(dtype, planner, {.servers = who}));
        for (const Overlap overlap : {Overlap::kWithin, Overlap::kPingPong}) {
          const Play play{.overlap = overlap, .servers = who};
          const Outcome other = run(step_of(dtype, planner, play));
          EXPECT_EQ(other.loss, none.loss) << planner << ", " << name_of(play);
          EXPECT_EQ(other.bytes_sent, none.bytes_sent) << planner << ", " << name_of(play);
          expect_same(other, none, format_bound(dtype), 0, name_of(play));
        }
      }
    }
  }
}

/// sum(dO * O): a loss whose gradient of O is dO.
double loss_of(const Recorded& in, const Recorded& out) {
  double loss = 0;
  for (size_t n = 0; n < in[3].size(); ++n) {
    for (size_t d = 0; d < in[3][n].size(); ++d) {
      loss += (in[3][n][d] * out[0][n][d]).sum().item<double>();
    }
  }
  return loss;
}

TEST(parity, the_exchanges_gradients_are_those_of_finite_differences) {
  const LlamaConfig model = small_llama(kKvHeads, ScalarType::kFloat64);
  Random random(5);
  for (size_t trial = 0; trial < plays().size(); ++trial) {
    const Play& play = plays()[trial];
    const Attention attention(model,
                              plans_by(trial % 2 == 0 ? "greedy_cut" : "greedy", model, 3,
                                       play.servers, both_ways("two", {300, 140})),
                              play);
    Recorded in = attention.inputs();
    const size_t which = trial % 3, nano_batch = trial / 3 % 2, document = random.below(2);
    const at::Tensor probed = in[which][nano_batch][document].view({-1});
    const auto element = static_cast<int64_t>(random.below(probed.numel()));
    const Recorded out = attention.play(in, KernelChoice::kAuto);
    const double analytic = out[which + 1][nano_batch][document].view({-1})[element].item<double>();
    const double loss = loss_of(in, out), step = 1e-5;
    const auto moved = [&](double by) {
      probed[element] += by;
      const double result = loss_of(in, attention.play(in, KernelChoice::kAuto));
      probed[element] -= by;
      return result;
    };
    const double numeric = (moved(step) - moved(-step)) / (2 * step);
    // Central differences: the loss is rounded to about 2^-53 a few times over, then divided by the
    // step; the third derivative, of order 1 for a single element, is multiplied by step^2.
    const double bound = 16 * 0x1p-53 * std::max(1.0, std::abs(loss)) / step + step * step;
    EXPECT_NEAR(analytic, numeric, bound)
        << kOutputs[which + 1] << " of document " << document << ", " << name_of(play);
  }
}

}  // namespace
}  // namespace distca::parity
