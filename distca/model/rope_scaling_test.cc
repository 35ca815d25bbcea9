#include "distca/model/rope_scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace distca {
namespace {

using ::testing::HasSubstr;

std::vector<double> plain(int half, double theta) {
  std::vector<double> frequencies;
  for (int i = 0; i < half; ++i)
    frequencies.push_back(std::pow(theta, -static_cast<double>(i) / half));
  return frequencies;
}

/// Returns the factors by which `text` changes the frequencies of 8 pairs and theta 10,000.
std::vector<double> factors(const std::string& text, double* attention = nullptr) {
  std::vector<double> frequencies = plain(8, 10000);
  const double of_tables = parse_rope_scaling(text, "here").apply(frequencies, 10000);
  if (attention) *attention = of_tables;
  const std::vector<double> before = plain(8, 10000);
  for (size_t i = 0; i < before.size(); ++i) frequencies[i] /= before[i];
  return frequencies;
}

TEST(rope_scaling, nothing_changes_by_default) {
  EXPECT_EQ(factors(""), std::vector<double>(8, 1.0));
  EXPECT_EQ(factors(R"({"rope_type": "default"})"), std::vector<double>(8, 1.0));
}

TEST(rope_scaling, linear_divides_all_frequencies) {
  for (const double factor : factors(R"({"type": "linear", "factor": 4})"))
    EXPECT_DOUBLE_EQ(factor, 0.25);
}

TEST(rope_scaling, llama3_leaves_fast_pairs_and_divides_slow_ones) {
  const std::vector<double> got = factors(
      R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
          "original_max_position_embeddings": 1024})");
  // Pair i turns 1024 / 2 pi * 10000^(-i / 8) times: 163.0, 51.5, 16.3, 5.2, 1.63, 0.52, ...
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got[i], 1) << i;
  const double smooth = (1024 / (2 * M_PI) / 100 - 1) / 3;
  EXPECT_DOUBLE_EQ(got[4], (1 - smooth) / 8 + smooth);
  for (int i = 5; i < 8; ++i) EXPECT_DOUBLE_EQ(got[i], 0.125) << i;
}

TEST(rope_scaling, yarn_has_a_ramp_and_a_factor_of_its_tables) {
  double attention = 0;
  const std::string text =
      R"({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 1024)";
  const std::vector<double> got = factors(text + "}", &attention);
  EXPECT_DOUBLE_EQ(attention, 0.1 * std::log(4.0) + 1);
  // The ramp is from pair 1 (8 ln(1024 / 64 pi) / ln 10000 = 1.4) to 5 (4.4, rounded up).
  const std::vector<double> ramp = {0, 0, .25, .5, .75, 1, 1, 1};
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(got[i], ramp[i] / 4 + 1 - ramp[i], 1e-15) << i;
  factors(text + R"(, "attention_factor": 1.5})", &attention);
  EXPECT_EQ(attention, 1.5);
  factors(text + R"(, "mscale": 2, "mscale_all_dim": 1})", &attention);
  EXPECT_DOUBLE_EQ(attention, (0.2 * std::log(4.0) + 1) / (0.1 * std::log(4.0) + 1));
  EXPECT_NE(factors(text + R"(, "truncate": false})"), got);
}

TEST(rope_scaling, text_says_the_same_in_one_spelling) {
  for (const char* text :
       {R"({"type": "linear", "factor": 2})",
        R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
            "original_max_position_embeddings": 8192})",
        R"({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 8192,
            "mscale": 1.5, "mscale_all_dim": 0.7, "truncate": false, "beta_fast": 16})"}) {
    const RopeScaling scaling = parse_rope_scaling(text, "here");
    EXPECT_EQ(parse_rope_scaling(scaling.text(), "here"), scaling) << scaling.text();
    EXPECT_EQ(parse_rope_scaling(scaling.text(), "here").text(), scaling.text());
  }
  EXPECT_EQ(parse_rope_scaling(R"({"type": "linear", "factor": 2})", "").text(),
            R"({"factor":2.0,"rope_type":"linear"})");
  EXPECT_EQ(RopeScaling{}.text(), "");
}

TEST(rope_scaling, yarn_is_read_as_transformers_reads_it) {
  const std::string yarn = R"({"rope_type": "yarn", "factor": 4,
                              "original_max_position_embeddings": 1024)";
  const RopeScaling plain = parse_rope_scaling(yarn + "}", "here");
  for (const char* more :
       {R"(, "mscale": 0.7, "mscale_all_dim": 0})", R"(, "mscale": 0, "mscale_all_dim": 0.7})",
        R"(, "beta_fast": 0, "beta_slow": null})", R"(, "attn_factor": 2, "finetuned": true})",
        R"(, "other": false})"}) {
    EXPECT_EQ(parse_rope_scaling(yarn + more, "here"), plain) << more;
  }
  EXPECT_EQ(parse_rope_scaling(R"({"type": "yarn", "factor": 4.0,
                                   "original_max_position_embeddings": 1.024e3})",
                               "here"),
            plain);
  EXPECT_FALSE(parse_rope_scaling(yarn + R"(, "truncate": null})", "here").truncate);
  const Json no_factor = {
      {"rope_type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 1024}};
  EXPECT_EQ(read_rope_scaling(no_factor, "here", 4096), plain);
  std::vector<std::string> notes;
  read_rope_scaling(Json::parse(yarn + R"(, "attn_factor": 2})"), "here", 0, &notes);
  EXPECT_EQ(notes, std::vector<std::string>{
                       "here: attn_factor = 2 is left out of account, as by transformers"});
}

TEST(rope_scaling, what_is_written_has_one_meaning) {
  const RopeScaling yarn = parse_rope_scaling(
      R"({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 1024})", "here");
  const Json written = yarn.to_hugging_face();
  EXPECT_FALSE(written.contains("original_max_position_embeddings"));
  EXPECT_DOUBLE_EQ(written["attention_factor"], 0.1 * std::log(4.0) + 1);
  EXPECT_DOUBLE_EQ(written["factor"], 4);
  EXPECT_EQ(yarn.read_otherwise(), "");
  RopeScaling exact = yarn;
  exact.truncate = false;
  EXPECT_THAT(exact.read_otherwise(), HasSubstr("transformers before 4.55"));
  EXPECT_EQ(RopeScaling{}.to_hugging_face(), nullptr);
}

TEST(rope_scaling, what_is_wrong_is_named) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"[1]", "here: it must be an object"},
      {"{", "here"},
      {R"({"rope_type": "dynamic", "factor": 2})",
       "here: rope_type must be default, linear, llama3 or yarn, not \"dynamic\""},
      {R"({"rope_type": "linear"})", "here: factor is missing"},
      {R"({"rope_type": "linear", "factor": 0})", "here: factor must be above 0"},
      {R"({"rope_type": "linear", "factor": 2, "beta_fast": 3})", "here: beta_fast is not known"},
      {R"({"rope_type": "linear", "type": "yarn", "factor": 2})",
       "here: type must be as rope_type"},
      {R"({"rope_type": "linear", "factor": 1e300})", "here: factor must be at most 1e9"},
      {R"({"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 8.5})",
       "here: original_max_position_embeddings must be an integer"},
      {R"({"rope_type": "yarn", "factor": 2})",
       "here: original_max_position_embeddings is missing"},
      {R"({"rope_type": "llama3", "factor": 2, "original_max_position_embeddings": 8,
           "low_freq_factor": 4, "high_freq_factor": 4})",
       "here: high_freq_factor must be above low_freq_factor"},
  };
  for (const auto& [text, message] : cases) {
    try {
      parse_rope_scaling(text, "here");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  }
}

}  // namespace
}  // namespace distca
