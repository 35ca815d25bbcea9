// The plan as JSON (docs/plan_format.md).

#include <limits>

#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/base/json.h"
#include "distca/plan/plan.h"

namespace distca {
namespace {

constexpr const char* kFormat = "distca-plan";
constexpr int64_t kVersion = 3;
constexpr int64_t kOldestVersion = 2;  // wrote split_kv as key_sub_ranges
constexpr int64_t kMaxInteger = int64_t{1} << 60;
constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxTokenBytes = int64_t{1} << 30;

Json to_json(const Range& range) { return Json::array({range.begin, range.end}); }

const char* mask_name(MaskType mask) { return mask == MaskType::kFull ? "full" : "causal"; }

/// A value in the file and the name by which errors call it, as in tasks[3].q[0].
class Field {
 public:
  Field(const Json& json, std::string name) : json_(json), name_(std::move(name)) {}

  Field operator[](const char* key) const {
    expect(json_.is_object(), "an object");
    if (!json_.contains(key)) throw Error(ErrorKind::kPlan, "plan: {} is missing", child(key));
    return {json_.at(key), child(key)};
  }
  Field at(size_t index) const { return {json_.at(index), fmt::format("{}[{}]", name_, index)}; }

  size_t size() const {
    expect(json_.is_array(), "a list");
    return json_.size();
  }
  int64_t integer(int64_t least, int64_t most) const {
    const bool right = json_.is_number_integer() &&
                       !(json_.is_number_unsigned() && json_.get<uint64_t>() > kMaxInteger) &&
                       json_.get<int64_t>() >= least && json_.get<int64_t>() <= most;
    if (!right) expect(false, fmt::format("an integer in {} .. {}", least, most));
    return json_.get<int64_t>();
  }
  bool flag() const {
    expect(json_.is_boolean(), "true or false");
    return json_.get<bool>();
  }
  std::string text() const {
    expect(json_.is_string(), "a string");
    return json_.get<std::string>();
  }
  Range range(int64_t most) const {
    if (size() != 2) expect(false, "a pair [begin, end]");
    const Range range{at(0).integer(0, most), at(1).integer(0, most)};
    if (range.empty()) expect(false, "a range with begin < end");
    return range;
  }
  void expect(bool right, std::string_view what) const {
    if (right) return;
    throw Error(ErrorKind::kPlan, "plan: {} must be {}, not {}", name_.empty() ? "it" : name_, what,
                json_.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 60));
  }
  /// Unknown fields are refused: a misspelt one would be lost without a word.
  void only(std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : json_.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        throw Error(ErrorKind::kPlan, "plan: {} is not a field of version {}", child(key),
                    kVersion);
      }
    }
  }

 private:
  std::string child(std::string_view key) const {
    return name_.empty() ? std::string(key) : fmt::format("{}.{}", name_, key);
  }

  const Json& json_;
  std::string name_;
};

Link link_from(const Field& field) {
  return {.latency_ns = field["latency_ns"].integer(0, kMaxInteger),
          .bytes_per_us = field["bytes_per_us"].integer(1, kMaxInteger)};
}

Cluster cluster_from(const Field& field) {
  Cluster cluster;
  cluster.num_workers = static_cast<int>(field["num_workers"].integer(1, kMaxRanks));
  cluster.ranks_per_node = static_cast<int>(field["ranks_per_node"].integer(0, kMaxRanks));
  cluster.inside = link_from(field["inside"]);
  cluster.between = link_from(field["between"]);
  const Field memory = field["memory"];
  cluster.memory = {.token_bytes = memory["token_bytes"].integer(0, kMaxTokenBytes),
                    .kept_query_bytes = memory["kept_query_bytes"].integer(0, kMaxTokenBytes),
                    .kept_key_bytes = memory["kept_key_bytes"].integer(0, kMaxTokenBytes)};
  cluster.max_tokens_per_worker = field["max_tokens_per_worker"].integer(0, kMaxInteger);
  cluster.max_send_bytes = field["max_send_bytes"].integer(0, kMaxInteger);
  cluster.max_receive_bytes = field["max_receive_bytes"].integer(0, kMaxInteger);
  cluster.max_memory_bytes = field["max_memory_bytes"].integer(0, kMaxInteger);
  const Field capacity = field["capacity"];
  cluster.capacity.clear();
  for (size_t i = 0; i < capacity.size(); ++i) {
    cluster.capacity.push_back(capacity.at(i).integer(0, kMaxInteger));
  }
  if (cluster.num_servers() < cluster.num_workers) {
    capacity.expect(false, fmt::format("a list of at least num_workers = {}", cluster.num_workers));
  }
  return cluster;
}

AttentionShape shape_from(const Field& field) {
  constexpr int64_t kMost = 1 << 20;
  return {.num_heads = field["num_heads"].integer(1, kMost),
          .num_kv_heads = field["num_kv_heads"].integer(1, kMost),
          .head_dim_qk = field["head_dim_qk"].integer(1, kMost),
          .head_dim_v = field["head_dim_v"].integer(1, kMost),
          .element_bytes = field["element_bytes"].integer(1, 8),
          .window_left = field["window_left"].integer(-1, kMaxInteger)};
}

PlanOptions options_from(const Field& field, int64_t version) {
  return {.scheduler = field["scheduler"].text(),
          .layout = field["layout"].text(),
          .tolerance_ppm = field["tolerance_ppm"].integer(0, kMaxInteger),
          .split_kv = field[version == 2 ? "key_sub_ranges" : "split_kv"].flag(),
          .spread = field["spread"].flag(),
          .price = field["price"].text()};
}

Layout layout_from(const Field& field, const Plan& plan) {
  Layout layout;
  if (field.size() != static_cast<size_t>(plan.cluster.num_workers)) {
    field.expect(false, fmt::format("a list of num_workers = {}", plan.cluster.num_workers));
  }
  const auto documents = static_cast<int64_t>(plan.nano_batch.documents.size());
  for (size_t worker = 0; worker < field.size(); ++worker) {
    const Field segments = field.at(worker);
    auto& out = layout.workers.emplace_back();
    for (size_t i = 0; i < segments.size(); ++i) {
      const Field segment = segments.at(i);
      const int64_t document = segment["document"].integer(0, documents - 1);
      out.push_back(
          {document, segment["tokens"].range(plan.nano_batch.documents[document].length)});
    }
  }
  return layout;
}

Task task_from(const Field& field, const Plan& plan) {
  Task task;
  task.document =
      field["document"].integer(0, static_cast<int64_t>(plan.nano_batch.documents.size()) - 1);
  const int64_t length = plan.nano_batch.documents[task.document].length;
  task.q = field["q"].range(length);
  task.kv = field["kv"].range(length);
  task.server = static_cast<int>(field["server"].integer(0, plan.cluster.num_servers() - 1));
  const std::string mask = field["mask"].text();
  if (mask != "causal" && mask != "full") field["mask"].expect(false, "\"causal\" or \"full\"");
  task.mask = mask == "full" ? MaskType::kFull : MaskType::kCausal;
  return task;
}

ServerLoad load_from(const Field& field) {
  return {.pairs = field["pairs"].integer(0, kMaxInteger),
          .time_ns = field["time_ns"].integer(0, kMaxInteger),
          .send_bytes = field["send_bytes"].integer(0, kMaxInteger),
          .receive_bytes = field["receive_bytes"].integer(0, kMaxInteger),
          .o_send_bytes = field["o_send_bytes"].integer(0, kMaxInteger),
          .o_receive_bytes = field["o_receive_bytes"].integer(0, kMaxInteger),
          .memory_bytes = field["memory_bytes"].integer(0, kMaxInteger)};
}

Json link_json(const Link& link) {
  return {{"latency_ns", link.latency_ns}, {"bytes_per_us", link.bytes_per_us}};
}

Json cluster_json(const Cluster& cluster) {
  return {{"num_workers", cluster.num_workers},
          {"capacity", cluster.capacity},
          {"ranks_per_node", cluster.ranks_per_node},
          {"inside", link_json(cluster.inside)},
          {"between", link_json(cluster.between)},
          {"memory",
           {{"token_bytes", cluster.memory.token_bytes},
            {"kept_query_bytes", cluster.memory.kept_query_bytes},
            {"kept_key_bytes", cluster.memory.kept_key_bytes}}},
          {"max_tokens_per_worker", cluster.max_tokens_per_worker},
          {"max_send_bytes", cluster.max_send_bytes},
          {"max_receive_bytes", cluster.max_receive_bytes},
          {"max_memory_bytes", cluster.max_memory_bytes}};
}

Json layout_json(const Layout& layout) {
  Json json = Json::array();
  for (const auto& worker : layout.workers) {
    Json& segments = json.emplace_back(Json::array());
    for (const Segment& segment : worker) {
      segments.push_back({{"document", segment.document}, {"tokens", to_json(segment.tokens)}});
    }
  }
  return json;
}

Json tasks_json(const std::vector<Task>& tasks) {
  Json json = Json::array();
  for (const Task& task : tasks) {
    json.push_back({{"document", task.document},
                    {"q", to_json(task.q)},
                    {"kv", to_json(task.kv)},
                    {"server", task.server},
                    {"mask", mask_name(task.mask)}});
  }
  return json;
}

Json load_json(const std::vector<ServerLoad>& loads) {
  Json json = Json::array();
  for (const ServerLoad& load : loads) {
    json.push_back({{"pairs", load.pairs},
                    {"time_ns", load.time_ns},
                    {"send_bytes", load.send_bytes},
                    {"receive_bytes", load.receive_bytes},
                    {"o_send_bytes", load.o_send_bytes},
                    {"o_receive_bytes", load.o_receive_bytes},
                    {"memory_bytes", load.memory_bytes}});
  }
  return json;
}

}  // namespace

std::string plan_to_json(const Plan& plan) {
  Json lengths = Json::array();
  for (const Document& document : plan.nano_batch.documents) lengths.push_back(document.length);
  return canonical_json({{"format", kFormat},
                         {"version", kVersion},
                         {"document_lengths", lengths},
                         {"cluster", cluster_json(plan.cluster)},
                         {"shape",
                          {{"num_heads", plan.shape.num_heads},
                           {"num_kv_heads", plan.shape.num_kv_heads},
                           {"head_dim_qk", plan.shape.head_dim_qk},
                           {"head_dim_v", plan.shape.head_dim_v},
                           {"element_bytes", plan.shape.element_bytes},
                           {"window_left", plan.shape.window_left}}},
                         {"options",
                          {{"layout", plan.options.layout},
                           {"scheduler", plan.options.scheduler},
                           {"tolerance_ppm", plan.options.tolerance_ppm},
                           {"split_kv", plan.options.split_kv},
                           {"spread", plan.options.spread},
                           {"price", plan.options.price}}},
                         {"layout", layout_json(plan.layout)},
                         {"tasks", tasks_json(plan.tasks)},
                         {"load", load_json(plan.load)}});
}

Plan plan_from_json(std::string_view json) {
  const Json parsed = parse_json(json, "plan", ErrorKind::kPlan);
  const Field root(parsed, "");
  if (root["format"].text() != kFormat) {
    root["format"].expect(false, fmt::format("\"{}\"", kFormat));
  }
  const int64_t version = root["version"].integer(kOldestVersion, kVersion);
  root.only({"format", "version", "document_lengths", "cluster", "shape", "options", "layout",
             "tasks", "load"});

  Plan plan;
  const Field lengths = root["document_lengths"];
  std::vector<int64_t> tokens;
  for (size_t i = 0; i < lengths.size(); ++i) {
    tokens.push_back(lengths.at(i).integer(0, std::numeric_limits<int32_t>::max()));
  }
  plan.nano_batch = NanoBatch::from_lengths(tokens);
  plan.cluster = cluster_from(root["cluster"]);
  plan.shape = shape_from(root["shape"]);
  plan.options = options_from(root["options"], version);
  plan.layout = layout_from(root["layout"], plan);
  const Field tasks = root["tasks"];
  for (size_t i = 0; i < tasks.size(); ++i) plan.tasks.push_back(task_from(tasks.at(i), plan));
  const Field load = root["load"];
  for (size_t i = 0; i < load.size(); ++i) plan.load.push_back(load_from(load.at(i)));
  if (plan.load.size() != static_cast<size_t>(plan.cluster.num_servers())) {
    load.expect(false, fmt::format("a list of one entry a server, {}", plan.cluster.num_servers()));
  }
  return plan;
}

std::string plan_hash(const Plan& plan) { return hash_hex(plan_to_json(plan)); }

}  // namespace distca
