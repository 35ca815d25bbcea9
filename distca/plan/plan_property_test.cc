// Random batches and clusters for every scheduler and layout in the tables: a valid plan, or a
// refusal that names what cannot be met.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "distca/plan/plan_testing.h"
#include "distca/plan/plan_variants_testing.h"
#include "distca/plan/validate.h"

namespace distca {
namespace {

using ::testing::IsEmpty;

constexpr int kTrials = 30;  // of each kind

int64_t below(Random& random, int64_t bound) { return static_cast<int64_t>(random.below(bound)); }

PlanRequest any_request(Random& random) {
  PlanRequest request =
      testing::request_for(testing::random_lengths(random), 1 + static_cast<int>(random.below(8)));
  return request;
}

/// What the caps are set to: this share of what a plan without caps takes.
void tighten(int64_t& cap, int64_t taken, Random& random) {
  cap = std::max<int64_t>(1, taken * (10 + below(random, 110)) / 100);
}

int64_t most(const Plan& plan, int64_t ServerLoad::*figure) {
  int64_t most = 0;
  for (const ServerLoad& load : plan.load) most = std::max(most, load.*figure);
  return most;
}

Plan local_plan(PlanRequest request) {
  request.options = {.scheduler = "local"};
  return make_plan(request);
}

struct Kind {
  const char* name;
  std::function<PlanRequest(Random&)> make;
};

const Kind kKinds[] = {
    {"anything", any_request},
    {"no_documents",
     [](Random& random) {
       return testing::request_for({}, 1 + static_cast<int>(random.below(8)));
     }},
    {"empty_documents",
     [](Random& random) {
       return testing::request_for({0, below(random, 2) * 300, 0},
                                   1 + static_cast<int>(random.below(4)));
     }},
    {"one_token",
     [](Random& random) {
       return testing::request_for({1}, 1 + static_cast<int>(random.below(8)));
     }},
    {"all_equal",
     [](Random& random) {
       return testing::request_for(
           std::vector<int64_t>(1 + random.below(40), 1 + below(random, 3000)),
           1 + static_cast<int>(random.below(12)));
     }},
    {"one_giant",
     [](Random& random) {
       return testing::request_for({100'000 + below(random, 100'000)},
                                   1 + static_cast<int>(random.below(24)));
     }},
    {"one_giant_among_dwarfs",
     [](Random& random) {
       std::vector<int64_t> lengths(200);
       for (int64_t& length : lengths) length = 1 + below(random, 300);
       lengths[random.below(lengths.size())] = 50'000 + below(random, 20'000);
       return testing::request_for(lengths, 2 + static_cast<int>(random.below(15)));
     }},
    {"more_servers_than_blocks",
     [](Random& random) {
       return testing::request_for({1 + below(random, 700), 1 + below(random, 400)},
                                   12 + static_cast<int>(random.below(40)));
     }},
    {"uneven_capacities",
     [](Random& random) {
       PlanRequest request = any_request(random);
       for (int64_t& capacity : request.cluster.capacity) capacity = 1 + below(random, 9);
       return request;
     }},
    {"dedicated_servers",
     [](Random& random) {
       PlanRequest request = any_request(random);
       for (int64_t more = 1 + below(random, 3); more > 0; --more)
         request.cluster.capacity.push_back(1 + below(random, 20));
       return request;
     }},
    {"workers_that_do_not_serve",
     [](Random& random) {
       PlanRequest request = any_request(random);
       for (int64_t& capacity : request.cluster.capacity) capacity = below(random, 2);
       request.cluster.capacity.push_back(1 + below(random, 3));
       return request;
     }},
    {"nodes",
     [](Random& random) {
       PlanRequest request = any_request(random);
       request.cluster.ranks_per_node = 1 + static_cast<int>(random.below(4));
       request.cluster.inside = {.latency_ns = 5'000, .bytes_per_us = 400'000};
       return request;
     }},
    {"windows",
     [](Random& random) {
       constexpr int64_t kWindows[] = {0, 1, 127, 128, 500, 1000, 4096, 1 << 20};
       PlanRequest request = any_request(random);
       request.shape.window_left = kWindows[random.below(std::size(kWindows))];
       return request;
     }},
    {"priced_in_time",
     [](Random& random) {
       PlanRequest request = any_request(random);
       request.profile = std::make_shared<const AttentionProfile>(testing::small_profile());
       return request;
     }},
    {"tight_tokens",
     [](Random& random) {
       PlanRequest request = any_request(random);
       const int64_t mean = request.nano_batch.num_tokens() / request.cluster.num_workers;
       request.cluster.max_tokens_per_worker = std::max<int64_t>(1, mean + below(random, 40) - 10);
       return request;
     }},
    {"tight_memory",
     [](Random& random) {
       PlanRequest request = any_request(random);
       request.cluster.memory = {
           .token_bytes = 1000, .kept_query_bytes = 100, .kept_key_bytes = 50};
       // From what home tokens alone take to a little more.
       request.cluster.max_memory_bytes = 1 + most(local_plan(request), &ServerLoad::memory_bytes) *
                                                  (95 + below(random, 40)) / 100;
       return request;
     }},
    {"tight_send",
     [](Random& random) {
       PlanRequest request = any_request(random);
       request.cluster.max_send_bytes = 1 + below(random, 4 << 20);
       return request;
     }},
    {"tight_receive",
     [](Random& random) {
       PlanRequest request = any_request(random);
       request.cluster.max_receive_bytes = 1 + below(random, 4 << 20);
       return request;
     }},
    {"all_at_once",
     [](Random& random) {
       PlanRequest request = any_request(random);
       Cluster& cluster = request.cluster;
       for (int64_t& capacity : cluster.capacity) capacity = 1 + below(random, 3);
       cluster.capacity.push_back(1);
       cluster.ranks_per_node = 2;
       cluster.memory = {.token_bytes = 1000, .kept_query_bytes = 100, .kept_key_bytes = 50};
       const Plan local = local_plan(request);
       tighten(cluster.max_memory_bytes, most(local, &ServerLoad::memory_bytes), random);
       cluster.max_send_bytes = 1 + below(random, 8 << 20);
       cluster.max_receive_bytes = 1 + below(random, 8 << 20);
       request.shape.window_left = 100 + below(random, 3000);
       return request;
     }},
};

/// What of this cluster may be impossible to meet, as a refusal has to name it.
std::vector<std::string> demands(const Cluster& cluster) {
  std::vector<std::string> names;
  if (cluster.max_tokens_per_worker > 0) names.push_back("max_tokens_per_worker");
  if (cluster.max_send_bytes > 0) names.push_back("max_send_bytes");
  if (cluster.max_receive_bytes > 0) names.push_back("max_receive_bytes");
  if (cluster.max_memory_bytes > 0) names.push_back("max_memory_bytes");
  if (std::ranges::count(cluster.capacity, 0) > 0) names.push_back("capacity 0");
  return names;
}

ValidateOptions checks(const PlanRequest& request) {
  ValidateOptions options = checks_of(find_scheduler(request.options.scheduler));
  options.profile = request.profile.get();
  return options;
}

/// The plan, or what make_plan says instead.
std::optional<Plan> plan_or_refusal(const PlanRequest& request, std::string& refusal) {
  try {
    return make_plan(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPlan) << error.what();
    refusal = error.what();
    return std::nullopt;
  }
}

/// Can be met after all: by the plan that is made without caps or, for `balanced`, which knows the
/// caps, by leaving every query where it lives (a layout that spreads is another one).
bool could_be_met(const PlanRequest& request) {
  std::string refusal;
  PlanRequest home = request;
  home.options.scheduler = "local";
  home.options.key_sub_ranges = false;
  if (request.options.scheduler == "balanced" && !request.options.spread &&
      plan_or_refusal(home, refusal)) {
    return true;
  }

  PlanRequest free = request;
  Cluster& cluster = free.cluster;
  cluster.max_tokens_per_worker = cluster.max_send_bytes = cluster.max_receive_bytes =
      cluster.max_memory_bytes = 0;
  std::optional<Plan> plan = plan_or_refusal(free, refusal);
  if (!plan) return false;
  plan->cluster = request.cluster;
  return validate(*plan, checks(request)).empty();
}

/// Schedulers take care not to make a load worse, as they count it: in pairs, and but for
/// `balanced` without windows. A cap may leave no choice.
bool balances(const PlanRequest& request) {
  const bool whole = request.shape.window_left < 0 || request.options.scheduler == "balanced";
  return whole && request.profile == nullptr && demands(request.cluster).empty() &&
         find_scheduler(request.options.scheduler).cuts;
}

class PlanProperty : public ::testing::TestWithParam<PlanOptions> {};

TEST_P(PlanProperty, a_valid_plan_or_a_refusal_that_names_what_cannot_be_met) {
  std::string tally;
  for (const Kind& kind : kKinds) {
    Random random(11);
    int refused = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      SCOPED_TRACE(fmt::format("{}, trial {}", kind.name, trial));
      PlanRequest request = kind.make(random);
      request.options = GetParam();
      std::string refusal;
      const std::optional<Plan> plan = plan_or_refusal(request, refusal);
      if (plan) {
        EXPECT_THAT(validate(*plan, checks(request)), IsEmpty());
        if (balances(request)) {
          const double bound = 1 + static_cast<double>(plan->options.tolerance_ppm) * 1e-6;
          const double home = max_over_mean(plan->cluster, testing::home_load(*plan));
          EXPECT_LE(max_over_mean(*plan), std::max(bound, home));
        }
        continue;
      }
      ++refused;
      const std::vector<std::string> names = demands(request.cluster);
      EXPECT_TRUE(std::ranges::any_of(names, [&refusal](const std::string& name) {
        return refusal.find(name) != std::string::npos;
      })) << refusal;
      EXPECT_FALSE(could_be_met(request)) << "could be met: " << refusal;
    }
    if (refused > 0) tally += fmt::format(" {} {}", kind.name, refused);
  }
  fmt::print("{}: refused of {} each:{}\n", testing::variant_name(GetParam()), kTrials, tally);
}

std::string test_name(const ::testing::TestParamInfo<PlanOptions>& info) {
  std::string name = testing::variant_name(info.param);
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(, PlanProperty, ::testing::ValuesIn(testing::plan_variants()), test_name);

}  // namespace
}  // namespace distca
