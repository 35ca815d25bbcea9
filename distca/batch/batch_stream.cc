#include "distca/batch/batch_stream.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/random.h"

namespace distca {
namespace {

/// Streams of one seed: the split must not follow the order of an epoch.
constexpr uint64_t kSplitStream = ~uint64_t{0};

std::vector<int64_t> all_indices(size_t count) {
  std::vector<int64_t> indices(count);
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

void check_options(const BatchOptions& options) {
  const auto refuse = [](const char* name, int64_t value, const char* expected) {
    throw Error(ErrorKind::kConfig, "batch.{} = {}: expected {}", name, value, expected);
  };
  if (options.nano_batch_tokens <= 0)
    refuse("nano_batch_tokens", options.nano_batch_tokens, "at least 1");
  if (options.nano_batches <= 0) refuse("nano_batches", options.nano_batches, "at least 1");
  if (options.max_document_tokens <= 0 || options.max_document_tokens > options.nano_batch_tokens) {
    throw Error(ErrorKind::kConfig,
                "batch.max_document_tokens = {}: expected 1 to nano_batch_tokens, {}",
                options.max_document_tokens, options.nano_batch_tokens);
  }
}

}  // namespace

int64_t NanoBatchSource::num_targets() const {
  int64_t targets = 0;
  for (const DocumentSource& source : sources) targets += source.num_targets;
  return targets;
}

BatchStream::BatchStream(std::vector<int64_t> document_lengths, BatchOptions options)
    : BatchStream(document_lengths, all_indices(document_lengths.size()), options) {}

BatchStream::BatchStream(std::vector<int64_t> document_lengths, std::vector<int64_t> documents,
                         BatchOptions options)
    : lengths_(std::move(document_lengths)), documents_(std::move(documents)), options_(options) {
  check_options(options_);
  std::erase_if(documents_, [&](int64_t document) { return lengths_.at(document) == 0; });
  std::ranges::sort(documents_);
  DISTCA_CHECK(std::ranges::adjacent_find(documents_) == documents_.end(),
               "a document is listed twice");
  for (int64_t document : documents_) {
    epoch_tokens_ += lengths_[document];
    for (int64_t offset = 0; offset < lengths_[document]; offset += options_.max_document_tokens) {
      pieces_.push_back({document, offset});
    }
  }
  if (epoch_tokens_ == 0)
    throw Error(ErrorKind::kData, "the data set has no tokens: nothing to train on");
  shuffle_epoch(0);
}

int64_t BatchStream::epoch_targets() const {
  return epoch_tokens_ - static_cast<int64_t>(documents_.size());
}

Batch BatchStream::next() {
  Batch batch;
  for (int64_t i = 0; i < options_.nano_batches; ++i) batch.push_back(next_nano_batch());
  ++batch_index_;
  return batch;
}

void BatchStream::seek(int64_t index) {
  DISTCA_CHECK_GE(index, 0);
  // Cutting neither drops nor reorders tokens, so a batch begins at a known token of the endless
  // stream.
  const int64_t token = index * options_.nano_batches * options_.nano_batch_tokens;
  shuffle_epoch(token / epoch_tokens_);
  offset_ = token % epoch_tokens_;
  while (offset_ >= piece_length(order_[position_])) offset_ -= piece_length(order_[position_++]);
  batch_index_ = index;
}

NanoBatchSource BatchStream::next_nano_batch() {
  NanoBatchSource result;
  std::vector<int64_t> piece_lengths;
  int64_t room = options_.nano_batch_tokens;
  while (room > 0) {
    const Piece& piece = pieces_[order_[position_]];
    const int64_t left = piece_length(order_[position_]) - offset_;
    const int64_t length = std::min(left, room);
    const int64_t offset = piece.offset + offset_;
    const bool ends = offset + length == lengths_[piece.document];
    piece_lengths.push_back(length);
    result.sources.push_back({piece.document, offset, ends ? length - 1 : length});
    room -= length;
    offset_ += length;
    if (length == left) finish_piece();
  }
  result.nano_batch = NanoBatch::from_lengths(piece_lengths);
  return result;
}

int64_t BatchStream::piece_length(int64_t piece) const {
  const auto& [document, offset] = pieces_[piece];
  return std::min(lengths_[document] - offset, options_.max_document_tokens);
}

void BatchStream::finish_piece() {
  offset_ = 0;
  if (++position_ == static_cast<int64_t>(order_.size())) shuffle_epoch(epoch_ + 1);
}

void BatchStream::shuffle_epoch(int64_t epoch) {
  epoch_ = epoch;
  position_ = 0;
  offset_ = 0;
  order_ = all_indices(pieces_.size());
  Random(options_.seed, static_cast<uint64_t>(epoch)).shuffle(std::span(order_));
}

DocumentSplit split_documents(int64_t num_documents, double validation_fraction, uint64_t seed) {
  if (!(validation_fraction >= 0 && validation_fraction < 1)) {
    throw Error(ErrorKind::kConfig, "validation fraction {}: expected at least 0 and below 1",
                validation_fraction);
  }
  int64_t validation = std::llround(static_cast<double>(num_documents) * validation_fraction);
  if (validation_fraction > 0) validation = std::max<int64_t>(validation, 1);
  validation = std::clamp<int64_t>(validation, 0, std::max<int64_t>(num_documents - 1, 0));

  std::vector<int64_t> order = all_indices(static_cast<size_t>(num_documents));
  Random(seed, kSplitStream).shuffle(std::span(order));
  DocumentSplit split;
  split.validation.assign(order.begin(), order.begin() + validation);
  split.train.assign(order.begin() + validation, order.end());
  std::ranges::sort(split.validation);
  std::ranges::sort(split.train);
  return split;
}

}  // namespace distca
