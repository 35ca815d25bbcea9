#include "distca/cost/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "distca/base/error.h"
#include "distca/base/json.h"

namespace distca {
namespace {

using ::testing::HasSubstr;

TEST(Machine, known_ones_are_written_and_read_as_they_are) {
  for (const std::string& name : known_machines()) {
    const Machine machine = machine_by_name(name);
    const std::string json = machine_to_json(machine);
    const Machine read = machine_from_json(json, "file");
    EXPECT_EQ(machine_to_json(read), json);
    EXPECT_EQ(*read.attention, *machine.attention);
    for (int i = 0; i < kNumMachineNumbers; ++i)
      EXPECT_EQ(read.of(static_cast<MachineNumber>(i)), machine.of(static_cast<MachineNumber>(i)));
  }
}

std::string refusal_of(const std::function<void(Json&)>& spoil) {
  Json json = Json::parse(machine_to_json(machine_by_name("h200")));
  spoil(json);
  try {
    machine_from_json(json.dump(), "own.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Machine, a_wrong_file_is_refused_in_a_line_that_names_the_field) {
  EXPECT_EQ(refusal_of([](Json&) {}), "");
  EXPECT_THAT(refusal_of([](Json& json) { json["format"] = "other"; }),
              HasSubstr("own.json: format must be \"distca-machine\""));
  EXPECT_THAT(refusal_of([](Json& json) { json["version"] = 2; }), HasSubstr("version must be 1"));
  EXPECT_THAT(refusal_of([](Json& json) { json["attention"] = "h300"; }),
              HasSubstr("attention must be \"h200\" or a profile"));
  EXPECT_THAT(refusal_of([](Json& json) { json["attention"].erase("q_tokens"); }),
              HasSubstr("q_tokens"));
  EXPECT_THAT(refusal_of([](Json& json) { json["numbers"].erase("copy_gb_per_s"); }),
              HasSubstr("copy_gb_per_s"));
  EXPECT_THAT(refusal_of([](Json& json) { json["numbers"]["copy_gb_s"] = 1; }),
              HasSubstr("copy_gb_s"));
  EXPECT_THAT(refusal_of([](Json& json) { json["numbers"]["copy_gb_per_s"]["value"] = 0; }),
              HasSubstr("numbers.copy_gb_per_s.value must be a number in 0.001 .. 1e+06"));
  EXPECT_THAT(refusal_of([](Json& json) { json["numbers"]["ranks_per_node"]["value"] = 1.5; }),
              HasSubstr("a whole number"));
  EXPECT_THAT(refusal_of([](Json& json) { json["numbers"]["issue_us"]["source"] = "guessed"; }),
              HasSubstr("must be a text that begins with \"measured\""));
}

TEST(Machine, a_name_that_is_no_file_is_told_the_known_ones) {
  try {
    machine_by_name("h300");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "machine h300: no such file, and the known names are h100, h200");
  }
}

}  // namespace
}  // namespace distca
