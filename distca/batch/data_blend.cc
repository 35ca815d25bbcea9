#include "distca/batch/data_blend.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>
#include <sstream>
#include <system_error>

#include "distca/base/error.h"
#include "distca/base/text.h"

namespace distca {
namespace {

constexpr double kUnits = 1e9;  // units in a weight of 1

int64_t weight_of(const std::string& text, const std::string& word) {
  const std::optional<double> weight = to_number<double>(word);
  DISTCA_THROW_IF(!weight, ErrorKind::kConfig,
                  "data.prefix = \"{}\": \"{}\" stands where a weight is expected; several data "
                  "sets are WEIGHT PREFIX WEIGHT PREFIX, such as \"0.7 data/a 0.3 data/b\"",
                  text, word);
  DISTCA_THROW_IF(!(*weight >= 1 / kUnits && *weight <= kUnits), ErrorKind::kConfig,
                  "data.prefix = \"{}\": weight {}: expected 1e-9 to 1e9", text, word);
  return std::llround(*weight * kUnits);
}

bool is_there(const std::string& prefix) {
  std::error_code ignored;
  return std::ranges::any_of(data_set_files(prefix), [&](const std::filesystem::path& file) {
    return std::filesystem::exists(file, ignored);
  });
}

std::string held(const IndexedDataset& data) {
  return fmt::format("{} documents, {} tokens, contents {:016x}",
                     with_thousands(data.num_documents()), with_thousands(data.num_tokens()),
                     data.fingerprint());
}

}  // namespace

std::vector<BlendPart> parse_blend(const std::string& text) {
  if (text.find_first_of(" \t") == std::string::npos || is_there(text)) return {{.prefix = text}};
  std::vector<BlendPart> parts;
  std::istringstream words(text);
  for (std::string weight, prefix; words >> weight;) {
    const int64_t units = weight_of(text, weight);
    DISTCA_THROW_IF(!(words >> prefix), ErrorKind::kConfig,
                    "data.prefix = \"{}\": no data set after the weight {}", text, weight);
    DISTCA_THROW_IF(std::ranges::count(parts, prefix, &BlendPart::prefix) > 0, ErrorKind::kConfig,
                    "data.prefix = \"{}\": {} is named twice; give it one weight", text, prefix);
    parts.push_back({.prefix = prefix, .weight = units});
  }
  DISTCA_THROW_IF(parts.empty(), ErrorKind::kConfig, "data.prefix = \"{}\": names no data set",
                  text);
  int64_t divisor = 0;
  for (const BlendPart& part : parts) divisor = std::gcd(divisor, part.weight);
  for (BlendPart& part : parts) part.weight /= divisor;
  return parts;
}

DataBlend::DataBlend(const std::string& text) : parts_(parse_blend(text)) {
  for (const BlendPart& part : parts_) {
    data_.push_back(std::make_unique<const IndexedDataset>(part.prefix));
    sets_.push_back({.first_document = num_documents(), .weight = part.weight});
    const std::vector<int64_t>& lengths = data_.back()->document_lengths();
    lengths_.insert(lengths_.end(), lengths.begin(), lengths.end());
  }
}

Range DataBlend::documents_of(int64_t index) const {
  const int64_t first = sets_[index].first_document;
  return {first, first + set(index).num_documents()};
}

DocumentSplit DataBlend::split(double validation_fraction, uint64_t seed) const {
  DocumentSplit split;
  for (int64_t i = 0; i < num_sets(); ++i) {
    const int64_t first = sets_[i].first_document;
    const DocumentSplit own = split_documents(set(i).document_lengths(), validation_fraction, seed);
    for (const int64_t document : own.train) split.train.push_back(first + document);
    for (const int64_t document : own.validation) split.validation.push_back(first + document);
  }
  return split;
}

int64_t DataBlend::set_of(int64_t document) const {
  // A set without documents begins where the next one does: the last that begins there has some.
  const auto after = std::ranges::upper_bound(sets_, document, {}, &StreamSet::first_document);
  return after - sets_.begin() - 1;
}

std::optional<BadToken> DataBlend::read(int64_t document, int64_t offset, std::span<int32_t> out,
                                        int64_t vocab_size) const {
  const int64_t index = set_of(document);
  return set(index).read(document - sets_[index].first_document, offset, out, vocab_size);
}

std::string DataBlend::summary() const {
  if (num_sets() == 1) return held(set(0));
  int64_t weights = 0;
  for (const StreamSet& set : sets_) weights += set.weight;
  std::string text;
  for (int64_t i = 0; i < num_sets(); ++i) {
    text += fmt::format("{}{}/{} of the tokens from {}", i > 0 ? "; " : "", sets_[i].weight,
                        weights, held(set(i)));
  }
  return text;
}

}  // namespace distca
