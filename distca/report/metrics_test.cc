#include "distca/report/metrics.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

/// The line of a step in which ranks have sent 100 bytes, 60 of them within servers and 30 to other
/// nodes.
Json line_of(const std::vector<std::string>& settings) {
  const StepMetrics metrics{
      .step_s = 1, .bytes = {.sent = 100}, .bytes_tensor = 60, .bytes_between_nodes = 30};
  return metrics_line(metrics, load_config("", settings), {});
}

TEST(MetricsLine, bytes_are_divided_by_where_they_go) {
  const Json plain = line_of({});
  EXPECT_EQ(plain.at("bytes_sent"), 100);
  for (const char* key : {"bytes_tensor", "bytes_between_nodes", "bytes_inside_nodes"})
    EXPECT_FALSE(plain.contains(key)) << key;
  const Json divided =
      line_of({"parallel.tensor_model_parallel_size=2", "cluster.ranks_per_node=4"});
  EXPECT_EQ(divided.at("bytes_sent"), 100);
  EXPECT_EQ(divided.at("bytes_tensor"), 60);
  EXPECT_EQ(divided.at("bytes_between_nodes"), 30);
  EXPECT_EQ(divided.at("bytes_inside_nodes"), 70);
}

TEST(MetricsLine, phases_are_named_by_operation_and_pass) {
  StepMetrics metrics{.step_s = 1};
  const auto add = [&](OpKind kind, Pass pass, OpPart part, double seconds) {
    metrics.times.seconds[static_cast<int>(kind)][static_cast<int>(pass)][static_cast<int>(part)] =
        seconds;
  };
  add(OpKind::kMlpNorm, Pass::kForward, OpPart::kPlay, 0.5);
  add(OpKind::kGatherRows, Pass::kBackward, OpPart::kPack, 1);
  add(OpKind::kGatherRows, Pass::kBackward, OpPart::kWait, 2);
  add(OpKind::kSumRows, Pass::kForward, OpPart::kIssue, 4);
  add(OpKind::kSumRows, Pass::kForward, OpPart::kLand, 8);
  const Json line = metrics_line(metrics, load_config("", {}), {});
  EXPECT_EQ(line.at("phases"), Json({{"forward_mlp_norm_ms", 500.0},
                                     {"backward_gather_rows_ms", 3000.0},
                                     {"forward_sum_rows_ms", 12000.0}}));
  EXPECT_EQ(line.at("exchange"),
            Json({{"pack_ms", 1e3}, {"issue_ms", 4e3}, {"wait_ms", 2e3}, {"land_ms", 8e3}}));
}

}  // namespace
}  // namespace distca
