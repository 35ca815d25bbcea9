#include "distca/base/json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>

#include "distca/base/json_field.h"
#include "distca/base/test_time.h"

namespace distca {
namespace {

TEST(Json, canonical_form_sorts_keys_and_ends_with_a_newline) {
  EXPECT_EQ(canonical_json(parse_json(R"({ "b": [1, 2], "a": null })", "x")),
            "{\"a\":null,\"b\":[1,2]}\n");
}

TEST(Json, a_fault_is_named_with_file_and_byte_on_one_line) {
  try {
    parse_json("{\"a\": 1,\n ]", "lengths.json", ErrorKind::kPlan);
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::kPlan);
    EXPECT_TRUE(what.starts_with("lengths.json: byte 11 is not JSON: parse error at line 2"))
        << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
  }
}

std::string refusal_of(const std::string& text) {
  try {
    parse_json(text, "plan.json", ErrorKind::kPlan);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPlan);
    return error.what();
  }
  return "";
}

TEST(Json, a_number_beyond_all_doubles_is_bad_input) {
  EXPECT_EQ(refusal_of("[1e308, -1e-400]"), "");
  EXPECT_EQ(refusal_of("[1e400]"),
            "plan.json: not JSON that can be read: number overflow parsing '1e400'");
}

TEST(Json, a_value_lies_within_a_hundred_lists_and_objects_at_most) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(refusal_of(nested(kMostJsonDepth + 1)), "");
  for (const int depth : {kMostJsonDepth + 2, 1'000'000}) {
    EXPECT_EQ(refusal_of(nested(depth)),
              "plan.json: a value lies within more than 100 lists and objects");
  }
  std::string objects = "1";
  for (int i = 0; i <= kMostJsonDepth; ++i) objects = R"({"a":)" + objects + "}";
  EXPECT_EQ(refusal_of(objects), "plan.json: a value lies within more than 100 lists and objects");
}

TEST(Json, brackets_in_strings_are_no_depth) {
  const std::string brackets = R"(["\\\"[)" + std::string(500, '{') + R"("])";
  EXPECT_EQ(refusal_of(brackets), "");
  const std::string deep = R"(["\\", )" + std::string(200, '[');
  EXPECT_EQ(refusal_of(deep), "plan.json: a value lies within more than 100 lists and objects");
}

TEST(Json, time_is_in_proportion_to_length) {
  for (const auto& [open, value, close] :
       {std::array{"[", "{}", "]"}, {"[", "[]", "]"}, {"{", "{\"dtype\":[]}", "}"}}) {
    const auto text_of = [&](int elements) {
      std::string text = open;
      for (int i = 0; i < elements; ++i) {
        if (i > 0) text += ',';
        if (*open == '{') text += fmt::format("\"{}\":", i);
        text += value;
      }
      return text + close;
    };
    const std::string few = text_of(5'000), many = text_of(16 * 5'000);
    // 16 times, but for the memory's caches. In time by the square, it would be 256 times.
    EXPECT_TRUE(testing::takes_less_than(
        64, [&] { parse_json(many, "many"); }, [&] { parse_json(few, "few"); }))
        << open << value << close;
  }
}

TEST(Json, a_fault_of_a_field_names_its_place) {
  const Json json = {{"tasks", {{{"q", {1, 2}}}, {{"q", {1, "x"}}}}}};
  const auto fault_of = [&](const std::function<void(const JsonField&)>& read, const char* name) {
    try {
      read(JsonField(json, "plan.json", ErrorKind::kPlan, name));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto read_q = [](const JsonField& root) { root["tasks"].at(1)["q"].integers(); };
  EXPECT_EQ(fault_of(read_q, ""), "plan.json: tasks[1].q[1] must be an integer, not \"x\"");
  EXPECT_EQ(fault_of(read_q, "plan"),
            "plan.json: plan.tasks[1].q[1] must be an integer, not \"x\"");
  const auto read_kv = [](const JsonField& root) { root["tasks"].at(0)["kv"].text(); };
  EXPECT_EQ(fault_of(read_kv, ""), "plan.json: tasks[0].kv is missing");
  const auto read_it = [](const JsonField& root) { root.text(); };
  EXPECT_TRUE(fault_of(read_it, "").starts_with("plan.json: it must be a string, not {"));
}

TEST(Json, a_missing_file_is_named) { EXPECT_THROW(read_json("/nonexistent/lengths.json"), Error); }

}  // namespace
}  // namespace distca
