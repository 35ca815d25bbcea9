#include "distca/plan/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "distca/plan/plan_testing.h"

namespace distca {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

PlanRequest good_request() {
  PlanRequest request = testing::request_for({5000, 1000, 333, 2000}, 3);
  request.cluster.memory = {.token_bytes = 100, .kept_query_bytes = 10, .kept_key_bytes = 7};
  return request;
}

TEST(Validate, a_good_plan_has_no_violation) {
  EXPECT_THAT(validate(make_plan(good_request())), IsEmpty());
}

TEST(Validate, a_good_plan_within_its_caps_has_no_violation) {
  PlanRequest request = good_request();
  request.cluster.max_tokens_per_worker = 2800;
  request.cluster.max_send_bytes = 8 << 20;
  request.cluster.max_receive_bytes = 8 << 20;
  request.cluster.max_memory_bytes = 1 << 20;
  EXPECT_THAT(validate(make_plan(request)), IsEmpty());
}

struct Damage {
  const char* name;
  const char* reported;
  std::function<void(Plan&)> inflict;
};

void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

class BrokenPlan : public ::testing::TestWithParam<Damage> {};

TEST_P(BrokenPlan, is_reported) {
  Plan plan = make_plan(good_request());
  ASSERT_THAT(validate(plan), IsEmpty());
  GetParam().inflict(plan);
  EXPECT_THAT(validate(plan), Contains(HasSubstr(GetParam().reported)));
}

/// The first task with more than two blocks of queries.
Task& long_task(Plan& plan) {
  return *std::find_if(plan.tasks.begin(), plan.tasks.end(),
                       [](const Task& task) { return task.q.size() > 2 * kBlockTokens; });
}

Damage claim(const char* name, const char* reported, int64_t ServerLoad::*figure) {
  return {name, reported, [figure](Plan& plan) { plan.load[1].*figure += 1; }};
}

const Damage kDamages[] = {
    // The layout.
    {"token_without_home", "no worker holds",
     [](Plan& plan) { plan.layout.workers[1].pop_back(); }},
    {"token_with_two_homes", "is held twice",
     [](Plan& plan) { plan.layout.workers[0].push_back(plan.layout.workers[1][0]); }},
    {"segment_of_an_unknown_document", "layout of worker 0: there is no document 9",
     [](Plan& plan) { plan.layout.workers[0][0].document = 9; }},
    {"segment_beyond_the_document", "is not a range of document 0 with 5000 tokens",
     [](Plan& plan) { plan.layout.workers[0][0].tokens.end = 5001; }},
    {"segment_cut_anywhere", "layout of worker 0: document 0 is cut at",
     [](Plan& plan) { plan.layout.workers[0][0].tokens.end -= 1; }},
    {"uneven_tokens", "not within 128",
     [](Plan& plan) {
       auto& from = plan.layout.workers[1];
       plan.layout.workers[0].push_back(from.back());
       from.pop_back();
     }},
    {"worker_missing", "the layout has 2 workers, the cluster 3",
     [](Plan& plan) { plan.layout.workers.pop_back(); }},
    {"document_misnumbered", "document 1 has id 2",
     [](Plan& plan) { plan.nano_batch.documents[1].id = 2; }},
    {"document_of_negative_length", "document 1 has -1 tokens",
     [](Plan& plan) { plan.nano_batch.documents[1].length = -1; }},
    {"nano_batch_of_too_many_tokens", "a nano-batch of more than 1073741824 tokens",
     [](Plan& plan) { plan.nano_batch.documents[1].length = int64_t{1} << 30; }},
    // The tasks.
    {"task_dropped", "computed by no task", [](Plan& plan) { plan.tasks.pop_back(); }},
    {"task_twice", "computed twice",
     [](Plan& plan) { plan.tasks.insert(plan.tasks.begin() + 1, plan.tasks[0]); }},
    {"queries_short", "computed by no task",
     [](Plan& plan) { long_task(plan).q.end -= kBlockTokens; }},
    {"keys_short", "computed by no task",
     [](Plan& plan) {
       plan.options.split_kv = true;
       long_task(plan).kv.end -= kBlockTokens;
     }},
    {"first_keys_left_out", "computed by no task",
     [](Plan& plan) {
       plan.options.split_kv = true;
       long_task(plan).kv.begin += kBlockTokens;
     }},
    {"keys_parted_without_leave", "that its queries see, split_kv is off",
     [](Plan& plan) {
       Task high = plan.tasks[0];
       plan.tasks[0].kv.end = high.kv.begin = kBlockTokens;
       plan.tasks.insert(plan.tasks.begin() + 1, high);
     }},
    {"window_wider_than_the_keys", "computed by no task",
     [](Plan& plan) {
       plan.options.split_kv = true;
       plan.shape.mask.window_left = 1000;
       Task& last = *std::find_if(plan.tasks.begin(), plan.tasks.end(),
                                  [](const Task& task) { return task.q.begin > 2000; });
       last.kv.begin = round_up(last.q.begin - 1000, kBlockTokens) + kBlockTokens;
     }},
    {"mask_that_is_not_causal", "the mask of the shape is not causal",
     [](Plan& plan) { plan.shape.mask.kind = MaskKind::kFull; }},
    {"full_mask", "lets queries see later keys",
     [](Plan& plan) { plan.tasks[0].mask = MaskKind::kFull; }},
    {"full_mask_beyond_the_window", "lets queries see keys before the window 100",
     [](Plan& plan) {
       plan.shape.mask.window_left = 100;
       Task& task = plan.tasks.back();
       task = {task.document, {128, 256}, {0, 128}, task.server, MaskKind::kFull};
     }},
    {"queries_of_two_segments", "does not lie in one segment",
     [](Plan& plan) {
       for (Task& task : plan.tasks) {
         if (task.document == 0) task.q = task.kv = {0, 5000};
       }
     }},
    {"odd_cut", "queries of task 0: document 0 is cut at 1,",
     [](Plan& plan) { plan.tasks[0].q.begin = 1; }},
    {"odd_key_cut", "keys of task 0: document 0 is cut at 1,",
     [](Plan& plan) { plan.tasks[0].kv.begin = 1; }},
    {"unknown_server", "there is no server 3", [](Plan& plan) { plan.tasks.back().server = 3; }},
    {"task_of_an_unknown_document", "queries of task 0: there is no document 9",
     [](Plan& plan) { plan.tasks[0].document = 9; }},
    {"keys_beyond_the_document", "keys of task 0: [0, 100000) is not a range of document",
     [](Plan& plan) { plan.tasks[0].kv.end = 100'000; }},
    {"not_sorted", "are not sorted",
     [](Plan& plan) { std::swap(plan.tasks[0], plan.tasks.back()); }},
    // Claimed figures.
    claim("pairs_claimed_wrong", "rank 1: pairs", &ServerLoad::pairs),
    claim("time_claimed_without_a_profile", "rank 1: time_ns 1 claimed, 0 found",
          &ServerLoad::time_ns),
    claim("sent_bytes_claimed_wrong", "rank 1: send_bytes", &ServerLoad::send_bytes),
    claim("received_bytes_claimed_wrong", "rank 1: receive_bytes", &ServerLoad::receive_bytes),
    claim("o_sent_claimed_wrong", "rank 1: o_send_bytes", &ServerLoad::o_send_bytes),
    claim("o_received_claimed_wrong", "rank 1: o_receive_bytes", &ServerLoad::o_receive_bytes),
    claim("memory_claimed_wrong", "rank 1: memory_bytes", &ServerLoad::memory_bytes),
    {"load_of_too_few", "load of 2 ranks, there are 3", [](Plan& plan) { plan.load.pop_back(); }},
    // Caps and capacity.
    {"tokens_above_the_cap", "8333 tokens on 3 workers, max_tokens_per_worker is 2777",
     [](Plan& plan) { plan.cluster.max_tokens_per_worker = 2777; }},
    {"tokens_of_one_worker_above_the_cap", "tokens, max_tokens_per_worker is 2800",
     [](Plan& plan) {
       plan.cluster.max_tokens_per_worker = 2800;
       auto& from = plan.layout.workers[1];
       plan.layout.workers[0].push_back(from.back());
       from.pop_back();
     }},
    {"sends_above_the_cap", "max_send_bytes is 1000",
     [](Plan& plan) { plan.cluster.max_send_bytes = 1000; }},
    {"receives_above_the_cap", "max_receive_bytes is 1000",
     [](Plan& plan) { plan.cluster.max_receive_bytes = 1000; }},
    {"memory_above_the_cap", "max_memory_bytes is 1000",
     [](Plan& plan) { plan.cluster.max_memory_bytes = 1000; }},
    {"load_on_a_server_of_no_capacity", "server 2 has capacity 0 and computes",
     [](Plan& plan) { plan.cluster.capacity[2] = 0; }},
};

INSTANTIATE_TEST_SUITE_P(, BrokenPlan, ::testing::ValuesIn(kDamages),
                         [](const auto& info) { return info.param.name; });

TEST(Validate, a_plan_priced_in_time_is_recounted_with_its_profile) {
  PlanRequest request = good_request();
  const AttentionProfile profile = testing::small_profile();
  request.profile = std::make_shared<const AttentionProfile>(profile);
  Plan plan = make_plan(request);
  const ValidateOptions with_profile{.profile = &profile};
  EXPECT_THAT(validate(plan, with_profile), IsEmpty());
  plan.load[0].time_ns -= 1;
  EXPECT_THAT(validate(plan, with_profile), Contains(HasSubstr("rank 0: time_ns")));
  EXPECT_THAT(validate(plan), IsEmpty());  // cannot tell

  AttentionProfile other = profile;
  other.forward_ns[0] += 1;
  EXPECT_THAT(validate(plan, {.profile = &other}), Contains(HasSubstr("the plan is priced by")));
}

TEST(Validate, tasks_have_the_cuts_of_a_layout_that_may_cut_anywhere) {
  Plan plan;
  plan.nano_batch = NanoBatch::from_lengths({300});
  plan.cluster = Cluster::in_place(2);
  plan.shape = {.num_heads = 4, .num_kv_heads = 1};
  plan.layout.workers = {{{0, {0, 77}}}, {{0, {77, 300}}}};
  plan.tasks = {{0, {0, 77}, {0, 77}, 0}, {0, {77, 300}, {0, 300}, 1}};
  testing::complete(plan);
  const ValidateOptions options{.even_tokens = false, .whole_blocks = false};
  EXPECT_THAT(validate(plan, options), IsEmpty());
  EXPECT_THAT(validate(plan), Contains(HasSubstr("layout of worker 1: document 0 is cut at 77,")));
  plan.tasks = {{0, {0, 76}, {0, 76}, 0}, {0, {76, 77}, {0, 77}, 0}, {0, {77, 300}, {0, 300}, 1}};
  testing::complete(plan);
  EXPECT_THAT(validate(plan, options),
              Contains(HasSubstr("queries of task 0: document 0 is cut at 76,")));
}

TEST(Validate, a_flood_of_violations_is_cut) {
  Plan plan = make_plan(good_request());
  for (Task& task : plan.tasks) task.server = 7;
  const auto violations = validate(plan, {.max_violations = 3});
  EXPECT_THAT(violations, SizeIs(4));
  EXPECT_THAT(violations.back(), HasSubstr("more"));
}

/// Every allowed pair exactly once, no other, pair by pair.
bool each_pair_once(const Plan& plan) {
  const int64_t window = plan.shape.mask.window_left;
  const auto allowed = [window](int64_t i, int64_t j) {
    return j <= i && (window < 0 || j >= i - window);
  };
  for (const Document& document : plan.nano_batch.documents) {
    for (int64_t i = 0; i < document.length; ++i) {
      for (int64_t j = 0; j < document.length; ++j) {
        int times = 0;
        for (const Task& task : plan.tasks) {
          if (task.document != document.id || !task.q.contains({i, i + 1}) ||
              !task.kv.contains({j, j + 1})) {
            continue;
          }
          times += task.mask == MaskKind::kFull || allowed(i, j);
        }
        if (times != allowed(i, j)) return false;
      }
    }
  }
  return true;
}

/// The documents here are shorter than 128 tokens, so every cut in them is reported.
bool right_but_for_cuts(const Plan& plan) {
  return std::ranges::all_of(validate(plan), [](const std::string& line) {
    return line.find(" is cut at ") != std::string::npos;
  });
}

TEST(Validate, agrees_with_a_count_pair_by_pair) {
  Random random(7);
  int valid = 0;
  int invalid = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    Plan plan;
    plan.nano_batch = NanoBatch::from_lengths({6, 9});
    plan.options.split_kv = true;
    plan.shape.mask.window_left = static_cast<int64_t>(random.below(12)) - 3;
    plan.layout.workers = {{{0, {0, 6}}, {1, {0, 9}}}};
    for (const Document& document : plan.nano_batch.documents) {
      const auto cut = 1 + static_cast<int64_t>(random.below(document.length - 1));
      const auto key = 1 + static_cast<int64_t>(random.below(document.length - 1));
      const MaskKind low =
          key <= cut + 1 && random.below(2) == 0 ? MaskKind::kFull : MaskKind::kCausal;
      plan.tasks.push_back({document.id, {0, cut}, {0, document.length}, 0, MaskKind::kCausal});
      plan.tasks.push_back({document.id, {cut, document.length}, {0, key}, 0, low});
      plan.tasks.push_back(
          {document.id, {cut, document.length}, {key, document.length}, 0, MaskKind::kCausal});
    }
    if (random.below(2) == 0) {  // move one edge of one range by one
      Task& task = plan.tasks[random.below(plan.tasks.size())];
      Range& range = random.below(2) == 0 ? task.q : task.kv;
      (random.below(2) == 0 ? range.begin : range.end) += random.below(2) == 0 ? 1 : -1;
      const int64_t length = plan.nano_batch.documents[task.document].length;
      if (range.empty() || range.begin < 0 || range.end > length) continue;
    }
    testing::complete(plan);
    const bool right = each_pair_once(plan);
    (right ? valid : invalid) += 1;
    EXPECT_EQ(right_but_for_cuts(plan), right) << plan_to_json(plan);
  }
  EXPECT_GT(valid, 500);
  EXPECT_GT(invalid, 500);
}

}  // namespace
}  // namespace distca
