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
  EXPECT_THAT(refusal_of([](Json& json) { json["version"] = 1; }), HasSubstr("version must be 2"));
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

/// A machine with a measured phase.
Machine measured() {
  Machine machine = machine_by_name("h200");
  machine.phases = {{.phase = "pre_attention",
                     .pass = Pass::kBackward,
                     .flops_per_token = 1000,
                     .tokens = {1000, 2000, 4000},
                     .ns = {1500, 2500, 6500}}};
  machine.settings = {{"model.hidden_size", "512"}};
  return machine;
}

TEST(Machine, measured_phases_are_written_and_read_as_they_are) {
  const Machine read = machine_from_json(machine_to_json(measured()), "file");
  EXPECT_EQ(read.phases, measured().phases);
  EXPECT_EQ(read.settings, measured().settings);
}

TEST(Machine, a_phase_takes_what_lies_between_measured_token_counts) {
  const PhaseTimes times = measured().phases[0];
  EXPECT_DOUBLE_EQ(times.seconds(1000), 1500e-9);
  EXPECT_DOUBLE_EQ(times.seconds(1500), 2000e-9);
  EXPECT_DOUBLE_EQ(times.seconds(3000), 4500e-9);
  EXPECT_DOUBLE_EQ(times.seconds(5000), 8500e-9) << "beyond the last two";
  const PhaseTimes falls{.tokens = {1000, 2000}, .ns = {3000, 2000}};
  EXPECT_DOUBLE_EQ(falls.seconds(1500), 2500e-9);
  EXPECT_DOUBLE_EQ(falls.seconds(5000), 2000e-9);
  EXPECT_DOUBLE_EQ(falls.seconds(500), 3000e-9);
  EXPECT_DOUBLE_EQ(times.seconds(500), 1000e-9) << "before the first two";
  PhaseTimes steep = times;
  steep.ns = {1000, 2500, 6500};
  EXPECT_DOUBLE_EQ(steep.seconds(500), 500e-9) << "the line would be below 0 at no tokens";
}

TEST(Machine, wrong_phases_are_refused) {
  const auto refused = [](const std::function<void(Json&)>& spoil) {
    Json json = Json::parse(machine_to_json(measured()));
    spoil(json);
    try {
      machine_from_json(json.dump(), "own.json");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused([](Json&) {}), "");
  EXPECT_THAT(refused([](Json& json) { json["phases"][0]["tokens"] = {1000}; }),
              HasSubstr("phases[0].tokens must be two or more ascending numbers above 0"));
  EXPECT_THAT(refused([](Json& json) {
                json["phases"][0]["tokens"] = {1000, 1000, 2000};
              }),
              HasSubstr("phases[0].tokens must be two or more ascending numbers above 0"));
  EXPECT_THAT(refused([](Json& json) {
                json["phases"][0]["ns"] = {1, 2};
              }),
              HasSubstr("phases[0].ns must be 3 numbers above 0"));
  EXPECT_THAT(refused([](Json& json) { json["phases"][0]["pass"] = "sideways"; }),
              HasSubstr("phases[0].pass must be \"forward\" or \"backward\""));
  EXPECT_THAT(refused([](Json& json) { json["phases"].push_back(json["phases"][0]); }),
              HasSubstr("phases[1] must be of another phase or pass than those before"));
  EXPECT_THAT(refused([](Json& json) { json.erase("settings"); }), HasSubstr("settings"));
  EXPECT_THAT(refused([](Json& json) { json["settings"] = 3; }),
              HasSubstr("settings must be an object"));
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
