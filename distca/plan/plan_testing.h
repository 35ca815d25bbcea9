#pragma once
// Plans for tests: of the schedulers, and at random.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "distca/base/error.h"
#include "distca/base/random.h"
#include "distca/plan/accounting.h"
#include "distca/plan/plan.h"
#include "distca/plan/plan_batch_input.h"
#include "distca/plan/scheduler.h"

namespace distca::testing {

inline constexpr int64_t k1K = 1024;

inline PlanRequest request_for(const std::vector<int64_t>& lengths, int workers,
                               const std::string& scheduler = "greedy",
                               std::optional<int64_t> tolerance_ppm = 50'000) {
  return {.nano_batch = NanoBatch::from_lengths(lengths),
          .cluster = Cluster::in_place(workers),
          .shape = {.num_heads = 4, .num_kv_heads = 1},
          .options = {.scheduler = scheduler, .tolerance_ppm = tolerance_ppm}};
}

/// The error message of a request that no plan can be made for; "no error" for any other.
inline std::string refusal(const PlanRequest& request) {
  try {
    make_plan(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPlan);
    return error.what();
  }
  return "no error";
}

/// One of the five workload files, for Llama-8B on one of 8 tensor-parallel ranks.
inline PlanRequest workload_request(const std::string& name) {
  const Workload workload = read_workload("distca/plan/testdata/workloads/" + name + ".json");
  PlanRequest request = request_for({}, workload.ranks);
  request.nano_batch = workload.nano_batch;
  return request;
}

/// Nanoseconds that grow with queries and keys: what a profile looks like, not a machine's.
inline AttentionProfile small_profile() {
  AttentionProfile profile{.machine = "none", .path = "made", .q_tokens = {128, 8192}};
  profile.shape = {.num_heads = 4, .num_kv_heads = 1};
  profile.kv_tokens = {128, 8192};
  profile.forward_ns = {1'000, 50'000, 0, 1'500'000};
  profile.backward_ns = {2'500, 120'000, 0, 4'000'000};
  return profile;
}

/// Mostly short, a few long, odd lengths; sometimes none.
inline std::vector<int64_t> random_lengths(Random& random) {
  std::vector<int64_t> lengths(random.below(9));
  for (int64_t& length : lengths) {
    const uint64_t most = random.below(4) == 0 ? 6000 : 700;
    length = 1 + static_cast<int64_t>(random.below(most));
  }
  return lengths;
}

/// [0, length) cut at random multiples of 128 into at most `pieces`.
inline std::vector<Range> random_cuts(const Range& whole, uint64_t pieces, Random& random) {
  std::vector<Range> result;
  for (Range rest = whole; !rest.empty();) {
    const bool last = result.size() + 1 >= pieces;
    const int64_t cut =
        round_down(rest.begin, kBlockTokens) +
        kBlockTokens * (1 + static_cast<int64_t>(random.below(rest.size() / kBlockTokens + 1)));
    const int64_t end = last ? rest.end : std::min(rest.end, cut);
    result.push_back({rest.begin, end});
    rest.begin = end;
  }
  return result;
}

/// Pairs per server if every query were computed where it lives.
inline std::vector<int64_t> home_load(const Plan& plan) {
  std::vector<int64_t> pairs(plan.load.size(), 0);
  for (int worker = 0; worker < plan.layout.num_workers(); ++worker) {
    for (const Segment& segment : plan.layout.workers[worker]) {
      pairs[worker] += plan.shape.mask.pairs(segment.tokens, {0, segment.tokens.end});
    }
  }
  return pairs;
}

/// Sorts the tasks and fills in the load.
inline void complete(Plan& plan) {
  std::sort(plan.tasks.begin(), plan.tasks.end(), [](const Task& a, const Task& b) {
    return std::tie(a.server, a.document, a.q.begin, a.kv.begin) <
           std::tie(b.server, b.document, b.q.begin, b.kv.begin);
  });
  plan.load = account(plan);
}

/// Valid but for even tokens: documents cut anywhere, pieces anywhere (some workers empty), tasks
/// anywhere, some with only part of the keys. The last `dedicated` servers hold no tokens.
inline Plan random_plan(const std::vector<int64_t>& lengths, int workers, int dedicated,
                        Random& random) {
  Plan plan;
  plan.nano_batch = NanoBatch::from_lengths(lengths);
  plan.options.split_kv = true;
  plan.cluster.num_workers = workers;
  plan.cluster.capacity.assign(workers + dedicated, 1);
  plan.shape = {.num_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 8};
  plan.layout.workers.resize(workers);
  const uint64_t holders = 1 + random.below(workers);
  for (const Document& document : plan.nano_batch.documents) {
    for (const Range& tokens : random_cuts({0, document.length}, 6, random)) {
      auto& segments = plan.layout.workers[random.below(holders)];
      segments.insert(
          segments.begin() + static_cast<std::ptrdiff_t>(random.below(segments.size() + 1)),
          {document.id, tokens});
      for (const Range& q : random_cuts(tokens, 3, random)) {
        for (const Range& kv : random_cuts({0, q.end}, random.below(2) == 0 ? 1 : 3, random)) {
          plan.tasks.push_back({.document = document.id,
                                .q = q,
                                .kv = kv,
                                .server = static_cast<int>(random.below(workers + dedicated))});
        }
      }
    }
  }
  complete(plan);
  return plan;
}

inline Plan random_plan(int workers, int dedicated, Random& random) {
  const std::vector<int64_t> lengths = random_lengths(random);
  return random_plan(lengths, workers, dedicated, random);
}

/// Cuts most tasks at random into one with all queries and a part of the keys, and two with part of
/// the queries and the rest of the keys, each at a random server: rows of a task differ in who else
/// computes a part of them.
inline void cut_tasks(Plan& plan, Random& random) {
  const std::vector<Task> whole = std::move(plan.tasks);
  plan.tasks.clear();
  plan.options.split_kv = true;
  const auto cut = [&random](const Range& range) {
    return random_cuts(range, 2, random).front().end;
  };
  for (const Task& task : whole) {
    const auto add = [&](const Range& q, const Range& kv) {
      if (q.empty() || kv.empty() || kv.begin >= q.end) return;  // no pair
      Task part = task;
      part.q = q;
      part.kv = kv;
      part.server = static_cast<int>(random.below(plan.cluster.num_servers()));
      plan.tasks.push_back(part);
    };
    const int64_t row = cut(task.q), key = cut(task.kv);
    add(task.q, {task.kv.begin, key});
    add({task.q.begin, row}, {key, task.kv.end});
    add({row, task.q.end}, {key, task.kv.end});
  }
  complete(plan);
}

}  // namespace distca::testing
