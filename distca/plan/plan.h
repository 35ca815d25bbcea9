#pragma once
// The plan of one nano-batch: layout, tasks, predicted load and bytes. A plain value: printable,
// byte-stable as JSON (docs/plan_format.md), hashed. Every rank computes it from the same inputs.
// Any thread.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "distca/base/integers.h"
#include "distca/batch/document.h"
#include "distca/batch/layout.h"
#include "distca/cost/attention_cost.h"
#include "distca/cost/attention_profile.h"
#include "distca/cost/cluster.h"

namespace distca {

/// Queries x keys of one document computed by one server (paper 4.1, CA-task).
/// The query range lies within one segment of the layout, so its rows are contiguous at home.
struct Task {
  int64_t document = 0;
  Range q;   // positions in the document
  Range kv;  // positions in the document. Whole-context: all keys the queries may see, maybe more.
             // Split-KV: a part of them, other tasks have the rest; merged by LSE at home
  int server = 0;
  MaskType mask = MaskType::kCausal;
  bool operator==(const Task&) const = default;
};

struct PlanOptions {
  static constexpr int64_t kOwnTolerance = INT64_MIN;
  std::string scheduler = "balanced";
  std::string layout = {};  // "": the scheduler's own choice; a plan has the name
  /// max/mean of load over capacity, minus 1, in millionths; kOwnTolerance: the scheduler's own
  /// choice; a plan has the number.
  int64_t tolerance_ppm = kOwnTolerance;
  bool split_kv = false;  // tasks may have part of the keys (gives up plan-independent bits)
  bool spread = false;  // lowest largest send and receive, for some 10 per cent more bytes in all;
                        // with split-KV
  std::string price = "pairs";  // load is in pairs, or in ns: "NAME@HASH" of a profile (make_plan)
  bool by_time() const { return price != "pairs"; }
  bool operator==(const PlanOptions&) const = default;
};

/// Predicted, one layer; bytes of forward.
struct ServerLoad {
  int64_t pairs = 0;            // (query, key) pairs
  int64_t time_ns = 0;          // of its tasks, forward and backward; 0 without a profile
  int64_t send_bytes = 0;       // Q, K, V sent away from this rank
  int64_t receive_bytes = 0;    // Q, K, V received by this rank
  int64_t o_send_bytes = 0;     // O returned by this rank; byte counts leave LSE out
  int64_t o_receive_bytes = 0;  // O that comes home to this rank
  int64_t memory_bytes = 0;     // of home and received tokens, all layers (cost/memory_price.h)
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
  std::shared_ptr<const AttentionProfile> profile = {};  // none: load is counted in pairs
};

/// Layout, tasks and predicted load. Throws Error(kPlan) for an unknown scheduler or layout (naming
/// the known ones), for values out of range and for a nano-batch that does not fit the caps (with
/// the numbers).
Plan make_plan(const PlanRequest& request);
/// Tasks on a layout that exists: for layers with another window than the plan's.
Plan make_plan(const PlanRequest& request, Layout layout);

/// max over servers of load / (total * capacity share); 1 for an empty plan, infinity where a
/// server of capacity 0 has load. For printing and tests.
double max_over_mean(const Plan& plan);       // by pairs
double max_over_mean_time(const Plan& plan);  // by time_ns; 1 without a profile
double max_over_mean(const Cluster& cluster, const std::vector<int64_t>& load);  // [servers]
/// Pairs per server under plain packing: documents laid in order, every query computed where it
/// lives. What a plan is compared with.
std::vector<int64_t> packed_load(const Plan& plan);

/// Canonical JSON: sorted keys, no white space but one final newline; the same value gives the same
/// bytes.
std::string plan_to_json(const Plan& plan);
/// Throws Error(kPlan) naming the first field that is missing or wrong.
Plan plan_from_json(std::string_view json);
/// 64-bit hash of the canonical JSON, as 16 hex digits.
std::string plan_hash(const Plan& plan);

}  // namespace distca
