// Random batches and clusters for every scheduler and layout in the tables: a valid plan, or a
// refusal that names what cannot be met.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "distca/cost/speeds.h"
#include "distca/plan/plan_testing.h"
#include "distca/plan/plan_variants_testing.h"
#include "distca/plan/validate.h"

namespace distca {
namespace {

using ::testing::IsEmpty;

constexpr int kTrials = 30;  // requests of each kind

int64_t below(Random& random, int64_t bound) { return static_cast<int64_t>(random.below(bound)); }

PlanRequest any_request(Random& random) {
  PlanRequest request =
      testing::request_for(testing::random_lengths(random), 1 + static_cast<int>(random.below(8)));
  return request;
}

/// Sets a cap to a random share, 10 to 119 per cent, of what a plan without caps takes.
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
    {"a_hundred_to_one",
     [](Random& random) {
       PlanRequest request = any_request(random);
       for (int64_t& capacity : request.cluster.capacity)
         capacity = below(random, 2) == 0 ? 100 : 1;
       for (int64_t more = below(random, 3); more > 0; --more)
         request.cluster.capacity.push_back(below(random, 2) == 0 ? 100 : 1);
       return request;
     }},
    {"measured_speeds",
     [](Random& random) {
       PlanRequest request = any_request(random);
       Cluster& cluster = request.cluster;
       Speeds speeds;
       speeds.ranks.resize(cluster.num_workers + below(random, 3));
       for (RankSpeed& speed : speeds.ranks) {
         const int64_t slowness = 1 + below(random, 4);
         speed = {slowness * (1'000'000 + below(random, 9'000'000)),
                  slowness * (1'000'000 + below(random, 1'000'000))};
       }
       const int64_t tokens = request.nano_batch.num_tokens() / cluster.num_workers;
       const bool in_place = below(random, 4) > 0;
       cluster.capacity = even_capacities(
           work_of_step(speeds, cluster.num_workers, static_cast<int>(speeds.ranks.size()),
                        in_place, tokens),
           below(random, 2) == 0 ? BalanceTarget::kAttention : BalanceTarget::kWhole,
           tokens * tokens);
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
       request.shape.mask.window_left = kWindows[random.below(std::size(kWindows))];
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
       request.shape.mask.window_left = 100 + below(random, 3000);
       return request;
     }},
};

/// The demands of this cluster that may be impossible to meet, as a refusal has to name them.
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
  home.options.split_kv = false;
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
  const bool whole = request.shape.mask.window_left < 0 || request.options.scheduler == "balanced";
  return whole && request.profile == nullptr && demands(request.cluster).empty();
}

/// Balances load over capacities as far as blocks of 128 allow: nothing else hinders it.
bool keeps_shares(const PlanRequest& request) {
  const SchedulerEntry& scheduler = find_scheduler(request.options.scheduler);
  const Cluster& cluster = request.cluster;
  return scheduler.capacities && request.profile == nullptr && request.shape.mask.window_left < 0 &&
         cluster.max_send_bytes == 0 && cluster.max_receive_bytes == 0 &&
         cluster.max_memory_bytes == 0;
}

/// Pairs of the costliest block of 128 queries: what moves as a whole.
int64_t largest_block(const Plan& plan) {
  int64_t most = 0;
  for (const Document& document : plan.nano_batch.documents) {
    const int64_t begin = round_down(std::max<int64_t>(0, document.length - 1), kBlockTokens);
    for (const int64_t first : {begin, std::max<int64_t>(0, begin - kBlockTokens)}) {
      const Range rows{first, std::min(first + kBlockTokens, document.length)};
      most = std::max(most, Mask{}.pairs(rows, {0, rows.end}));
    }
  }
  return most;
}

/// Pairs of the cheapest block of any task of a server.
int64_t smallest_block(const Plan& plan, int server) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Task& task : plan.tasks) {
    if (task.server != server) continue;
    const int64_t cut = std::min(task.q.end, round_down(task.q.begin, kBlockTokens) + kBlockTokens);
    least = std::min(least, plan.shape.mask.of_task(task.mask).pairs({task.q.begin, cut}, task.kv));
  }
  return least;
}

/// The server that is furthest above its share exceeds it by at most the tolerance and the
/// costliest block; or a block of it would weigh more, for its capacity, on any other.
void expect_shares(const Plan& plan) {
  const std::vector<int64_t>& capacity = plan.cluster.capacity;
  double sum = 0, total = 0;
  size_t worst = 0;
  for (size_t server = 0; server < capacity.size(); ++server) {
    sum += static_cast<double>(capacity[server]);
    total += static_cast<double>(plan.load[server].pairs);
    if (plan.load[server].pairs * capacity[worst] > plan.load[worst].pairs * capacity[server]) {
      worst = server;
    }
  }
  const auto load = static_cast<double>(plan.load[worst].pairs);
  const auto own = static_cast<double>(capacity[worst]);
  const double bound = total * own / sum * plan.options.most_over_share() +
                       2 * static_cast<double>(largest_block(plan));
  if (load <= bound) return;
  const auto block = static_cast<double>(smallest_block(plan, static_cast<int>(worst)));
  for (size_t other = 0; other < capacity.size(); ++other) {
    if (other == worst) continue;
    EXPECT_GE((static_cast<double>(plan.load[other].pairs) + block) * own,
              load * static_cast<double>(capacity[other]))
        << "server " << worst << " of capacity " << own << " has " << load << ", above " << bound
        << "; " << other << " of capacity " << capacity[other] << " could take a block";
  }
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
          const double bound = plan->options.most_over_share();
          const double home = max_over_mean(plan->cluster, testing::home_load(*plan));
          EXPECT_LE(max_over_mean(*plan), std::max(bound, home));
        }
        if (keeps_shares(request)) {
          expect_shares(*plan);
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

/// The figures by which plain packing is compared: bytes that travel, the largest load over its
/// share, the most tokens of a worker.
std::array<double, 3> price_of(const Plan& plan) {
  int64_t bytes = 0, tokens = 0;
  for (const ServerLoad& load : plan.load) bytes += load.receive_bytes + load.o_send_bytes;
  for (int worker = 0; worker < plan.layout.num_workers(); ++worker)
    tokens = std::max(tokens, plan.layout.num_tokens(worker));
  return {static_cast<double>(bytes), max_over_share(plan), static_cast<double>(tokens)};
}

TEST_P(PlanProperty, plain_packing_is_not_at_least_as_good_in_all_and_better_in_something) {
  if (GetParam().scheduler != "balanced" || GetParam().layout == "sequential") return;
  for (const Kind& kind : kKinds) {
    Random random(12);
    for (int trial = 0; trial < kTrials; ++trial) {
      PlanRequest request = kind.make(random);
      std::string refusal;
      const PlanOptions options = GetParam();
      request.options = {.scheduler = "local"};
      const std::optional<Plan> packed = plan_or_refusal(request, refusal);
      request.options = options;
      const std::optional<Plan> plan = plan_or_refusal(request, refusal);
      if (!packed || !plan) continue;
      const std::array<double, 3> ours = price_of(*plan), theirs = price_of(*packed);
      bool as_good = true;
      for (size_t i = 0; i < ours.size(); ++i) as_good &= theirs[i] <= ours[i];
      EXPECT_FALSE(as_good && theirs != ours) << fmt::format(
          "{}, trial {}: bytes, load, tokens {} {:.4f} {}, packed {} {:.4f} {}", kind.name, trial,
          ours[0], ours[1], ours[2], theirs[0], theirs[1], theirs[2]);
    }
  }
}

/// Every document cut anywhere into up to eight pieces, which lie anywhere: often within a block,
/// some of one token, ranks with hardly any token.
Layout any_layout(const PlanRequest& request, Random& random) {
  Layout layout;
  layout.workers.resize(request.cluster.num_workers);
  for (const Document& document : request.nano_batch.documents) {
    const int64_t most = std::max<int64_t>(1, ceil_div(document.length, 1 + below(random, 8)));
    for (Range rest{0, document.length}; !rest.empty();) {
      const int64_t end = std::min(rest.end, rest.begin + 1 + below(random, most));
      layout.workers[random.below(layout.workers.size())].push_back(
          {document.id, {rest.begin, end}});
      rest.begin = end;
    }
  }
  return layout;
}

TEST_P(PlanProperty, layouts_that_are_cut_at_any_token_have_valid_plans) {
  const SchedulerEntry& scheduler = find_scheduler(GetParam().scheduler);
  if (scheduler.only_this_layout || GetParam().layout != "sequential") return;
  const int trials = GetParam().spread ? kTrials / 5 : kTrials;  // it searches for long
  for (const Kind& kind : kKinds) {
    Random random(13);
    for (int trial = 0; trial < trials; ++trial) {
      SCOPED_TRACE(fmt::format("{}, trial {}", kind.name, trial));
      PlanRequest request = kind.make(random);
      Cluster& cluster = request.cluster;
      cluster.max_tokens_per_worker = cluster.max_send_bytes = cluster.max_receive_bytes =
          cluster.max_memory_bytes = 0;
      if (std::ranges::count(cluster.capacity, 0) > 0 && !scheduler.capacities) continue;
      request.options = GetParam();
      const Plan plan = make_plan(request, any_layout(request, random));
      ValidateOptions options = checks(request);
      options.even_tokens = options.whole_blocks = false;
      EXPECT_THAT(validate(plan, options), IsEmpty());
      if (!balances(request)) continue;
      const double home = max_over_mean(plan.cluster, testing::home_load(plan));
      EXPECT_LE(max_over_mean(plan), std::max(plan.options.most_over_share(), home));
    }
  }
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
