#pragma once
// Every way to make a plan that the tables know (scheduler.cc), so that tests and bench/plan_hashes
// take new ones in by themselves; and the requests whose plans' hashes are pinned.

#include <fmt/format.h>

#include <ostream>
#include <string>
#include <vector>

#include "distca/base/error.h"
#include "distca/base/random.h"
#include "distca/plan/plan_batch_input.h"
#include "distca/plan/scheduler.h"

namespace distca::testing {

/// "balanced/sequential+split-kv"
inline std::string variant_name(const PlanOptions& options) {
  return fmt::format("{}/{}{}{}", options.scheduler, options.layout,
                     options.split_kv ? "+split-kv" : "", options.spread ? "+spread" : "");
}

inline bool takes(const PlanOptions& options) {
  try {
    make_plan({.nano_batch = NanoBatch::from_lengths({1}),
               .cluster = Cluster::in_place(1),
               .shape = {},
               .options = options});
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Each scheduler with each layout it takes, with and without split-KV and spread if it knows
/// them; the tolerance is its own.
inline std::vector<PlanOptions> plan_variants() {
  std::vector<PlanOptions> variants;
  for (const SchedulerEntry& scheduler : schedulers()) {
    for (const LayoutEntry& layout : layouts()) {
      for (const bool split_kv : {false, true}) {
        for (const bool spread : {false, true}) {
          if ((split_kv || spread) && !scheduler.split_kv) continue;
          const PlanOptions options{.scheduler = std::string(scheduler.name),
                                    .layout = std::string(layout.name),
                                    .split_kv = split_kv,
                                    .spread = spread};
          if (takes(options)) variants.push_back(options);
        }
      }
    }
  }
  return variants;
}

}  // namespace distca::testing

namespace distca {
inline std::ostream& operator<<(std::ostream& out, const PlanOptions& options) {
  return out << testing::variant_name(options);
}
}  // namespace distca

namespace distca::testing {

struct NamedRequest {
  std::string name;
  PlanRequest request;
};

/// The five workloads of `folder`, and a small cluster with everything odd about it.
inline std::vector<NamedRequest> pinned_requests(const std::string& folder) {
  std::vector<NamedRequest> requests;
  for (const char* name : {"pretrain_8x128k_0", "pretrain_64x128k_1", "pretrain_64x128k_2",
                           "prolong_64x128k_0", "pretrain_512x128k_0"}) {
    const Workload workload = read_workload(folder + "/" + name + ".json");
    requests.push_back({name,
                        {.nano_batch = workload.nano_batch,
                         .cluster = Cluster::in_place(workload.ranks),
                         .shape = {.num_heads = 4, .num_kv_heads = 1},
                         .options = {}}});
  }
  Random random(3);
  std::vector<int64_t> lengths;
  for (int i = 0; i < 60; ++i) {
    lengths.push_back(1 + static_cast<int64_t>(random.below(i % 8 == 0 ? 30'000 : 2'000)));
  }
  NamedRequest odd{"odd",
                   {.nano_batch = NanoBatch::from_lengths(lengths),
                    .cluster = Cluster::in_place(7),
                    .shape = {.num_heads = 6, .num_kv_heads = 2, .head_dim_qk = 96},
                    .options = {}}};
  odd.request.cluster.capacity = {3, 1, 4, 1, 5, 9, 2, 6};  // server 7 is dedicated
  odd.request.cluster.ranks_per_node = 3;
  odd.request.cluster.memory = {.token_bytes = 1000, .kept_query_bytes = 100, .kept_key_bytes = 70};
  odd.request.shape.mask.window_left = 9'000;
  requests.push_back(odd);
  return requests;
}

/// "SCHEDULER/LAYOUT REQUEST HASH", or what make_plan says instead of a plan.
inline std::string hash_line(const NamedRequest& named) {
  const auto line = [&named](const std::string& result) {
    return fmt::format("{} {} {}", variant_name(named.request.options), named.name, result);
  };
  try {
    return line(plan_hash(make_plan(named.request)));
  } catch (const Error& error) {
    return line(error.what());
  }
}

}  // namespace distca::testing
