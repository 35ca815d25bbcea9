#include "distca/train/same_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/base/json.h"
#include "distca/base/text.h"
#include "distca/comm/collectives.h"

namespace distca {
namespace {

constexpr std::array<std::string_view, 3> kMayDiffer = {"train.threads_per_rank",
                                                        "train.output_dir", "train.overwrite"};
constexpr std::string_view kIsa = "ATEN_CPU_CAPABILITY";  // an environment variable

/// How a message says what a rank would do: "rank 1 would VERB VALUE, rank 0 BY VALUE".
struct Wording {
  std::string_view key, verb, by;
};
constexpr std::array<Wording, 5> kWordings = {{{"servers.dedicated", "train ", "with "},
                                               {"train.overlap", "play ", "by "},
                                               {"plan.profile", "plan ", "by "},
                                               {"attention.kernel", "compute attention ", "with "},
                                               {kIsa, "let PyTorch compute ", "with "}}};

std::string value_of(const ConfigKey& key, const ResolvedConfig& resolved) {
  if (key.name == "data.prefix") return resolved.data;
  if (key.name == "plan.profile") return resolved.price;
  if (key.name == "attention.kernel") return resolved.kernel;
  if (const auto* const choice = std::get_if<WordValue>(&key.value))
    return std::string(choice->word());
  const auto* const word = std::get_if<std::string*>(&key.value);
  if (!word) return shown_value(key);
  if (key.name == "train.trace") return (*word)->empty() ? "no file" : "a file";
  return (*word)->empty() ? "\"\"" : **word;
}

/// [[key, value], ...] of what has to be the same.
Json settings_of(Config config, const ResolvedConfig& resolved) {
  Json settings = Json::array();
  for (const ConfigKey& key : config_keys(config)) {
    if (std::ranges::find(kMayDiffer, key.name) != kMayDiffer.end()) continue;
    settings.push_back({key.name, value_of(key, resolved)});
  }
  settings.push_back({kIsa, resolved.isa});
  return settings;
}

/// Every rank's text, in rank order.
std::vector<std::string> all_gather_texts(Communicator& comm, std::string mine) {
  constexpr std::string_view kOperation = "comparing configurations";
  const uint64_t my_size = mine.size();
  const std::vector<std::byte> sizes =
      all_gather_bytes(comm, std::as_bytes(std::span(&my_size, 1)), kOperation);
  std::vector<uint64_t> size(comm.size());
  std::memcpy(size.data(), sizes.data(), sizes.size());
  const uint64_t longest = *std::ranges::max_element(size);
  mine.resize(longest);
  const std::vector<std::byte> all =
      all_gather_bytes(comm, std::as_bytes(std::span(mine)), kOperation);
  std::vector<std::string> texts;
  for (int rank = 0; rank < comm.size(); ++rank)
    texts.emplace_back(reinterpret_cast<const char*>(all.data()) + rank * longest, size[rank]);
  return texts;
}

bool all_have(Communicator& comm, const std::string& mine) {
  Fnv1a64 hash;
  hash.add(mine);
  const uint64_t value = hash.value();
  const std::vector<std::byte> all =
      all_gather_bytes(comm, std::as_bytes(std::span(&value, 1)), "comparing configurations");
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (std::memcmp(all.data() + rank * sizeof(value), all.data(), sizeof(value)) != 0)
      return false;
  }
  return true;
}

}  // namespace

namespace {

/// The first of the others' data sets beside rank 0's, each with its path.
[[noreturn]] void refuse_data(Communicator& comm, const Config& config, const ResolvedConfig& mine,
                              const std::vector<int>& others) {
  const auto all = all_gather_texts(comm, fmt::format("{} ({})", config.data.prefix, mine.data));
  throw Error(
      ErrorKind::kConfig,
      "data.prefix: rank{} {} would train on {}, rank 0 on {}: give all ranks the same data "
      "set",
      others.size() > 1 ? "s" : "", fmt::join(others, ", "), all[others[0]], all[0]);
}

}  // namespace

std::string data_summary(const IndexedDataset& data) {
  return fmt::format("{} documents, {} tokens, contents {:016x}",
                     with_thousands(data.num_documents()), with_thousands(data.num_tokens()),
                     data.fingerprint());
}

void check_same_config(Communicator& comm, const Config& config, const ResolvedConfig& resolved) {
  const std::string mine = settings_of(config, resolved).dump(-1, ' ', true);
  if (all_have(comm, mine)) return;
  std::vector<Json> all;
  for (const std::string& text : all_gather_texts(comm, mine))
    all.push_back(parse_json(text, "another rank's configuration", ErrorKind::kComm));
  for (size_t i = 0; i < all[0].size(); ++i) {
    std::vector<int> others;
    for (int rank = 1; rank < comm.size(); ++rank) {
      if (i >= all[rank].size() || all[rank][i][0] != all[0][i][0]) {
        throw Error(ErrorKind::kConfig,
                    "rank {} has other configuration keys than rank 0: start "
                    "the same version of distca on all ranks",
                    rank);
      }
      if (all[rank][i] != all[0][i]) others.push_back(rank);
    }
    if (others.empty()) continue;
    const auto key = all[0][i][0].get<std::string>();
    if (key == "data.prefix") refuse_data(comm, config, resolved, others);
    const auto found = std::ranges::find(kWordings, key, &Wording::key);
    const Wording wording = found == kWordings.end() ? Wording{key, "use ", ""} : *found;
    throw Error(
        ErrorKind::kConfig, "{}: rank{} {} would {}{}{}, rank 0 {}{}: give all ranks the same", key,
        others.size() > 1 ? "s" : "", fmt::join(others, ", "), wording.verb, wording.by,
        all[others[0]][i][1].get<std::string>(), wording.by, all[0][i][1].get<std::string>());
  }
}

}  // namespace distca
