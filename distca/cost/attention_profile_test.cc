#include "distca/cost/attention_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/json.h"
#include "distca/cost/task_price.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

AttentionProfile small_profile() {
  return {.machine = "a \"machine\"",
          .path = "test",
          .shape = {.num_heads = 2, .num_kv_heads = 1, .head_dim_qk = 64, .head_dim_v = 32},
          .q_tokens = {16, 128},
          .kv_tokens = {64, 128, 1000},
          .forward_ns = {1, 2, 3, 0, 5, 6},
          .backward_ns = {10, 20, 30, 0, 50, 60},
          .peak_mflops = 277'000};
}

std::string error_of(const Json& json) {
  try {
    profile_from_json(canonical_json(json), "some.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "none";
}

TEST(AttentionProfile, json_gives_the_same_profile_back) {
  AttentionProfile of_two = small_profile();
  of_two.forward_kernels = {"aten", "fa4"};
  of_two.backward_kernels = {"fa4"};
  for (const AttentionProfile& profile : {small_profile(), h200_profile(), of_two}) {
    const std::string json = profile_to_json(profile);
    const AttentionProfile read = profile_from_json(json, "some.json");
    EXPECT_EQ(read, profile);
    EXPECT_EQ(profile_to_json(read), json);
    EXPECT_EQ(profile_name(read), profile_name(profile));
  }
}

TEST(AttentionProfile, names_tell_other_times_apart) {
  AttentionProfile profile = small_profile();
  const std::string name = profile_name(profile);
  EXPECT_THAT(name, StartsWith("a \"machine\" test@"));
  profile.backward_ns[2] = 31;
  EXPECT_NE(profile_name(profile), name);
  profile = small_profile();
  profile.forward_kernels = {"aten", "fa4"};
  EXPECT_NE(profile_name(profile), name);
}

TEST(AttentionProfile, every_wrong_field_is_named_with_the_file) {
  const Json right = Json::parse(profile_to_json(small_profile()));
  ASSERT_EQ(error_of(right), "none");
  for (const auto& [pointer, value, fault] :
       std::vector<std::tuple<std::string, Json, std::string>>{
           {"/format", "plan", "format must be \"distca-attention-profile\", not \"plan\""},
           {"/version", 4, "version must be 1 to 3, not 4"},
           {"/version", 1, "is not a field of version 1"},
           {"/version", 2, "backward_kernels is not a field of version 2"},
           {"/machine", 7, "machine must be a string, not 7"},
           {"/shape", 7, "shape must be an object"},
           {"/shape/num_heads", 0, "shape.num_heads is 0: 1 to"},
           {"/shape/head_dim_v", 1.5, "shape.head_dim_v must be an integer, not 1.5"},
           {"/shape/element_bytes", 3, "shape.element_bytes must be 2, 4 or 8, not 3"},
           {"/shape/window_left", 7, "shape.window_left is not a field"},
           {"/colour", 7, "colour is not a field"},
           {"/q_tokens", "16", "q_tokens must be a list"},
           {"/q_tokens", Json::array(), "q_tokens has 0 entries: 1 to 256 wanted"},
           {"/q_tokens/1", 16, "q_tokens[1] is 16: 17 to 1073741824 wanted, ascending"},
           {"/q_tokens/0", 65, "q_tokens runs from 65 to 128, kv_tokens from 64 to 1000"},
           {"/kv_tokens/2", int64_t{1} << 31, "kv_tokens[2] is 2147483648"},
           {"/kv_tokens/2", uint64_t{1} << 63, "kv_tokens[2] must be an integer"},
           {"/forward_ns", {1, 2}, "forward_ns has 2 entries: 2 x 3 wanted"},
           {"/forward_ns/1", 0, "forward_ns[1] is 0: 1 to"},
           {"/backward_ns/3", 4, "backward_ns[3] is 4: 0 wanted for 128 queries of 64 keys"},
           {"/backward_ns/5", -1, "backward_ns[5] is -1: 1 to"},
           {"/forward_kernels", "fa4", "forward_kernels must be a list"},
           {"/forward_kernels",
            {"aten", "fa3"},
            "forward_kernels[1] is \"fa3\": aten or fa4 wanted"},
           {"/backward_kernels", {4}, "backward_kernels[0] must be a string, not 4"},
           {"/peak_mflops", 277.5, "peak_mflops must be an integer, not 277.5"},
           {"/peak_mflops", -1, "peak_mflops is -1: 0 (none stated) to"},
       }) {
    Json wrong = right;
    wrong[Json::json_pointer(pointer)] = value;
    EXPECT_THAT(error_of(wrong), AllOf(StartsWith("some.json: "), HasSubstr(fault))) << pointer;
  }
  for (const auto& [key, value] : right.items()) {
    Json wrong = right;
    wrong.erase(key);
    EXPECT_EQ(error_of(wrong), "some.json: " + key + " is missing");
  }
  EXPECT_EQ(error_of(Json::array()), "some.json: it must be an object, not []");
}

TEST(AttentionProfile, version_1_is_read_without_a_peak) {
  Json json = Json::parse(profile_to_json(small_profile()));
  json["version"] = 1;
  for (const char* field : {"peak_mflops", "forward_kernels", "backward_kernels"})
    json.erase(field);
  AttentionProfile want = small_profile();
  want.peak_mflops = 0;
  const AttentionProfile read = profile_from_json(canonical_json(json), "some.json");
  EXPECT_EQ(read, want);
  EXPECT_EQ(profile_name(read), profile_name(small_profile())) << "plans of it keep their price";
}

TEST(AttentionProfile, is_found_by_name_or_by_file) {
  EXPECT_EQ(*profile_by_name("h200"), h200_profile());
  const auto file = std::filesystem::temp_directory_path() /
                    ("distca_profile_" + std::to_string(getpid()) + ".json");
  write_file_atomically(file, profile_to_json(small_profile()));
  EXPECT_EQ(*profile_by_name(file), small_profile());
  write_file_atomically(file, "{");
  EXPECT_THROW(profile_by_name(file), Error);
  std::filesystem::remove(file);
  try {
    profile_by_name("h300");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_STREQ(error.what(), "profile h300: no such file, and the only known name is h200");
  }
}

TEST(H200Profile, throughput_is_that_of_the_papers_figure_5) {
  const AttentionProfile profile = h200_profile();
  EXPECT_EQ(profile_fault(profile), "");
  const TaskPrice price(profile.shape, &profile);
  // Shards with contexts of about 8K, as in the figure; TFLOPS. Below the tile the figure loses a
  // little less than whole tiles cost.
  for (const auto& [queries, tflops] :
       {std::pair{16, 40}, std::pair{32, 80}, std::pair{64, 155}, std::pair{128, 287},
        std::pair{256, 295}, std::pair{512, 305}, std::pair{1024, 307}, std::pair{2048, 310}}) {
    const Range keys{0, 8192 + queries / 2}, q{keys.end - queries, keys.end};
    const double flops = 4.0 * 4 * 128 * static_cast<double>(Mask{}.pairs(q, keys));
    const double ours = flops / static_cast<double>(price.passes(q, keys).forward) / 1000;
    EXPECT_NEAR(ours, tflops, (queries < 128 ? 0.12 : 0.02) * tflops) << queries;
  }
  const Range all{0, 65536};
  EXPECT_NEAR(static_cast<double>(price.passes(all, all).backward),
              2.5 / 0.8 * static_cast<double>(price.passes(all, all).forward), 2);
}

// The times are the published ones of bench/results/gpu_h100_2026-11-27.md: one document a call on
// an H100, TP 8. Their file names no heads; they are those of 8 heads a rank at the H200's rate
// (the authors' simulator has a model of 64 heads).
TEST(H200Profile, with_a_launch_is_within_a_tenth_of_the_h100) {
  const AttentionProfile profile = h200_profile();
  const TaskPrice price({.num_heads = 8, .num_kv_heads = 1}, &profile);
  constexpr double kLaunchMs = 0.025;  // that of 64 tokens, which compute next to nothing
  for (const auto& [tokens, ms] :
       {std::pair{1024, .033}, std::pair{2048, .052}, std::pair{4096, .147}, std::pair{8192, .481},
        std::pair{16384, 1.77}, std::pair{32768, 6.60}, std::pair{65536, 26.1}}) {
    const Range all{0, tokens};
    const double ours = kLaunchMs + static_cast<double>(price.passes(all, all).forward) / 1e6;
    EXPECT_NEAR(ours, ms, 0.1 * ms) << tokens;
  }
}

}  // namespace
}  // namespace distca
