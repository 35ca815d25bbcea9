#pragma once
// Checks that a batch gives the same result on many workers as on one: the loss and every gradient.
//
//     const Config config = verify_config(load_config(file, overrides), ScalarType::kFloat64);
//     const Verification seen = verify(config, /*num_workers=*/2);
//     if (const std::string fault = fault_of(seen); !fault.empty()) ...
//
// Ranks are threads of the process, which holds the memory of all of them. The two steps run one
// after the other, and between them only the gradients of rank 0 are kept.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "distca/base/scalar_type.h"
#include "distca/config/config.h"
#include "distca/train/same_weights.h"

namespace distca {

/// How far something is from what it is on one worker.
struct Difference {
  std::string name;   // "loss", or the name of a weight, whose gradient it is
  double value = 0;   // max|a - b| / max|b|; absolute if `zero`
  double bound = 0;   // the most that `value` may be
  bool zero = false;  // on one worker, it is exactly zero
  /// Also where the value is NaN.
  bool beyond() const { return !(value <= bound); }
  /// How much of the bound is used; infinite for NaN.
  double share() const;
};

/// The results of a batch on many workers, compared with those on one.
struct Verification {
  int num_workers = 0;
  // The batch.
  int64_t nano_batches = 0, documents = 0, tokens = 0, targets = 0;
  bool redispatched = false;               // Q, K and V travelled again for backward
  std::string kernel;                      // AttentionKernel::name of the kernel
  double bound = 0;                        // bound of the number format (format_bound)
  double loss = 0, loss_of_one = 0;        // nats a target
  double seconds = 0, seconds_of_one = 0;  // that planning and the step took
  Difference loss_difference;
  std::vector<Difference> gradients;  // all weights' gradients, in the order of the model's table
  /// Workers whose summed gradients differ in any bit from those that they should equal, and who
  /// they are for people.
  OtherRanks other_ranks;
  OtherWeights others;
  /// The one that uses most of its bound.
  const Difference& worst_gradient() const;
};

/// Functions that the threads of the ranks call while the steps run.
struct VerifyHooks {
  /// Lets tests change the gradients on the many workers: called on each of them with the model's
  /// parameters, whose .grad are its own gradients before the sum, and everybody's after it.
  using Hook = std::function<void(int rank, const std::vector<at::Tensor>& parameters)>;
  Hook before_sum = {}, after_sum = {};
  /// Called by rank 0 after each operation of its step: which side it is, such as "2 workers", and
  /// which share of the operations is done.
  std::function<void(const std::string& side, double share)> progress = {};
};

/// The configuration of a run, as verify wants it: with `dtype` for model.dtype and with ranks that
/// are threads; it writes nothing, never clips gradients, sums them behind backward and lets every
/// worker update all weights. attention.kernel becomes auto if it
/// cannot compute `dtype`. Limits in bytes are scaled by the size of the type, so that plans stay
/// those of the run.
Config verify_config(Config config, ScalarType dtype);

/// Runs forward and backward of the run's first batch with the initial weights on `num_workers`
/// workers and the dedicated servers that the configuration asks for, then on one worker with
/// plan.scheduler = local and without overlap. `config` comes from verify_config and has passed
/// check_run. Throws Error(kTraining) if a result of the one worker is not finite, and whatever
/// planning throws.
Verification verify(const Config& config, int num_workers, const VerifyHooks& hooks = {});

/// One line that names what differs most, or empty: every difference is within its bound.
std::string fault_of(const Verification& verification);

}  // namespace distca
