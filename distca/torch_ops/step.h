#pragma once
// A Step is what the layers of one forward of a model share: what the ranks agreed on. A Call is
// the attention of one layer, from its dispatch to the end of its backward. Both belong to one
// forward, and to nothing that lives longer.
//
// Include <ATen/ATen.h> before this header. Any thread may call the methods: they lock the mutex of
// the ranks.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "distca/torch_ops/agreement.h"
#include "distca/torch_ops/ranks.h"

namespace distca::torch_ops {

/// The attention of one layer in one forward. On a device, its methods give work to the calling
/// thread's current stream, and those that follow each other on several streams do so in order. T,
/// H, G, D, E: as in api/core_attention.h.
class Call {
 public:
  Call(std::shared_ptr<Ranks> ranks, std::shared_ptr<api::CoreAttention> attention, int cuda_device,
       api::Forward forward)
      : ranks_(std::move(ranks)),
        attention_(std::move(attention)),
        cuda_device_(cuda_device),
        forward_(std::move(forward)) {}
  ~Call();

  /// Computes this rank's tasks of forward and sends O. A second call does nothing.
  void compute();
  /// Returns O [T, H, E], and frees Q, K and V. A second call returns the same.
  at::Tensor wait();
  /// Returns a copy of the log-sum-exp [H, T], in fp32 (fp64 for fp64), once O has been waited for.
  at::Tensor lse();

  /// Sends dO [T, H, E]. q, k and v are those of the forward, or the same values computed again.
  /// Throws Error(kUsage) if somebody has written to O meanwhile.
  void begin_backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v);
  void compute_backward();
  /// Returns dQ, dK and dV. `last`: the graph is freed, so O and what was received are freed, too.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> end_backward(bool last);

  /// Returns true if its backward has ended.
  bool is_over() const { return over_; }

 private:
  const std::shared_ptr<Ranks> ranks_;  // first: it outlives the handles
  const std::shared_ptr<api::CoreAttention> attention_;
  const int cuda_device_;                // -1 is the CPU.
  std::optional<api::Forward> forward_;  // none once freed
  std::optional<api::Backward> backward_;
  bool over_ = false;
  std::optional<uint32_t> o_version_;  // none until O is waited for
};

class Step {
 public:
  Step(std::shared_ptr<Ranks> ranks, Agreement agreed)
      : ranks_(std::move(ranks)), agreed_(std::move(agreed)) {}

  /// Sends Q [T, H, D], K [T, G, D] and V [T, G, E] of a layer on their way. All ranks call it in
  /// the same order. A layer of a kind that is new to the step is planned, and the plans of all
  /// ranks are compared. `layer` is any number that the forward gives one layer alone, or -1.
  std::shared_ptr<Call> start(int64_t layer, const LayerKind& kind, const at::Tensor& q,
                              const at::Tensor& k, const at::Tensor& v);
  /// The call of that layer, if somebody may still want it; else null.
  std::shared_ptr<Call> call(int64_t layer) const;

 private:
  const std::shared_ptr<Ranks> ranks_;
  Agreement agreed_;
  const std::shared_ptr<LayerKinds> kinds_ = std::make_shared<LayerKinds>();  // its layers' kinds
  std::map<int64_t, std::weak_ptr<Call>> calls_;
};

}  // namespace distca::torch_ops
