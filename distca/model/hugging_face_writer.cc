#include "distca/model/hugging_face_writer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "distca/base/error.h"
#include "distca/kernels/bfloat16.h"
#include "distca/model/hugging_face.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigJson = "config.json";

void remove_older(const fs::path& path) {
  std::error_code code;
  fs::remove(path, code);
  DISTCA_THROW_IF(code, ErrorKind::kIo, "{}: older weights, which cannot be removed: {}",
                  path.string(), code.message());
}

/// Files that get their names together. Readers find the others by the last one, so an older file
/// of its name goes first: nobody reads new weights and older ones as one model, whenever this is
/// interrupted. Where one gets no name, those that were not there before go.
class FilesTogether {
 public:
  ~FilesTogether() {
    std::error_code ignored;
    for (const fs::path& path : new_) fs::remove(path, ignored);
  }

  AtomicFile& add(const fs::path& path) {
    return *files_.emplace_back(path, std::make_unique<AtomicFile>(path)).second;
  }
  /// `older` are files of other names by which readers find weights: they go, too.
  void commit(std::span<const fs::path> older, const std::function<void()>& before_names) {
    std::error_code ignored;
    for (const auto& [path, file] : files_) {  // before any has its name
      DISTCA_THROW_IF(fs::is_directory(path, ignored), ErrorKind::kIo,
                      "{}: cannot be put in place: it is a folder", path.string());
    }
    for (const auto& [path, file] : files_) file->sync();
    std::vector<bool> is_new;
    for (const auto& [path, file] : files_) is_new.push_back(!fs::exists(path, ignored));
    before_names();
    std::ranges::for_each(older, remove_older);
    remove_older(files_.back().second->target());
    for (size_t i = 0; i < files_.size(); ++i) {
      auto& [path, file] = files_[i];
      file->commit();
      if (is_new[i]) new_.push_back(path);
    }
    new_.clear();
  }

 private:
  std::vector<std::pair<fs::path, std::unique_ptr<AtomicFile>>> files_;
  std::vector<fs::path> new_;
};

/// Half precision. Every float is a double, so there is one rounding.
uint16_t to_float16(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  const auto sign = static_cast<uint16_t>(bits >> 48 & 0x8000);
  const double size = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7e00;
  if (size >= 65520) return sign | 0x7c00;  // the middle of the largest number and the next
  // Below the least normal number, all are multiples of 2^-24; 1024 of them are that number.
  if (size < 0x1p-14) return sign | static_cast<uint16_t>(std::nearbyint(size * 0x1p24));
  constexpr int kDropped = 52 - 10;  // bits of the fraction
  uint64_t magnitude = bits & 0x7fff'ffff'ffff'ffff;
  magnitude += (uint64_t{1} << (kDropped - 1)) - 1 + (magnitude >> kDropped & 1);
  return sign | static_cast<uint16_t>((magnitude >> kDropped) - ((1023 - 15) << 10));
}

/// Rounds in place: the results lie at the front of `bytes`. round() gives the bits of a number, of
/// which `exponent` are all set where it is not finite.
template <typename From, typename Round>
void round_all(const StoredTensor& to, std::span<std::byte> bytes, uint32_t exponent, Round round) {
  for (size_t i = 0; i < bytes.size() / sizeof(From); ++i) {
    From number;
    std::memcpy(&number, bytes.data() + i * sizeof number, sizeof number);
    const auto rounded = round(number);
    DISTCA_THROW_IF(std::isfinite(number) && (rounded & exponent) == exponent,
                    ErrorKind::kCheckpoint, "{} has the number {:g}, which is too large for {}{}",
                    to.name, number, to.type_name(), to.is_float16 ? "; bfloat16 can hold it" : "");
    std::memcpy(bytes.data() + i * sizeof rounded, &rounded, sizeof rounded);
  }
}

template <typename From>
void round_from(const StoredTensor& to, std::span<std::byte> bytes) {
  if (to.is_float16) return round_all<From>(to, bytes, 0x7c00, to_float16);
  if (to.type == ScalarType::kBFloat16)
    return round_all<From>(to, bytes, 0x7f80, [](From x) { return kernels::to_bfloat16(x).bits; });
  round_all<From>(to, bytes, 0x7f80'0000,
                  [](From x) { return std::bit_cast<uint32_t>(static_cast<float>(x)); });
}

StoredTensor as_type(const StoredTensor& given, WeightsType type) {
  StoredTensor stored = given;
  DISTCA_CHECK(given.type != ScalarType::kBFloat16, "{} is {}", given.name, given.type_name());
  if (type == WeightsType::kAsGiven) return stored;
  stored.type = type == WeightsType::kFloat32 ? ScalarType::kFloat32 : ScalarType::kBFloat16;
  stored.is_float16 = type == WeightsType::kFloat16;
  return stored;
}

std::vector<Range> shards_of(const std::vector<StoredTensor>& tensors, int64_t most_bytes) {
  std::vector<Range> shards = {{0, 0}};
  int64_t bytes = 0;  // bytes of the last shard
  for (const StoredTensor& tensor : tensors) {
    if (most_bytes > 0 && bytes > 0 && bytes + tensor.bytes() > most_bytes) {
      shards.push_back({shards.back().end, shards.back().end});
      bytes = 0;
    }
    ++shards.back().end;
    bytes += tensor.bytes();
  }
  return shards;
}

bool is_shard_name(std::string_view name) {
  constexpr std::string_view kPattern = "model-#####-of-#####.safetensors";
  return std::ranges::equal(name, kPattern, [](char c, char pattern) {
    return pattern == '#' ? c >= '0' && c <= '9' : c == pattern;
  });
}

}  // namespace

HuggingFaceWriter::HuggingFaceWriter(fs::path folder, std::vector<StoredTensor> tensors,
                                     const WeightsLayout& layout)
    : folder_(std::move(folder)), given_(std::move(tensors)) {
  for (const StoredTensor& tensor : given_) stored_.push_back(as_type(tensor, layout.type));
  shards_ = shards_of(stored_, layout.max_shard_bytes);
  DISTCA_THROW_IF(shards_.size() > kMostShards, ErrorKind::kUsage,
                  "the weights would take {} files: at most {}; let one be larger", shards_.size(),
                  kMostShards);
}

fs::path HuggingFaceWriter::weights() const {
  return folder_ / (shards_.size() == 1 ? kWeightsFile : kWeightsIndex);
}

std::string HuggingFaceWriter::type_name() const { return stored_.front().type_name(); }

std::string HuggingFaceWriter::shard_name(size_t shard) const {
  if (shards_.size() == 1) return kWeightsFile;
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards_.size());
}

std::vector<fs::path> HuggingFaceWriter::own_files() const {
  std::vector<fs::path> files;
  for (size_t shard = 0; shard < shards_.size(); ++shard)
    files.push_back(folder_ / shard_name(shard));
  if (shards_.size() > 1) files.push_back(folder_ / kWeightsIndex);
  files.push_back(folder_ / kConfigJson);
  return files;
}

std::vector<fs::path> HuggingFaceWriter::older_weights() const {
  const std::vector<fs::path> own = own_files();
  std::vector<fs::path> older;
  std::error_code ignored;  // no folder: nothing is in it
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, ignored)) {
    const std::string name = entry.path().filename();
    const bool is_weights = name == kWeightsFile || name == kWeightsIndex || is_shard_name(name);
    if (is_weights && entry.is_regular_file(ignored) &&
        std::ranges::count(own, folder_ / name) == 0)
      older.push_back(folder_ / name);
  }
  std::ranges::sort(older);
  return older;
}

std::vector<fs::path> HuggingFaceWriter::touched() const {
  std::vector<fs::path> files = own_files();
  std::ranges::copy(older_weights(), std::back_inserter(files));
  return files;
}

Json HuggingFaceWriter::index() const {
  Json map = Json::object();
  int64_t bytes = 0;
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    for (int64_t i = shards_[shard].begin; i < shards_[shard].end; ++i) {
      map[stored_[i].name] = shard_name(shard);
      bytes += stored_[i].bytes();
    }
  }
  return {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
}

std::vector<StoredTensor> HuggingFaceWriter::tensors_of(size_t shard) const {
  return {stored_.begin() + shards_[shard].begin, stored_.begin() + shards_[shard].end};
}

void HuggingFaceWriter::write_shard(size_t shard, const SafetensorsMetadata& metadata,
                                    const Read& read, AtomicFile& file) const {
  file.write(safetensors_header(tensors_of(shard), metadata));
  std::vector<std::byte> bytes;
  for (int64_t i = shards_[shard].begin; i < shards_[shard].end; ++i) {
    const StoredTensor &given = given_[i], &stored = stored_[i];
    bytes.resize(static_cast<size_t>(given.bytes()));
    read(static_cast<size_t>(i), bytes);
    if (given != stored && given.type == ScalarType::kFloat64) {
      round_from<double>(stored, bytes);
    } else if (given != stored) {
      round_from<float>(stored, bytes);
    }
    file.write(std::span(bytes).first(static_cast<size_t>(stored.bytes())));
  }
}

void HuggingFaceWriter::write(const Contents& contents, const Read& read,
                              const std::function<void()>& before_names) const {
  const MissingFolders missing(folder_);
  std::vector<fs::path> older = older_weights();
  FilesTogether files;
  std::vector<AtomicFile*> shards;
  const auto add_shard = [&](size_t shard) {
    shards.push_back(&files.add(folder_ / shard_name(shard)));
    shards.back()->reserve(safetensors_bytes(tensors_of(shard), contents.metadata));
  };
  const bool has_index = shards_.size() > 1;
  for (size_t shard = 0; has_index && shard < shards_.size(); ++shard) add_shard(shard);
  Json config = contents.config;
  config.erase("dtype");  // the newer of two names, which transformers 5 prefers
  config["torch_dtype"] = type_name();
  files.add(folder_ / kConfigJson).write(config.dump(2) + "\n");
  for (const auto& [name, text] : contents.beside) files.add(folder_ / name).write(text);
  if (has_index) {
    files.add(weights()).write(index().dump(2) + "\n");
  } else {
    add_shard(0);
  }
  for (size_t shard = 0; shard < shards.size(); ++shard)
    write_shard(shard, contents.metadata, read, *shards[shard]);
  const auto first_shard = std::stable_partition(
      older.begin(), older.end(),
      [](const fs::path& path) { return !is_shard_name(path.filename().string()); });
  files.commit({older.begin(), first_shard}, before_names);
  std::for_each(first_shard, older.end(), remove_older);
}

}  // namespace distca
