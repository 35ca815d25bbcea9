#include "distca/forecast/checked_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/text.h"
#include "distca/batch/data_blend.h"
#include "distca/batch/tokenizer_files.h"
#include "distca/config/bad_tokens.h"
#include "distca/forecast/data_split.h"
#include "distca/kernels/cpu/attention.h"
#include "distca/kernels/kernel_choice.h"
#include "distca/plan/plan_batch_input.h"

namespace distca {

namespace fs = std::filesystem;

void check_kernel(const Config& config) {
  if (chosen_kernel(kernel_request(config)) != KernelChoice::kCpu) return;
  kernels::chosen_isa();  // refuses an instruction set that is not here
}

void check_prefix(const Config& config) {
  DISTCA_THROW_IF(config.data.prefix.empty(), ErrorKind::kConfig,
                  "data.prefix is not set: make a data set with `distca data prepare` and name it");
}

BatchStream checked_batches(const Config& config, const fs::path& lengths) {
  if (!lengths.empty()) {
    const std::vector<int64_t> documents = read_lengths(lengths);
    return {documents,
            split_documents(documents, config.data.validation_fraction, config.batch.seed).train,
            config.batch};
  }
  check_prefix(config);
  const DataBlend data(config.data.prefix);
  check_vocabulary(config, data);
  const DocumentSplit split = split_data(config, data);
  check_training_part(data, split);
  files_beside_weights(data);  // refuses what has no one tokenizer
  if (!config.model_from.empty()) check_tokenizer(data, config.model_from);
  return training_stream(config, data, split);
}

PlannedAhead check_dry_run(const Config& config, int num_workers, const fs::path& lengths) {
  check_kernel(config);
  const std::string& prefix = config.data.prefix;
  const auto is_there = [](const fs::path& file) { return fs::exists(file); };
  std::string missing;  // the first data set that is not there
  for (const BlendPart& part : parse_blend(prefix)) {
    if (missing.empty() && std::ranges::none_of(data_set_files(part.prefix), is_there))
      missing = part.prefix;
  }
  if (lengths.empty() && (prefix.empty() || !missing.empty())) {
    const int64_t tokens = config.batch.max_document_tokens;
    const Batch batch = BatchStream({tokens}, config.batch).next();
    return {.plans = {plan_nano_batches(config, batch, num_workers)},
            .words = fmt::format(
                "a batch of documents of {} tokens (batch.max_document_tokens), as {}",
                with_thousands(tokens),
                prefix.empty() ? "data.prefix is not set" : "there is no data set " + missing),
            .first = batch};
  }
  constexpr size_t kMostBatches = 8;
  BatchStream batches = checked_batches(config, lengths);
  PlannedAhead ahead{.first = BatchStream(batches).next()};
  ahead.plans.push_back(check_batches_fit(config, batches, num_workers, kLookAhead));
  const size_t most = std::min(kMostBatches, static_cast<size_t>(config.train.steps));
  const Stopwatch watch;
  for (batches.seek(1); ahead.plans.size() < most && watch.seconds() < kLookAhead;)
    ahead.plans.push_back(plan_later_batch(config, batches.next(), num_workers));
  const std::string name = lengths.empty() ? prefix : lengths.string();
  ahead.words = ahead.plans.size() == 1
                    ? "the first batch of " + name
                    : fmt::format("the first {} batches of {}", ahead.plans.size(), name);
  return ahead;
}

}  // namespace distca
