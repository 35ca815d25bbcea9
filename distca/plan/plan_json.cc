// The plan as JSON (docs/plan_format.md).

#include <fmt/compile.h>

#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/base/json_field.h"
#include "distca/plan/plan.h"

namespace distca {
namespace {

constexpr const char* kFormat = "distca-plan";
constexpr int64_t kVersion = 3;
constexpr int64_t kMaxInteger = int64_t{1} << 60;
constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxTokenBytes = int64_t{1} << 30;

const char* mask_name(MaskKind mask) { return mask == MaskKind::kFull ? "full" : "causal"; }

// The fields of each struct, once for writing and reading.

template <typename Visit, typename T>
void visit_link(Visit visit, T& link) {
  visit("latency_ns", link.latency_ns, 0, kMaxInteger);
  visit("bytes_per_us", link.bytes_per_us, 1, kMaxInteger);
}

template <typename Visit, typename T>
void visit_memory(Visit visit, T& memory) {
  visit("token_bytes", memory.token_bytes, 0, kMaxTokenBytes);
  visit("kept_query_bytes", memory.kept_query_bytes, 0, kMaxTokenBytes);
  visit("kept_key_bytes", memory.kept_key_bytes, 0, kMaxTokenBytes);
}

template <typename Visit, typename T>
void visit_cluster(Visit visit, T& cluster) {
  visit("num_workers", cluster.num_workers, 1, kMaxRanks);
  visit("ranks_per_node", cluster.ranks_per_node, 0, kMaxRanks);
  visit("max_tokens_per_worker", cluster.max_tokens_per_worker, 0, kMaxInteger);
  visit("max_send_bytes", cluster.max_send_bytes, 0, kMaxInteger);
  visit("max_receive_bytes", cluster.max_receive_bytes, 0, kMaxInteger);
  visit("max_memory_bytes", cluster.max_memory_bytes, 0, kMaxInteger);
}

template <typename Visit, typename T>
void visit_shape(Visit visit, T& shape) {
  constexpr int64_t kMost = 1 << 20;
  visit("num_heads", shape.num_heads, 1, kMost);
  visit("num_kv_heads", shape.num_kv_heads, 1, kMost);
  visit("head_dim_qk", shape.head_dim_qk, 1, kMost);
  visit("head_dim_v", shape.head_dim_v, 1, kMost);
  visit("element_bytes", shape.type);
  visit("window_left", shape.mask.window_left, -1, kMaxInteger);
}

template <typename Visit, typename T>
void visit_options(Visit visit, T& options) {
  visit("scheduler", options.scheduler);
  visit("layout", options.layout);
  visit("tolerance_ppm", options.tolerance_ppm, 0, kMaxInteger);
  visit("split_kv", options.split_kv);
  visit("spread", options.spread);
  visit("price", options.price);
}

/// Ascending, as they are written.
template <typename Visit, typename T>
void visit_load(Visit visit, T& load) {
  visit("memory_bytes", load.memory_bytes, 0, kMaxInteger);
  visit("o_receive_bytes", load.o_receive_bytes, 0, kMaxInteger);
  visit("o_send_bytes", load.o_send_bytes, 0, kMaxInteger);
  visit("pairs", load.pairs, 0, kMaxInteger);
  visit("receive_bytes", load.receive_bytes, 0, kMaxInteger);
  visit("send_bytes", load.send_bytes, 0, kMaxInteger);
  visit("time_ns", load.time_ns, 0, kMaxInteger);
}

Range range_from(const JsonField& field, int64_t most) {
  if (field.size() != 2) field.expect(false, "a pair [begin, end]");
  const Range range{field.at(0).integer(0, most), field.at(1).integer(0, most)};
  if (range.empty()) field.expect(false, "a range with begin < end");
  return range;
}

Cluster cluster_from(const JsonField& field) {
  Cluster cluster;
  visit_cluster(JsonReader{field}, cluster);
  visit_link(JsonReader{field["inside"]}, cluster.inside);
  visit_link(JsonReader{field["between"]}, cluster.between);
  visit_memory(JsonReader{field["memory"]}, cluster.memory);
  cluster.capacity = field["capacity"].integers(0, kMaxInteger);
  field["capacity"].expect(cluster.num_servers() >= cluster.num_workers,
                           fmt::format("a list of at least num_workers = {}", cluster.num_workers));
  return cluster;
}

Layout layout_from(const JsonField& field, const Plan& plan) {
  Layout layout;
  const int workers = plan.cluster.num_workers;
  field.expect(std::cmp_equal(field.size(), workers),
               fmt::format("a list of num_workers = {}", workers));
  for (size_t worker = 0; worker < field.size(); ++worker) {
    const JsonField segments = field.at(worker);
    auto& out = layout.workers.emplace_back();
    for (size_t i = 0; i < segments.size(); ++i) {
      const JsonField segment = segments.at(i);
      const int64_t document =
          segment["document"].integer(0, std::ssize(plan.nano_batch.documents) - 1);
      out.push_back(
          {document, range_from(segment["tokens"], plan.nano_batch.documents[document].length)});
    }
  }
  return layout;
}

Task task_from(const JsonField& field, const Plan& plan) {
  Task task;
  task.document = field["document"].integer(0, std::ssize(plan.nano_batch.documents) - 1);
  const int64_t length = plan.nano_batch.documents[task.document].length;
  task.q = range_from(field["q"], length);
  task.kv = range_from(field["kv"], length);
  task.server = static_cast<int>(field["server"].integer(0, plan.cluster.num_servers() - 1));
  const std::string mask = field["mask"].text();
  if (mask != "causal" && mask != "full") field["mask"].expect(false, "\"causal\" or \"full\"");
  task.mask = mask == "full" ? MaskKind::kFull : MaskKind::kCausal;
  return task;
}

Json cluster_json(const Cluster& cluster) {
  Json json{{"capacity", cluster.capacity}};
  visit_cluster(JsonWriter{json}, cluster);
  visit_link(JsonWriter{json["inside"]}, cluster.inside);
  visit_link(JsonWriter{json["between"]}, cluster.between);
  visit_memory(JsonWriter{json["memory"]}, cluster.memory);
  return json;
}

// The long lists are written as text at once, in formats that are compiled: a tree of values takes
// some thirty times as long.

template <typename Item>
void add_list(std::string& text, const std::vector<Item>& items, const auto& add) {
  text += '[';
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += ',';
    add(items[i]);
  }
  text += ']';
}

void add_layout(std::string& text, const Layout& layout) {
  add_list(text, layout.workers, [&](const std::vector<Segment>& worker) {
    add_list(text, worker, [&](const Segment& segment) {
      fmt::format_to(std::back_inserter(text), FMT_COMPILE(R"({{"document":{},"tokens":[{},{}]}})"),
                     segment.document, segment.tokens.begin, segment.tokens.end);
    });
  });
}

void add_tasks(std::string& text, const std::vector<Task>& tasks) {
  add_list(text, tasks, [&](const Task& task) {
    fmt::format_to(
        std::back_inserter(text),
        FMT_COMPILE(R"({{"document":{},"kv":[{},{}],"mask":"{}","q":[{},{}],"server":{}}})"),
        task.document, task.kv.begin, task.kv.end, mask_name(task.mask), task.q.begin, task.q.end,
        task.server);
  });
}

void add_loads(std::string& text, const std::vector<ServerLoad>& loads) {
  add_list(text, loads, [&](const ServerLoad& load) {
    char before = '{';
    const auto add = [&](const char* name, int64_t value, int64_t, int64_t) {
      fmt::format_to(std::back_inserter(text), FMT_COMPILE(R"({}"{}":{})"), before, name, value);
      before = ',';
    };
    visit_load(add, load);
    text += '}';
  });
}

}  // namespace

/// All keys in their order, as canonical_json would have them.
std::string plan_to_json(const Plan& plan) {
  Json shape, options;
  visit_shape(JsonWriter{shape}, plan.shape);
  visit_options(JsonWriter{options}, plan.options);
  std::string text = R"({"cluster":)" + cluster_json(plan.cluster).dump();
  text += R"(,"document_lengths":)";
  add_list(text, plan.nano_batch.documents, [&](const Document& document) {
    fmt::format_to(std::back_inserter(text), FMT_COMPILE("{}"), document.length);
  });
  text += fmt::format(R"(,"format":"{}","layout":)", kFormat);
  add_layout(text, plan.layout);
  text += R"(,"load":)";
  add_loads(text, plan.load);
  text += R"(,"options":)" + options.dump();
  text += R"(,"shape":)" + shape.dump();
  text += R"(,"tasks":)";
  add_tasks(text, plan.tasks);
  text += fmt::format(",\"version\":{}}}\n", kVersion);
  return text;
}

Plan plan_from_json(std::string_view json) {
  const Json parsed = parse_json(json, "plan", ErrorKind::kPlan);
  const JsonField root(parsed, "plan", ErrorKind::kPlan);
  root["format"].expect(root["format"].text() == kFormat, fmt::format("\"{}\"", kFormat));
  root["version"].expect(root["version"].integer(0, kMaxInteger) == kVersion,
                         fmt::format("{}", kVersion));
  root.only({"format", "version", "document_lengths", "cluster", "shape", "options", "layout",
             "tasks", "load"},
            kVersion);

  Plan plan;
  plan.nano_batch = NanoBatch::from_lengths(
      root["document_lengths"].integers(0, std::numeric_limits<int32_t>::max()));
  plan.cluster = cluster_from(root["cluster"]);
  visit_shape(JsonReader{root["shape"]}, plan.shape);
  visit_options(JsonReader{root["options"]}, plan.options);
  plan.layout = layout_from(root["layout"], plan);
  const JsonField tasks = root["tasks"];
  for (size_t i = 0; i < tasks.size(); ++i) plan.tasks.push_back(task_from(tasks.at(i), plan));
  const JsonField load = root["load"];
  for (size_t i = 0; i < load.size(); ++i)
    visit_load(JsonReader{load.at(i)}, plan.load.emplace_back());
  const int servers = plan.cluster.num_servers();
  load.expect(std::cmp_equal(plan.load.size(), servers),
              fmt::format("a list of one entry a server, {}", servers));
  return plan;
}

std::string plan_hash(const Plan& plan) { return hash_hex(plan_to_json(plan)); }

}  // namespace distca
