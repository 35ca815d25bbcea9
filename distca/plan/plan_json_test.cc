#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/json.h"
#include "distca/plan/plan_testing.h"
#include "distca/plan/validate.h"

namespace distca {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(PlanJson, what_is_written_is_read_back) {
  Random random(8);
  for (int trial = 0; trial < 50; ++trial) {
    Plan plan = testing::random_plan(1 + static_cast<int>(random.below(5)), 1, random);
    if (!plan.tasks.empty()) plan.tasks[0].mask = MaskKind::kFull;
    plan.shape.type = std::array{ScalarType::kBFloat16, ScalarType::kFloat32,
                                 ScalarType::kFloat64}[random.below(3)];
    plan.options.tolerance_ppm = static_cast<int64_t>(random.below(100'000));
    plan.cluster.max_tokens_per_worker = static_cast<int64_t>(random.below(100));
    const std::string json = plan_to_json(plan);
    const Plan read = plan_from_json(json);
    EXPECT_EQ(read, plan);
    EXPECT_EQ(plan_to_json(read), json);
    EXPECT_EQ(plan_hash(read), plan_hash(plan));
  }
}

TEST(PlanJson, another_plan_has_another_hash) {
  Plan plan = make_plan(testing::request_for({5000}, 2));
  const std::string hash = plan_hash(plan);
  EXPECT_EQ(hash.size(), 16u);
  plan.load[0].pairs += 1;
  EXPECT_NE(plan_hash(plan), hash);
}

TEST(PlanJson, json_is_one_line_with_sorted_keys) {
  const std::string json = plan_to_json(make_plan(testing::request_for({300}, 2)));
  EXPECT_EQ(json.find('\n'), json.size() - 1);
  EXPECT_EQ(json.find(' '), std::string::npos);
  EXPECT_LT(json.find("\"cluster\""), json.find("\"document_lengths\""));
  EXPECT_LT(json.find("\"shape\""), json.find("\"tasks\""));
}

struct Fault {
  const char* name;
  const char* message;
  std::function<void(Json&)> make;
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class FaultyPlanFile : public ::testing::TestWithParam<Fault> {};

TEST_P(FaultyPlanFile, is_refused_by_the_name_of_the_field) {
  Json json = Json::parse(plan_to_json(make_plan(testing::request_for({5000, 10}, 2))));
  GetParam().make(json);
  try {
    plan_from_json(json.dump());
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPlan);
    EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

const Fault kFaults[] = {
    {"not_a_plan", "must be an object", [](Json& json) { json = Json::array(); }},
    {"format", "format must be \"distca-plan\"", [](Json& json) { json["format"] = "x"; }},
    {"version", "version must be 3, not 1", [](Json& json) { json["version"] = 1; }},
    {"no_tasks", "tasks is missing", [](Json& json) { json.erase("tasks"); }},
    {"misspelt", "taskz is not a field", [](Json& json) { json["taskz"] = 1; }},
    {"float", "cluster.num_workers must be an integer",
     [](Json& json) { json["cluster"]["num_workers"] = 1.5; }},
    {"no_workers", "cluster.num_workers", [](Json& json) { json["cluster"]["num_workers"] = 0; }},
    {"huge", "document_lengths[1]",
     [](Json& json) { json["document_lengths"][1] = 0xffffffffffffffffull; }},
    {"few_capacities", "cluster.capacity must be",
     [](Json& json) { json["cluster"]["capacity"] = {1}; }},
    {"text_for_list", "tasks must be a list", [](Json& json) { json["tasks"] = "none"; }},
    {"segment_document", "layout[1][0].document",
     [](Json& json) { json["layout"][1][0]["document"] = 2; }},
    {"layout_worker", "layout must be a list of num_workers",
     [](Json& json) { json["layout"].erase(0); }},
    {"inverted_range", "tasks[0].q must be a range",
     [](Json& json) {
       json["tasks"][0]["q"] = {128, 128};
     }},
    {"triple", "tasks[0].kv must be a pair",
     [](Json& json) {
       json["tasks"][0]["kv"] = {0, 1, 2};
     }},
    {"beyond", "tasks[0].kv[1]", [](Json& json) { json["tasks"][0]["kv"][1] = 5001; }},
    {"server", "tasks[0].server", [](Json& json) { json["tasks"][0]["server"] = 2; }},
    {"number_of_three_bytes", "shape.element_bytes must be 2, 4 or 8, not 3",
     [](Json& json) { json["shape"]["element_bytes"] = 3; }},
    {"mask", "tasks[0].mask must be \"causal\" or \"full\"",
     [](Json& json) { json["tasks"][0]["mask"] = "x"; }},
    {"load", "load must be a list of one entry a server",
     [](Json& json) { json["load"].erase(0); }},
    {"negative", "load[0].pairs", [](Json& json) { json["load"][0]["pairs"] = -1; }},
};

INSTANTIATE_TEST_SUITE_P(, FaultyPlanFile, ::testing::ValuesIn(kFaults),
                         [](const auto& info) { return info.param.name; });

TEST(PlanJson, text_that_is_no_json_is_refused) {
  EXPECT_THROW(plan_from_json("{\"format\": "), Error);
}

TEST(PlanJson, the_example_of_the_documentation_is_a_plan_that_we_make) {
  const std::string page = read_file("docs/plan_format.md");
  const size_t begin = page.find("```json\n");
  ASSERT_NE(begin, std::string::npos);
  const size_t end = page.find("```", begin + 8);
  const Plan plan = plan_from_json(page.substr(begin + 8, end - begin - 8));
  EXPECT_THAT(validate(plan), IsEmpty());
  const PlanRequest request{plan.nano_batch, plan.cluster, plan.shape, plan.options};
  EXPECT_EQ(make_plan(request), plan);
}

}  // namespace
}  // namespace distca
