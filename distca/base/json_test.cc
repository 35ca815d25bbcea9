#include "distca/base/json.h"

#include <gtest/gtest.h>

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

TEST(Json, a_missing_file_is_named) { EXPECT_THROW(read_json("/nonexistent/lengths.json"), Error); }

}  // namespace
}  // namespace distca
