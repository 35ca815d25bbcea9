#include "distca/train/same_config.h"

#include <fmt/ranges.h>

#include <string_view>
#include <vector>

#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/comm/collectives.h"

namespace distca {
namespace {

constexpr std::string_view kIsa = "ATEN_CPU_CAPABILITY";  // an environment variable

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

/// [[key, value, how a message shows it], ...] of what has to be the same.
Json settings_of(Config config, const ResolvedConfig& resolved) {
  Json settings = Json::array();
  for (const ConfigKey& key : config_keys(config)) {
    if (key.may_differ) continue;
    const std::string value = value_of(key, resolved);
    const bool is_data = key.name == "data.prefix";
    settings.push_back(
        {key.name, value, is_data ? fmt::format("{} ({})", config.data.prefix, value) : value});
  }
  settings.push_back({kIsa, resolved.isa, resolved.isa});
  settings.push_back({"--resume", resolved.checkpoint, resolved.checkpoint});
  return settings;
}

}  // namespace

void check_same_config(Communicator& comm, const Config& config, const ResolvedConfig& resolved) {
  const std::string mine = settings_of(config, resolved).dump(-1, ' ', true);
  std::vector<Json> all;
  for (const std::string& text : all_gather_texts(comm, mine, "comparing configurations"))
    all.push_back(parse_json(text, "another rank's configuration", ErrorKind::kComm));
  for (size_t i = 0; i < all[0].size(); ++i) {
    std::vector<int> others;
    for (int rank = 1; rank < comm.size(); ++rank) {
      DISTCA_THROW_IF(i >= all[rank].size() || all[rank][i][0] != all[0][i][0], ErrorKind::kConfig,
                      "rank {} has other configuration keys than rank 0: start "
                      "the same version of distca on all ranks",
                      rank);
      if (all[rank][i][1] != all[0][i][1]) others.push_back(rank);
    }
    if (others.empty()) continue;
    const auto text = [&](int rank, int part) { return all[rank][i][part].get<std::string>(); };
    throw Error(ErrorKind::kConfig, "rank{} {} {} {} = {}, rank 0 has {}: give all ranks the same",
                others.size() > 1 ? "s" : "", fmt::join(others, ", "),
                others.size() > 1 ? "have" : "has", text(0, 0), text(others[0], 2), text(0, 2));
  }
}

}  // namespace distca
