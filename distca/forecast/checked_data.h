#pragma once
// The batches of a run that is checked, and the plans of its first ones. It needs no PyTorch. Any
// thread may call the functions.

#include <filesystem>
#include <string>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/config/config.h"
#include "distca/forecast/plan_request.h"

namespace distca {

/// Throws Error(kConfig) if data.prefix is not set.
void check_prefix(const Config& config);
/// Throws Error(kUsage) if the attention kernel that the run has wants an instruction set that is
/// not here.
void check_kernel(const Config& config);

/// Seconds for which batches are planned ahead, to see whether their plans fit.
inline constexpr double kLookAhead = 2;

/// The batches that a run trains on, of data that it checks. Throws Error(kConfig) if data.prefix
/// is not set, and Error(kData). To be planned only, documents need no more than their lengths:
/// `lengths`, a JSON list of tokens, then counts in place of data.prefix.
BatchStream checked_batches(const Config& config, const std::filesystem::path& lengths = {});

/// Batches by whose plans a run's memory is predicted.
struct PlannedAhead {
  std::vector<BatchPlans> plans;  // [batches] at least one
  std::string words;              // their name, such as "the first 8 batches of data/stdlib"
  Batch first;                    // the batch of the first plans
};

/// Checks a run that is only to be looked at (forecast/dry_run.h), and plans its first batches.
/// Data are read if `lengths` is given or data.prefix names what is there; otherwise all documents
/// are taken to have batch.max_document_tokens tokens. No run is refused for its memory or for a
/// GPU that is not here, and train.trace is not tried, since that writes.
PlannedAhead check_dry_run(const Config& config, int num_workers,
                           const std::filesystem::path& lengths);

}  // namespace distca
