#include "distca/train/compute_peak.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "distca/base/clock.h"
#include "distca/comm/thread_group.h"
#include "distca/kernels/cpu/peak.h"

namespace distca {
namespace {

ComputePeak peak(int ranks, const Config& config) {
  ComputePeak result;
  run_ranks(ranks, {.timeout_s = 300}, [&](Communicator& comm) {  // there may be hundreds
    const ComputePeak mine = measure_peak(config, comm);
    if (comm.rank() == 0) result = mine;
  });
  return result;
}

TEST(ComputePeak, is_of_what_computes_attention) {
  EXPECT_EQ(peak(1, load_config("", {"attention.kernel=cpu"})).of, "float32 multiply-adds");
  EXPECT_EQ(peak(1, load_config("", {"attention.kernel=aten"})).of, "float32 matrix products");
}

TEST(ComputePeak, ranks_that_share_cores_count_once) {
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const Config config = load_config("", {"attention.kernel=cpu"});
  const double one = peak(1, config).flops_per_s;
  EXPECT_GT(one, 1e8);
  // Each rank finds a free core for its fastest burst: counted each, it would be 8 times.
  EXPECT_LT(peak(8 * cores, config).flops_per_s, 4.0 * cores * one);
}

TEST(ComputePeak, a_matrix_product_s_rate_is_that_of_its_own_work) {
  // Timed here: the same work cannot take longer than all rounds and the warm-up together did, nor
  // be done faster than multiply-adds in registers are.
  const Stopwatch watch;
  const double rate = matrix_product_rate(ScalarType::kFloat32, -1, 384, 0);
  const double all_s = watch.seconds();
  const double flops = 2.0 * 384 * 384 * 384;
  EXPECT_GE(rate, 3 * flops / all_s);
  EXPECT_LE(rate, 3e9 * kernels::measured_peak_gflops(kernels::chosen_isa(), ScalarType::kFloat32,
                                                      0.1, at::get_num_threads()));
  EXPECT_EQ(peak_product_size(-1), 512);
  EXPECT_EQ(peak_product_size(0), 8192);
}

TEST(ComputePeak, the_price_of_deterministic_attention_is_measured_where_there_is_one) {
  const auto tokens = [](std::vector<std::string> overrides) {
    return deterministic_probe_tokens(load_config("", overrides));
  };
  const std::string cuda = "train.device=cuda", threads = "comm.backend=threads",
                    bf16 = "model.dtype=bfloat16", nano = "batch.nano_batch_tokens=20000";
  EXPECT_EQ(tokens({cuda, threads, bf16, nano}), 8192);
  EXPECT_EQ(tokens({cuda, threads, bf16, nano, "batch.max_document_tokens=3000"}), 3000);
  EXPECT_EQ(tokens({cuda, threads, bf16, nano, "train.deterministic=false"}), 0);
  EXPECT_EQ(tokens({cuda, threads, nano}), 8192) << "fp32, through efficient attention";
  EXPECT_EQ(tokens({cuda, threads, nano, "model.sliding_window=100"}), 0) << "matrix products";
  EXPECT_EQ(tokens({cuda, threads, nano, bf16, "model.sliding_window=100"}), 8192);
  EXPECT_EQ(tokens({cuda, threads, nano, "model.dtype=float64"}), 0) << "matrix products";
  EXPECT_EQ(tokens({cuda, threads, bf16, nano, "attention.kernel=aten"}), 8192);
  EXPECT_EQ(tokens({cuda, threads, bf16, nano, "attention.kernel=fa4"}), 0);
  EXPECT_EQ(tokens({bf16, nano}), 0) << "on the CPU";
  EXPECT_EQ(peak(2, load_config("", {"attention.kernel=aten"})).deterministic_times, 0);
}

}  // namespace
}  // namespace distca
