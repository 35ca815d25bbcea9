#include "distca/plan/plan_batch_input.h"

#include <limits>
#include <system_error>

#include "distca/base/error.h"
#include "distca/base/json.h"

namespace distca {
namespace {

int64_t positive_integer(const Json& json, const std::string& what, int64_t most) {
  DISTCA_THROW_IF(
      !json.is_number_integer() || json.get<int64_t>() < 1 || json.get<int64_t>() > most,
      ErrorKind::kData, "{} must be an integer in 1 .. {}, not {}", what, most,
      json.dump().substr(0, 40));
  return json.get<int64_t>();
}

std::vector<int64_t> lengths_from(const Json& json, const std::string& what) {
  DISTCA_THROW_IF(!json.is_array(), ErrorKind::kData,
                  "{} must be a list of document lengths, not {}", what, json.type_name());
  std::vector<int64_t> lengths;
  for (const Json& length : json) {
    lengths.push_back(positive_integer(length, fmt::format("{}[{}]", what, lengths.size()),
                                       std::numeric_limits<int32_t>::max()));
  }
  return lengths;
}

const Json& field(const Json& json, const char* name, const std::string& file) {
  DISTCA_THROW_IF(!json.is_object() || !json.contains(name), ErrorKind::kData,
                  "{}: no \"{}\": a workload is {{\"ranks\", \"tokens_per_rank\", \"doc_lens\"}}",
                  file, name);
  return json.at(name);
}

}  // namespace

Workload read_workload(const std::filesystem::path& path) {
  const Json json = read_json(path);
  const std::string file = path.string();
  Workload workload;
  workload.ranks =
      static_cast<int>(positive_integer(field(json, "ranks", file), file + ": \"ranks\"", 1 << 20));
  const int64_t tokens_per_rank = positive_integer(
      field(json, "tokens_per_rank", file), file + ": \"tokens_per_rank\"", int64_t{1} << 40);
  DISTCA_THROW_IF(json.contains("source") && !json.at("source").is_string(), ErrorKind::kData,
                  "{}: \"source\" must be a string", file);
  workload.nano_batch =
      NanoBatch::from_lengths(lengths_from(field(json, "doc_lens", file), file + ": \"doc_lens\""));
  const int64_t expected = workload.ranks * tokens_per_rank;
  DISTCA_THROW_IF(workload.nano_batch.num_tokens() != expected, ErrorKind::kData,
                  "{}: the documents hold {} tokens, ranks x tokens_per_rank is {}", file,
                  workload.nano_batch.num_tokens(), expected);
  return workload;
}

std::vector<int64_t> read_lengths(const std::filesystem::path& path) {
  std::error_code ignored;
  DISTCA_THROW_IF(
      path.native().starts_with('[') && !std::filesystem::exists(path, ignored), ErrorKind::kData,
      "{}: no such file; wanted is the name of a file that holds such a list", path.string());
  return lengths_from(read_json(path), path.string());
}

}  // namespace distca
