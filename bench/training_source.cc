#include "bench/training_source.h"

#include <fmt/format.h>

#include <cstdlib>

#include "distca/base/error.h"
#include "distca/base/text.h"
#include "distca/batch/batch_stream.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/plan/plan_batch_input.h"
#include "distca/plan/sample_workloads.h"

namespace distca::bench {

BatchSource real_source(const std::filesystem::path& prefix, const BatchShape& shape, int count,
                        uint64_t seed) {
  const std::string index = prefix.string() + ".idx";
  if (!std::filesystem::exists(index)) {
    throw Error(ErrorKind::kData,
                "{} does not exist: `make demo` or `distca data prepare` makes it; or name another "
                "data set with --data",
                index);
  }
  const int64_t longest = shape.nano_batch_tokens * 3 / 4;
  BatchStream stream(IndexedDataset(prefix).document_lengths(),
                     {.nano_batch_tokens = shape.nano_batch_tokens,
                      .nano_batches = shape.nano_batches,
                      .max_document_tokens = longest,
                      .seed = seed});
  BatchSource source{.name = "real",
                     .what = fmt::format("document lengths of {}, cut at {} tokens",
                                         prefix.string(), with_thousands(longest))};
  for (int i = 0; i < count; ++i) {
    BatchLengths& batch = source.batches.emplace_back();
    for (const NanoBatchSource& nano_batch : stream.next()) {
      std::vector<int64_t>& lengths = batch.emplace_back();
      for (const Document& document : nano_batch.nano_batch.documents)
        lengths.push_back(document.length);
    }
  }
  return source;
}

BatchSource long_tailed_source(const std::filesystem::path& folder, const BatchShape& shape,
                               int count, uint64_t seed) {
  const int64_t longest = shape.nano_batch_tokens / 2;
  const std::vector<NanoBatch> nano_batches =
      sample_workloads(read_lengths(folder / "lengths_pretrain.json"),
                       {.kind = SampleKind::kPretrain,
                        .count = count * static_cast<int>(shape.nano_batches),
                        .ranks = shape.workers,
                        .tokens_per_rank = shape.nano_batch_tokens / shape.workers,
                        .max_document_tokens = longest,
                        .seed = seed});
  BatchSource source{
      .name = "long-tailed",
      .what = fmt::format("lengths of lengths_pretrain.json, scaled to at most {} tokens",
                          with_thousands(longest)),
      .batches = std::vector<BatchLengths>(count)};
  for (size_t i = 0; i < nano_batches.size(); ++i) {
    std::vector<int64_t>& lengths =
        source.batches[i / static_cast<size_t>(shape.nano_batches)].emplace_back();
    for (const Document& document : nano_batches[i].documents) lengths.push_back(document.length);
  }
  return source;
}

BatchLengths equal_documents(const BatchShape& shape, int64_t pairs) {
  BatchLengths best;
  for (int64_t each = 1; each <= shape.nano_batch_tokens / shape.workers; ++each) {
    const int64_t documents = each * shape.workers;
    if (shape.nano_batch_tokens % documents != 0) continue;
    const BatchLengths batch(shape.nano_batches,
                             std::vector<int64_t>(documents, shape.nano_batch_tokens / documents));
    if (best.empty() || std::abs(num_pairs(batch) - pairs) < std::abs(num_pairs(best) - pairs))
      best = batch;
  }
  return best;
}

BatchLengths typical_equal_documents(const BatchShape& shape, const BatchSource& source) {
  int64_t pairs = 0;
  for (const BatchLengths& batch : source.batches) pairs += num_pairs(batch);
  return equal_documents(shape, pairs / static_cast<int64_t>(source.batches.size()));
}

}  // namespace distca::bench
