#pragma once
// The plan of one nano-batch: layout, tasks, predicted load and bytes. A plain value: printable,
// byte-stable as JSON (docs/plan_format.md), hashed. Every rank computes it from the same inputs.
// Any thread.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "distca/base/integers.h"
#include "distca/batch/document.h"
#include "distca/batch/layout.h"
#include "distca/cost/attention_cost.h"
#include "distca/cost/cluster.h"

namespace distca {

/// Queries x keys of one document computed by one server (paper 4.1, CA-task).
/// The query range lies within one segment of the layout, so its rows are contiguous at home.
struct Task {
  int64_t document = 0;
  Range q;   // positions in the document
  Range kv;  // positions in the document; may reach beyond what the mask allows, never short of it
             // (whole-context)
  int server = 0;
  MaskType mask = MaskType::kCausal;
  bool operator==(const Task&) const = default;
};

struct PlanOptions {
  std::string layout = "sequential";
  std::string scheduler = "greedy";
  int64_t tolerance_ppm = 50'000;  // max/mean of load over capacity, minus 1, in millionths
  bool operator==(const PlanOptions&) const = default;
};

/// Predicted, one layer, forward.
struct ServerLoad {
  int64_t pairs = 0;          // (query, key) pairs
  int64_t send_bytes = 0;     // Q, K, V sent away from this rank
  int64_t receive_bytes = 0;  // Q, K, V received by this rank
  int64_t o_send_bytes = 0;   // O returned by this rank; byte counts leave LSE out
  bool operator==(const ServerLoad&) const = default;
};

struct Plan {
  NanoBatch nano_batch;
  Cluster cluster;
  AttentionShape shape;
  PlanOptions options;
  Layout layout;
  std::vector<Task> tasks;       // sorted by server, document, q.begin, kv.begin
  std::vector<ServerLoad> load;  // [max(num_workers, num_servers)]
  bool operator==(const Plan&) const = default;
};

/// What a scheduler is asked.
struct PlanRequest {
  NanoBatch nano_batch;
  Cluster cluster;
  AttentionShape shape;
  PlanOptions options;
};

/// Layout, tasks and predicted load. Throws Error(kPlan) for an unknown scheduler or layout (naming
/// the known ones), for values out of range and for a nano-batch that does not fit the caps (with
/// the numbers).
Plan make_plan(const PlanRequest& request);

/// max over servers of load / (total * capacity share); 1 for an empty plan, infinity where a
/// server of capacity 0 has load. For printing and tests.
double max_over_mean(const Plan& plan);
double max_over_mean(const Cluster& cluster, const std::vector<int64_t>& pairs);  // [servers] pairs
/// Load per server, in pairs, if every query were computed where it lives.
std::vector<int64_t> home_load(const Plan& plan);

/// Canonical JSON: sorted keys, no white space but one final newline; the same value gives the same
/// bytes.
std::string plan_to_json(const Plan& plan);
/// Throws Error(kPlan) naming the first field that is missing or wrong.
Plan plan_from_json(std::string_view json);
/// 64-bit hash of the canonical JSON, as 16 hex digits.
std::string plan_hash(const Plan& plan);

}  // namespace distca
