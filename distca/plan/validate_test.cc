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

Plan good_plan() { return make_plan(testing::request_for({5000, 1000, 333, 2000}, 3)); }

TEST(Validate, a_good_plan_has_no_violation) {
  ValidateOptions options;
  options.tolerance_ppm = 50'000;
  EXPECT_THAT(validate(good_plan(), options), IsEmpty());
}

struct Damage {
  const char* name;
  const char* reported;
  std::function<void(Plan&)> inflict;
};

void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

class BrokenPlan : public ::testing::TestWithParam<Damage> {};

TEST_P(BrokenPlan, is_reported) {
  Plan plan = good_plan();
  GetParam().inflict(plan);
  EXPECT_THAT(validate(plan), Contains(HasSubstr(GetParam().reported)));
}

/// The first task with more than a block of queries.
Task& long_task(Plan& plan) {
  return *std::find_if(plan.tasks.begin(), plan.tasks.end(),
                       [](const Task& task) { return task.q.size() > 2 * kBlockTokens; });
}

const Damage kDamages[] = {
    {"task_dropped", "computed by no task", [](Plan& plan) { plan.tasks.pop_back(); }},
    {"task_twice", "computed twice",
     [](Plan& plan) { plan.tasks.insert(plan.tasks.begin() + 1, plan.tasks[0]); }},
    {"keys_short", "computed by no task",
     [](Plan& plan) { long_task(plan).kv.end -= kBlockTokens; }},
    {"first_keys_left_out", "computed by no task",
     [](Plan& plan) { long_task(plan).kv.begin += kBlockTokens; }},
    {"queries_short", "computed by no task",
     [](Plan& plan) { long_task(plan).q.end -= kBlockTokens; }},
    {"queries_of_two_segments", "does not lie in one segment",
     [](Plan& plan) {
       for (Task& task : plan.tasks) {
         if (task.document == 0) task.q = task.kv = {0, 5000};
       }
     }},
    {"unknown_server", "there is no server 3", [](Plan& plan) { plan.tasks.back().server = 3; }},
    {"unknown_document", "there is no document 9",
     [](Plan& plan) { plan.tasks.back().document = 9; }},
    {"beyond_the_document", "is not a range of document",
     [](Plan& plan) { plan.tasks.back().kv.end += 100'000; }},
    {"odd_cut", "neither a multiple of 128 nor its end",
     [](Plan& plan) { long_task(plan).q.begin += 1; }},
    {"full_mask", "lets queries see later keys",
     [](Plan& plan) { plan.tasks[0].mask = MaskType::kFull; }},
    {"not_sorted", "are not sorted",
     [](Plan& plan) { std::swap(plan.tasks[0], plan.tasks.back()); }},
    {"token_without_home", "no worker holds",
     [](Plan& plan) { plan.layout.workers[1].pop_back(); }},
    {"token_with_two_homes", "is held twice",
     [](Plan& plan) { plan.layout.workers[0].push_back(plan.layout.workers[1][0]); }},
    {"uneven_tokens", "not within 128",
     [](Plan& plan) {
       auto& from = plan.layout.workers[1];
       plan.layout.workers[0].push_back(from.back());
       from.pop_back();
     }},
    {"cap_exceeded", "the cap is 2000",
     [](Plan& plan) { plan.cluster.max_tokens_per_worker = 2000; }},
    {"pairs_claimed_wrong", "pairs", [](Plan& plan) { plan.load[1].pairs -= 1; }},
    {"sent_bytes_claimed_wrong", "send_bytes", [](Plan& plan) { plan.load[2].send_bytes += 1; }},
    {"received_bytes_claimed_wrong", "receive_bytes",
     [](Plan& plan) { plan.load[0].receive_bytes += 1; }},
    {"o_bytes_claimed_wrong", "o_send_bytes", [](Plan& plan) { plan.load[0].o_send_bytes += 1; }},
    {"load_of_too_few", "load of 2 ranks", [](Plan& plan) { plan.load.pop_back(); }},
    {"worker_missing", "the layout has 2 workers",
     [](Plan& plan) { plan.layout.workers.pop_back(); }},
};

INSTANTIATE_TEST_SUITE_P(, BrokenPlan, ::testing::ValuesIn(kDamages),
                         [](const auto& info) { return info.param.name; });

TEST(Validate, a_load_above_the_tolerance_is_reported_when_asked) {
  const Plan plan = make_plan(testing::request_for({5000, 100, 100, 100}, 3, "local"));
  ASSERT_GT(max_over_mean(plan), 1.05);
  EXPECT_THAT(validate(plan), IsEmpty());
  ValidateOptions options;
  options.tolerance_ppm = 50'000;
  EXPECT_THAT(validate(plan, options), Contains(HasSubstr("of its share, more than 1.0500")));
}

TEST(Validate, cuts_need_not_be_multiples_of_128_when_so_told) {
  Plan plan = good_plan();
  Task& first = long_task(plan);
  Task second = first;
  first.q.end = second.q.begin = first.q.begin + 100;
  plan.tasks.insert(plan.tasks.begin() + (&first - plan.tasks.data()) + 1, second);
  testing::complete(plan);
  EXPECT_THAT(validate(plan), Not(IsEmpty()));
  EXPECT_THAT(validate(plan, {.cuts = false}), IsEmpty());
}

TEST(Validate, a_flood_of_violations_is_cut) {
  Plan plan = good_plan();
  for (Task& task : plan.tasks) task.server = 7;
  const auto violations = validate(plan, {.max_violations = 3});
  EXPECT_THAT(violations, SizeIs(4));
  EXPECT_THAT(violations.back(), HasSubstr("more"));
}

/// Every allowed pair exactly once, pair by pair.
bool each_pair_once(const Plan& plan) {
  for (const Document& document : plan.nano_batch.documents) {
    for (int64_t i = 0; i < document.length; ++i) {
      for (int64_t j = 0; j < document.length; ++j) {
        int times = 0;
        for (const Task& task : plan.tasks) {
          if (task.document != document.id || !task.q.contains({i, i + 1}) ||
              !task.kv.contains({j, j + 1})) {
            continue;
          }
          times += task.mask == MaskType::kFull || j <= i;
        }
        if (times != (j <= i)) return false;
      }
    }
  }
  return true;
}

TEST(Validate, agrees_with_a_count_pair_by_pair) {
  Random random(7);
  int valid = 0;
  int invalid = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    Plan plan;
    plan.nano_batch = NanoBatch::from_lengths({6, 9});
    plan.layout.workers = {{{0, {0, 6}}, {1, {0, 9}}}};
    for (const Document& document : plan.nano_batch.documents) {
      const auto cut = 1 + static_cast<int64_t>(random.below(document.length - 1));
      const auto key = 1 + static_cast<int64_t>(random.below(document.length - 1));
      const MaskType low =
          key <= cut + 1 && random.below(2) == 0 ? MaskType::kFull : MaskType::kCausal;
      plan.tasks.push_back({document.id, {0, cut}, {0, document.length}, 0, MaskType::kCausal});
      plan.tasks.push_back({document.id, {cut, document.length}, {0, key}, 0, low});
      plan.tasks.push_back(
          {document.id, {cut, document.length}, {key, document.length}, 0, MaskType::kCausal});
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
    EXPECT_EQ(validate(plan, {.cuts = false}).empty(), right) << plan_to_json(plan);
  }
  EXPECT_GT(valid, 500);
  EXPECT_GT(invalid, 500);
}

}  // namespace
}  // namespace distca
