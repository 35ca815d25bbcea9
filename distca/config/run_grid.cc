#include "distca/config/run_grid.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <regex>

#include "distca/base/error.h"
#include "distca/base/text.h"
#include "distca/cost/stage_layers.h"
#include "distca/plan/scheduler.h"

namespace distca {
namespace {

int stages_of(const Config& config) {
  return static_cast<int>(config.parallel.pipeline_model_parallel_size);
}

/// parallel.pipeline_layers as ranges of layers.
std::vector<Range> given_layers(const Config& config) {
  std::vector<Range> layers;
  for (const int64_t count : config.parallel.pipeline_layers) {
    DISTCA_THROW_IF(count > config.model.num_hidden_layers, ErrorKind::kConfig,
                    "parallel.pipeline_layers = {}: the model has {} layers "
                    "(model.num_hidden_layers)",
                    fmt::join(config.parallel.pipeline_layers, ","),
                    config.model.num_hidden_layers);
    const int64_t first = layers.empty() ? 0 : layers.back().end;
    layers.push_back({first, first + count});
  }
  return layers;
}

std::vector<Range> interleaved_layers(const Config& config) {
  const int64_t stages = stages_of(config), virtual_stages = config.parallel.virtual_stages;
  const int64_t each = config.model.num_hidden_layers / (stages * virtual_stages);
  DISTCA_CHECK_EQ(each * stages * virtual_stages, config.model.num_hidden_layers);
  std::vector<Range> layers;
  for (int64_t stage = 0; stage < stages; ++stage)
    layers.push_back({stage * each, ((virtual_stages - 1) * stages + stage + 1) * each});
  return layers;
}

std::vector<Range> layers_of(const Config& config) {
  if (config.parallel.virtual_stages > 1) return interleaved_layers(config);
  const std::vector<int64_t>& given = config.parallel.pipeline_layers;
  if (given.empty()) return even_stages(config.model.shape(), stages_of(config));
  std::vector<Range> layers = given_layers(config);
  DISTCA_THROW_IF(layers.size() != static_cast<size_t>(stages_of(config)) ||
                      layers.back().end != config.model.num_hidden_layers,
                  ErrorKind::kConfig,
                  "parallel.pipeline_layers = {}: {} stage{} of {} layers in all, wanted are {} "
                  "stage{} (parallel.pipeline_model_parallel_size) of {} (model.num_hidden_layers)",
                  fmt::join(given, ","), layers.size(), layers.size() == 1 ? "" : "s",
                  layers.back().end, stages_of(config), stages_of(config) == 1 ? "" : "s",
                  config.model.num_hidden_layers);
  return layers;
}

}  // namespace

Stage RunGrid::stage_of(int rank) const {
  const int stage = grid.stage(server_of(rank));
  const TensorPlace place{.size = tensor, .index = tensor_index(rank)};
  if (stage < 0) return {.index = grid.stages, .count = grid.stages, .tensor = place};
  return {.index = stage,
          .count = grid.stages,
          .layers = layers[stage],
          .tensor = place,
          .virtual_stages = virtual_stages};
}

int64_t RunGrid::num_layers(int stage) const {
  return stage_of(rank_of(grid.rank(stage, 0), 0)).num_layers();
}

int64_t RunGrid::most_layers() const {
  int64_t most = 0;
  for (int stage = 0; stage < grid.stages; ++stage) most = std::max(most, num_layers(stage));
  return most;
}

std::vector<int> RunGrid::stage_ranks(int rank) const {
  std::vector<int> ranks(grid.replicas * tensor);
  std::iota(ranks.begin(), ranks.end(), rank_of(grid.rank(grid.stage(server_of(rank)), 0), 0));
  return ranks;
}

std::string RunGrid::name_of(int rank) const {
  if (!divides_model()) return fmt::format("rank {}", rank);
  const int server = server_of(rank);
  std::vector<std::string> places;
  if (grid.stage(server) < 0) {
    places.push_back("dedicated server");
  } else {
    if (is_pipeline()) places.push_back(fmt::format("stage {}", grid.stage(server)));
    places.push_back(fmt::format("replica {}", grid.replica(server)));
  }
  if (tensor > 1) places.push_back(fmt::format("tensor {}", tensor_index(rank)));
  return fmt::format("rank {} ({})", rank, fmt::join(places, ", "));
}

std::string RunGrid::named(const std::string& text) const {
  static const std::regex rank_words(R"(\brank (\d{1,6})\b(?! \((?:stage|replica|dedicated)))");
  if (!divides_model()) return text;
  std::string result;
  auto end = text.begin();
  for (std::sregex_iterator at(text.begin(), text.end(), rank_words), none; at != none; ++at) {
    result.append(end, text.begin() + at->position());
    const int rank = std::stoi((*at)[1]);
    result += rank < num_ranks() ? name_of(rank) : at->str();
    end = text.begin() + at->position() + at->length();
  }
  return result.append(end, text.end());
}

std::string RunGrid::describe() const {
  const int workers = num_workers();
  const std::string text = fmt::format("{} worker{}", workers, workers == 1 ? "" : "s");
  if (!divides_model()) return text;
  std::vector<std::string> factors;
  if (is_pipeline()) {
    std::vector<std::string> ranges;
    for (const Range& of : layers) {
      ranges.push_back(of.size() == 1 ? std::to_string(of.begin)
                                      : fmt::format("{}-{}", of.begin, of.end - 1));
    }
    factors.push_back(fmt::format("{} stages (layers {})", grid.stages, fmt::join(ranges, ", ")));
  }
  factors.push_back(fmt::format("{} replica{}", grid.replicas, grid.replicas == 1 ? "" : "s"));
  if (tensor > 1) factors.push_back(fmt::format("{} tensor", tensor));
  return fmt::format("{} = {}", text, fmt::join(factors, " x "));
}

std::string RunGrid::describe_dedicated() const {
  const int servers = grid.dedicated;
  if (servers == 0) return "";
  return fmt::format("{} dedicated server{}{}", servers, servers == 1 ? "" : "s",
                     tensor == 1    ? ""
                     : servers == 1 ? fmt::format(" of {} ranks", tensor)
                                    : fmt::format(" of {} ranks each", tensor));
}

RunGrid run_grid(const Config& config, int num_workers) {
  const int stages = stages_of(config), tensor = config.tensor_ranks();
  const std::string workers = fmt::format("{} worker{}", num_workers, num_workers == 1 ? "" : "s");
  DISTCA_THROW_IF(
      tensor > 1 && num_workers % (tensor * stages) != 0, ErrorKind::kConfig,
      "parallel.tensor_model_parallel_size = {}{}: {} cannot be divided; start a "
      "multiple of {}",
      tensor,
      stages > 1 ? fmt::format(" with parallel.pipeline_model_parallel_size = {}", stages) : "",
      workers, tensor * stages);
  DISTCA_THROW_IF(num_workers % stages != 0, ErrorKind::kConfig,
                  "parallel.pipeline_model_parallel_size = {}: {} cannot be divided over the "
                  "stages; start a multiple of {}",
                  stages, workers, stages);
  return {.grid = {.stages = stages,
                   .replicas = num_workers / (stages * tensor),
                   .dedicated = static_cast<int>(config.servers.dedicated) / tensor},
          .layers = layers_of(config),
          .tensor = tensor,
          .virtual_stages = config.parallel.virtual_stages};
}

void check_tensor(const Config& config) {
  const int64_t ranks = config.parallel.tensor_model_parallel_size;
  if (ranks == 1) return;
  const auto refuse = [&](bool wrong, std::string_view key, auto value, const std::string& why) {
    DISTCA_THROW_IF(wrong, ErrorKind::kConfig,
                    "parallel.tensor_model_parallel_size = {} with {} = {}: {}", ranks, key, value,
                    why);
  };
  const auto divide = [&](std::string_view key, int64_t value) {
    refuse(value % ranks != 0, key, value,
           "each rank has as many of them; take a size that divides it");
  };
  refuse(!config.parallel.sequence_parallel, "parallel.sequence_parallel", false,
         "ranks that divide a layer always divide the rows between its matrices, too, which takes "
         "the same bytes and less memory; leave it out");
  const LlamaConfig& model = config.model;
  divide("model.num_attention_heads", model.num_attention_heads);
  const int64_t kv_heads = model.num_key_value_heads;
  refuse(kv_heads % ranks != 0 && ranks % kv_heads != 0, "model.num_key_value_heads", kv_heads,
         "each rank has as many of them, or one that a whole number of ranks share; take a size "
         "that divides it or is a multiple of it");
  divide("model.intermediate_size", model.intermediate_size);
  refuse(model.vocab_size < ranks, "model.vocab_size", model.vocab_size,
         "each rank needs a token of its own");
  refuse(
      config.servers.dedicated % ranks != 0, "servers.dedicated", config.servers.dedicated,
      fmt::format("a dedicated server is {0} ranks, as others are; give a multiple of {0}", ranks));
  refuse(config.cluster.ranks_per_node % ranks != 0, "cluster.ranks_per_node",
         config.cluster.ranks_per_node,
         "ranks that divide a layer would lie on different nodes; take a size that divides it");
  refuse(config.servers.reweight, "servers.reweight", true,
         "measured times are those of a rank, and capacities those of ranks together; leave it "
         "out");
  refuse(measures_speeds(config), "plan.tolerance", "auto",
         "what is measured is a rank's, and plans are for ranks together; set "
         "train.deterministic = true");
}

void check_pipeline(const Config& config) {
  const int stages = stages_of(config);
  const std::string size = fmt::format("parallel.pipeline_model_parallel_size = {}", stages);
  DISTCA_THROW_IF(
      stages > config.model.num_hidden_layers, ErrorKind::kConfig,
      "{}: the model has {} layer{} (model.num_hidden_layers), and every stage needs one", size,
      config.model.num_hidden_layers, config.model.num_hidden_layers == 1 ? "" : "s");
  layers_of(config);
  if (stages == 1) return;
  DISTCA_THROW_IF(config.exchange.keys == Config::Exchange::Keys::kKeep, ErrorKind::kConfig,
                  "exchange.keys = keep with {}: backward of a tick pools other micro-batches than "
                  "forward, so servers cannot keep keys; use auto or redispatch",
                  size);
  DISTCA_THROW_IF(config.servers.reweight || config.plan.tolerance.is_auto, ErrorKind::kConfig,
                  "{} with {}: ticks are planned with assumed speeds only; leave it out",
                  config.servers.reweight ? "servers.reweight = true" : "plan.tolerance = auto",
                  size);
  const bool at_home = config.parallel.pipeline_schedule == PipelineSchedule::kAtHome;
  const bool fills = config.plan.fill_ticks != FillTicks::kExact;
  DISTCA_THROW_IF(
      fills && (at_home || !find_scheduler(config.plan.scheduler).split_kv), ErrorKind::kConfig,
      "plan.fill_ticks with {}: it would be ignored; leave it out, or use "
      "pipeline_schedule = aligned and scheduler = balanced",
      at_home ? "parallel.pipeline_schedule = 1f1b" : "plan.scheduler = " + config.plan.scheduler);
  DISTCA_THROW_IF(at_home && config.servers.dedicated > 0, ErrorKind::kConfig,
                  "servers.dedicated = {} with parallel.pipeline_schedule = 1f1b: there each stage "
                  "computes its own attention; use aligned",
                  config.servers.dedicated);
}

}  // namespace distca
