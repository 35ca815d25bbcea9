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

__extension__ using Wide = __int128;  // tokens times weights

/// Streams of one seed: the split must not follow the order of an epoch.
constexpr uint64_t kSplitStream = ~uint64_t{0};

std::vector<int64_t> all_indices(size_t count) {
  std::vector<int64_t> indices(count);
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
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
                         BatchOptions options, const std::vector<StreamSet>& sets)
    : lengths_(std::move(document_lengths)), options_(options) {
  DISTCA_CHECK(0 < options_.max_document_tokens &&
                   options_.max_document_tokens <= options_.nano_batch_tokens &&
                   options_.nano_batches > 0,
               "{} nano-batches of {} tokens, documents of {}", options_.nano_batches,
               options_.nano_batch_tokens, options_.max_document_tokens);
  std::ranges::sort(documents);
  DISTCA_CHECK(std::ranges::adjacent_find(documents) == documents.end(),
               "a document is listed twice");
  DISTCA_CHECK(!sets.empty() && sets[0].first_document == 0, "sets begin at document 0");
  auto begin = documents.begin();
  for (size_t i = 0; i < sets.size(); ++i) {
    const auto end = i + 1 == sets.size()
                         ? documents.end()
                         : std::lower_bound(begin, documents.end(), sets[i + 1].first_document);
    add_set(sets[i], i, {begin, end});
    begin = end;
  }
  DISTCA_THROW_IF(sets_.empty(), ErrorKind::kData,
                  "the data set has no tokens: nothing to train on");
  rewind();
}

void BatchStream::add_set(const StreamSet& from, uint64_t number,
                          std::span<const int64_t> documents) {
  DISTCA_CHECK(from.weight > 0, "weight {}", from.weight);
  Set set{.weight = from.weight, .number = number};
  for (const int64_t document : documents) {
    const int64_t length = lengths_.at(document);
    if (length == 0) continue;
    set.epoch_tokens += length;
    for (int64_t offset = 0; offset < length; offset += options_.max_document_tokens)
      set.pieces.push_back({document, offset});
  }
  if (set.epoch_tokens == 0) return;
  weights_ += set.weight;
  sets_.push_back(std::move(set));
}

bool BatchStream::is_within_first_epochs() const {
  for (int64_t i = 0; i < num_sets(); ++i) {
    const bool begun = sets_[i].position > 0 || (i == current_ && offset_ > 0);
    if (sets_[i].epoch > (begun ? 0 : 1)) return false;
  }
  return true;
}

Batch BatchStream::next() {
  Batch batch;
  for (int64_t i = 0; i < options_.nano_batches; ++i) batch.push_back(next_nano_batch());
  ++batch_index_;
  return batch;
}

void BatchStream::seek(int64_t index) {
  DISTCA_CHECK_GE(index, 0);
  rewind();
  // Cutting neither drops nor reorders tokens, so a batch begins at a known token of the endless
  // stream.
  int64_t before = index * options_.nano_batches * options_.nano_batch_tokens;
  if (num_sets() == 1) {
    Set& only = sets_[0];
    shuffle_epoch(only, before / only.epoch_tokens);
    only.taken = only.epoch * only.epoch_tokens;
    before -= only.taken;
  }
  for (;;) {
    const int64_t length = piece_length(sets_[current_].piece());
    if (before < length) break;
    before -= length;
    finish_piece();
  }
  offset_ = before;
  batch_index_ = index;
}

Json BatchStream::state() const {
  Json sets = Json::array();
  for (const Set& set : sets_)
    sets.push_back({{"epoch", set.epoch}, {"position", set.position}, {"taken", set.taken}});
  return {{"batch", batch_index_}, {"set", current_}, {"offset", offset_}, {"sets", sets}};
}

void BatchStream::restore(const JsonField& state) {
  const JsonField sets = state["sets"];
  sets.expect(sets.size() == sets_.size(), "as long as there are data sets");
  for (size_t i = 0; i < sets_.size(); ++i) {
    Set& set = sets_[i];
    shuffle_epoch(set, sets.at(i)["epoch"].integer(0));
    set.position = sets.at(i)["position"].integer(0, static_cast<int64_t>(set.pieces.size()) - 1);
    set.taken = sets.at(i)["taken"].integer(0);
  }
  current_ = state["set"].integer(0, num_sets() - 1);
  offset_ = state["offset"].integer(0, piece_length(sets_[current_].piece()) - 1);
  batch_index_ = state["batch"].integer(0);
}

NanoBatchSource BatchStream::next_nano_batch() {
  NanoBatchSource result;
  std::vector<int64_t> piece_lengths;
  int64_t room = options_.nano_batch_tokens;
  while (room > 0) {
    const Piece& piece = sets_[current_].piece();
    const int64_t left = piece_length(piece) - offset_;
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

int64_t BatchStream::piece_length(const Piece& piece) const {
  return std::min(lengths_[piece.document] - piece.offset, options_.max_document_tokens);
}

void BatchStream::rewind() {
  for (Set& set : sets_) {
    shuffle_epoch(set, 0);
    set.taken = 0;
  }
  batch_index_ = current_ = offset_ = 0;
}

int64_t BatchStream::furthest_behind() const {
  // In whole numbers, so that every machine chooses the same.
  Wide taken = 0;
  for (const Set& set : sets_) taken += set.taken;
  const auto behind = [&](const Set& set) {
    return set.weight * taken - Wide{set.taken} * weights_;
  };
  return std::ranges::max_element(sets_, {}, behind) - sets_.begin();  // the first of equals
}

void BatchStream::finish_piece() {
  Set& set = sets_[current_];
  set.taken += piece_length(set.piece());
  offset_ = 0;
  if (++set.position == static_cast<int64_t>(set.order.size())) shuffle_epoch(set, set.epoch + 1);
  if (num_sets() > 1) current_ = furthest_behind();
}

void BatchStream::shuffle_epoch(Set& set, int64_t epoch) const {
  set.epoch = epoch;
  set.position = 0;
  set.order = all_indices(set.pieces.size());
  // Sets of equally many pieces have orders of their own.
  const uint64_t stream = static_cast<uint64_t>(epoch) + (set.number << 40);
  Random(options_.seed, stream).shuffle(std::span(set.order));
}

DocumentSplit split_documents(std::span<const int64_t> lengths, double validation_fraction,
                              uint64_t seed) {
  DISTCA_CHECK(0 <= validation_fraction && validation_fraction < 1, "a fraction of {}",
               validation_fraction);
  std::vector<int64_t> order = all_indices(lengths.size());
  Random(seed, kSplitStream).shuffle(std::span(order));
  // Not of std::ranges: clang 14 with GCC 12's library does not know it.
  const auto end =
      std::stable_partition(order.begin(), order.end(), [&](int64_t i) { return lengths[i] > 0; });
  const std::span<const int64_t> full(order.begin(), end);  // documents with tokens
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  int64_t room = std::llround(static_cast<double>(tokens) * validation_fraction);

  std::vector<char> validates(lengths.size());
  size_t count = 0;
  for (const int64_t document : full) {
    if (validation_fraction == 0 || lengths[document] > room || count + 1 >= full.size()) continue;
    room -= lengths[document];
    validates[document] = 1;
    ++count;
  }
  if (validation_fraction > 0 && count == 0 && full.size() > 1)
    validates[*std::ranges::min_element(full, {}, [&](int64_t i) { return lengths[i]; })] = 1;

  DocumentSplit split;
  for (const int64_t document : all_indices(lengths.size()))
    (validates[document] ? split.validation : split.train).push_back(document);
  return split;
}

}  // namespace distca
