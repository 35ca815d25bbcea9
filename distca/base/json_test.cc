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

TEST(Json, a_missing_file_is_named) { EXPECT_THROW(read_json("/nonexistent/lengths.json"), Error); }

}  // namespace
}  // namespace distca
