#include "distca/train/same_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "distca/base/error.h"
#include "distca/comm/thread_group.h"

namespace distca {
namespace {

/// Returns the error of three ranks, each of which changes its own configuration, or "" if there is
/// none. All ranks must throw the same.
std::string said(const std::function<void(int, Config&, ResolvedConfig&)>& change) {
  std::vector<std::string> lines(3);
  run_ranks(3, {.timeout_s = 300}, [&](Communicator& comm) {
    Config config;
    ResolvedConfig resolved{.price = "pairs", .kernel = "cpu"};
    change(comm.rank(), config, resolved);
    try {
      check_same_config(comm, config, resolved);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      lines[comm.rank()] = error.what();
    }
  });
  EXPECT_EQ(lines[1], lines[0]);
  EXPECT_EQ(lines[2], lines[0]);
  return lines[0];
}

void alter(const ConfigKey& key) {
  if (auto* const* whole = std::get_if<int64_t*>(&key.value)) {
    **whole += 1;
  } else if (auto* const* real = std::get_if<double*>(&key.value)) {
    **real += 0.125;
  } else if (auto* const* flag = std::get_if<bool*>(&key.value)) {
    **flag = !**flag;
  } else if (auto* const* numbers = std::get_if<std::vector<int64_t>*>(&key.value)) {
    (*numbers)->push_back(1);
  } else if (auto* const* texts = std::get_if<std::vector<std::string>*>(&key.value)) {
    (*texts)->emplace_back("x");
  } else if (auto* const* tolerance = std::get_if<Tolerance*>(&key.value)) {
    (*tolerance)->is_auto = true;
  } else if (const auto* choice = std::get_if<WordValue>(&key.value)) {
    choice->choose(choice->word() == key.choices[0] ? key.choices[1] : key.choices[0]);
  } else {
    *std::get<std::string*>(key.value) += "x";
  }
}

TEST(SameConfig, a_difference_in_any_key_but_a_ranks_own_is_refused_by_name) {
  const std::set<std::string> own = {"data.prefix", "train.output_dir", "train.overwrite",
                                     "train.threads_per_rank",
                                     // Compared by what they were resolved to.
                                     "plan.profile", "attention.kernel"};
  Config some;
  for (const ConfigKey& key : config_keys(some)) {
    const std::string line = said([&](int rank, Config& config, ResolvedConfig&) {
      if (rank != 1) return;
      for (const ConfigKey& its : config_keys(config)) {
        if (its.name == key.name) alter(its);
      }
    });
    if (own.contains(key.name)) {
      EXPECT_EQ(line, "") << key.name;
    } else {
      EXPECT_TRUE(line.starts_with("rank 1 has " + key.name + " = ")) << key.name << ": " << line;
    }
  }
}

TEST(SameConfig, the_line_says_who_has_what) {
  EXPECT_EQ(said([](int rank, Config& config, ResolvedConfig&) {
              config.optimizer.lr = rank == 0 ? 0.001 : 0.1;
              config.train.seed = rank;  // comes later
            }),
            "ranks 1, 2 have optimizer.lr = 0.1, rank 0 has 0.001: give all ranks the same");
  EXPECT_EQ(said([](int rank, Config&, ResolvedConfig& resolved) {
              if (rank == 2) resolved = {.price = "h200", .kernel = "cpu"};
            }),
            "rank 2 has plan.profile = h200, rank 0 has pairs: give all ranks the same");
  EXPECT_EQ(said([](int rank, Config&, ResolvedConfig& resolved) {
              if (rank == 2) resolved.kernel = "aten-cpu";
            }),
            "rank 2 has attention.kernel = aten-cpu, rank 0 has cpu: give all ranks the same");
}

TEST(SameConfig, data_is_compared_by_what_it_holds_and_named_by_its_place) {
  EXPECT_EQ(said([](int rank, Config& config, ResolvedConfig& resolved) {
              config.data.prefix = rank == 1 ? "/b/text" : "/a/text";
              resolved.data = "40 documents, 700 tokens, contents 01";
              if (rank == 1) resolved.data = "40 documents, 700 tokens, contents 02";
            }),
            "rank 1 has data.prefix = /b/text (40 documents, 700 tokens, contents 02), rank 0 has "
            "/a/text (40 documents, 700 tokens, contents 01): give all ranks the same");
}

TEST(SameConfig, ranks_whose_pytorch_computes_with_other_instructions_are_named) {
  EXPECT_EQ(said([](int rank, Config&, ResolvedConfig& resolved) {
              resolved.isa = rank == 2 ? "AVX2" : "AVX512";
            }),
            "rank 2 has ATEN_CPU_CAPABILITY = AVX2, rank 0 has AVX512: give all ranks the same");
}

TEST(SameConfig, ranks_may_write_their_trace_anywhere_but_all_or_none_have_one) {
  EXPECT_EQ(said([](int rank, Config& config, ResolvedConfig&) {
              config.train.trace = "trace" + std::to_string(rank);
            }),
            "");
  EXPECT_EQ(said([](int rank, Config& config, ResolvedConfig&) {
              if (rank == 1) config.train.trace = "trace";
            }),
            "rank 1 has train.trace = a file, rank 0 has no file: give all ranks the same");
}

}  // namespace
}  // namespace distca
