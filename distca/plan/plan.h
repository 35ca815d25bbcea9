#pragma once
// A plan says, for one nano-batch, which tokens live on which worker (the layout), which server
// computes which queries against which keys (the tasks), and the load and bytes that are predicted.
//
//   const Plan plan = make_plan({.nano_batch = NanoBatch::from_lengths({6000, 500, 1692}),
//                                .cluster = Cluster::in_place(4),
//                                .shape = {},
//                                .options = {.tolerance_ppm = 20'000}});
//   fmt::print("{:.3f} {}\n", max_over_mean(plan), plan_hash(plan));
//
// A plan is a plain value. It can be printed and hashed, and its JSON has the same bytes on every
// machine (docs/plan_format.md). Every rank computes it from the same inputs. Any thread may call
// the functions.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "distca/base/integers.h"
#include "distca/batch/document.h"
#include "distca/batch/layout.h"
#include "distca/cost/attention_profile.h"
#include "distca/cost/attention_shape.h"
#include "distca/cost/cluster.h"

namespace distca {

/// Queries x keys of one document that one server computes (paper 4.1, CA-task). The queries lie
/// within one segment of the layout, so their rows are contiguous at home.
struct Task {
  int64_t document = 0;
  Range q;  // positions in the document
  /// Positions in the document. A whole-context task has all keys that its queries may see, and
  /// maybe more. With split-KV, a task may have a part of them. Other tasks have the rest, and the
  /// results are merged by LSE at home.
  Range kv;
  int server = 0;
  MaskKind mask = MaskKind::kCausal;
  bool operator==(const Task&) const = default;
};

/// How a plan is made. A finished plan has the names and numbers that were used.
struct PlanOptions {
  /// A name of schedulers() (scheduler.h). The others are there to be compared with.
  std::string scheduler = "balanced";
  /// A name of layouts(). Empty means the scheduler's own choice.
  std::string layout = {};
  /// By how much a server may exceed its share of the load, in millionths: max/mean of load over
  /// capacity, minus 1. Lower it for an evener load, raise it for fewer bytes. Not set: the
  /// scheduler's own choice, which for `balanced` is 20,000.
  std::optional<int64_t> tolerance_ppm = {};
  /// True if a task may have a part of its queries' keys. Then fewer bytes travel, but the bits of
  /// O depend on the plan. Only for `balanced`.
  bool split_kv = false;
  /// If true, the largest send and receive of any rank are lowered, for some 10 per cent more bytes
  /// in all. Turn it on where the busiest link is the limit. It implies split_kv.
  bool spread = false;
  /// The unit of load: pairs, or the ns of a profile, named "NAME@HASH". make_plan sets it.
  std::string price = "pairs";
  bool by_time() const { return price != "pairs"; }
  /// The largest load over its share that the tolerance allows. Only where the tolerance is set.
  double most_over_share() const { return 1 + static_cast<double>(tolerance_ppm.value()) * 1e-6; }
  bool operator==(const PlanOptions&) const = default;
};

/// The prediction for one rank and one layer. Bytes are those of forward and leave LSE out.
struct ServerLoad {
  int64_t pairs = 0;            // (query, key) pairs
  int64_t time_ns = 0;          // time of its tasks, forward and backward; 0 without a profile
  int64_t send_bytes = 0;       // Q, K, V that this rank sends away
  int64_t receive_bytes = 0;    // Q, K, V that this rank receives
  int64_t o_send_bytes = 0;     // O that this rank returns
  int64_t o_receive_bytes = 0;  // O that comes home to this rank
  int64_t memory_bytes = 0;     // memory of home and received tokens, all layers (memory_price.h)
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

/// A request for a plan.
struct PlanRequest {
  NanoBatch nano_batch;
  Cluster cluster;
  AttentionShape shape;
  PlanOptions options;
  /// Load is the time that this profile predicts. Without one, load is counted in pairs.
  std::shared_ptr<const AttentionProfile> profile = {};
  /// How often scheduler `balanced` takes moves back and makes better ones. Fewer take less time
  /// and move up to 2 % more bytes.
  int rounds = kMostRounds;
  static constexpr int kMostRounds = 96;
  /// If true, `balanced` chooses among moves of the same cost the one to the server that has
  /// received least, not the one to the server that it fills best. For clusters in which many
  /// workers hold no tokens.
  bool even_receives = false;
};

/// Makes the layout, the tasks and the predicted load. Throws Error(kPlan) for an unknown scheduler
/// or layout (and names the known ones), for values out of range, and for a nano-batch that does
/// not fit the caps (with the numbers).
Plan make_plan(const PlanRequest& request);
/// Makes the tasks on a given layout: the caller's own, or that of another plan for layers with
/// another window.
Plan make_plan(const PlanRequest& request, Layout layout);
/// The layout of make_plan(request), without its tasks. Throws as make_plan does for the request.
Layout make_layout(const PlanRequest& request);

/// The largest load of a server, over its share of the total by capacity. It is 1 for an empty
/// plan, and infinity where a server of capacity 0 has load. For printing and tests.
double max_over_mean(const Plan& plan, int64_t ServerLoad::*figure = &ServerLoad::pairs);
double max_over_share(const Plan& plan);  // by time_ns with a profile, else by pairs
double max_over_mean(const Cluster& cluster, const std::vector<int64_t>& load);  // [servers]
/// A rank's load in the unit of the plan: time_ns with a profile, else pairs.
int64_t load_of(const Plan& plan, size_t rank);
/// [ranks] The pairs of each server under plain packing: documents are laid out in their order, and
/// every query is computed where it lives. Plans are compared with it.
std::vector<int64_t> packed_load(const Plan& plan);

/// Canonical JSON: sorted keys, no white space but one final newline. The same value gives the same
/// bytes.
std::string plan_to_json(const Plan& plan);
/// Throws Error(kPlan) that names the first field that is missing or wrong.
Plan plan_from_json(std::string_view json);
/// The 64-bit hash of the canonical JSON, as 16 hex digits.
std::string plan_hash(const Plan& plan);

}  // namespace distca
