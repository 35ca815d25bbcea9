#include "distca/kernels/cpu/isa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <set>
#include <string>

#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/kernels/cpu/engine.h"

namespace distca::kernels {
namespace {

constexpr const char* kForced = "DISTCA_KERNEL_ISA";
constexpr Isa kAll[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};

/// The variable as a test wants it, and afterwards as it was.
class IsaChoice : public ::testing::Test {
 protected:
  IsaChoice() { unsetenv(kForced); }
  ~IsaChoice() override {
    unsetenv(kForced);
    if (before_) setenv(kForced, before_->c_str(), 1);
  }

 private:
  const std::optional<std::string> before_ = env_string(kForced);
};

std::string refusal() {
  try {
    chosen_isa();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "nothing refused";
}

TEST_F(IsaChoice, names_round_trip_and_others_are_none) {
  for (const Isa isa : kAll) EXPECT_EQ(isa_by_name(isa_name(isa)), isa);
  for (const char* other : {"", "AVX2", "avx", "avx512_bf16 ", "neon"}) {
    EXPECT_FALSE(isa_by_name(other).has_value()) << other;
  }
}

TEST_F(IsaChoice, portable_is_everywhere_and_each_needs_the_one_before) {
  EXPECT_TRUE(isa_available(Isa::kPortable));
  for (size_t i = 1; i < std::size(kAll); ++i) {
    EXPECT_LE(isa_available(kAll[i]), isa_available(kAll[i - 1])) << isa_name(kAll[i]);
  }
}

TEST_F(IsaChoice, unforced_is_the_last_available) {
  Isa last = Isa::kPortable;
  for (const Isa isa : kAll) last = isa_available(isa) ? isa : last;
  EXPECT_EQ(chosen_isa(), last);
  setenv(kForced, "", 1);
  EXPECT_EQ(chosen_isa(), last);
}

TEST_F(IsaChoice, forced_is_used_or_refused_in_one_line) {
  for (const Isa isa : kAll) {
    const std::string name(isa_name(isa));
    setenv(kForced, name.c_str(), 1);
    if (isa_available(isa)) {
      EXPECT_EQ(chosen_isa(), isa);
    } else {
      EXPECT_THAT(refusal(), ::testing::HasSubstr("\"" + name + "\": not on this machine"));
    }
  }
}

TEST_F(IsaChoice, an_unknown_name_is_refused_in_one_line_naming_those_available) {
  setenv(kForced, "sse9", 1);
  std::string available;
  for (const Isa isa : kAll) {
    if (isa_available(isa))
      available += (available.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  EXPECT_EQ(refusal(),
            "environment variable DISTCA_KERNEL_ISA=\"sse9\": unknown instruction set; this "
            "machine has " +
                available);
}

TEST_F(IsaChoice, each_has_an_engine_of_its_own) {
  std::set<const Engine*> engines;
  for (const Isa isa : kAll) {
    if (!isa_available(isa)) continue;
    setenv(kForced, std::string(isa_name(isa)).c_str(), 1);
    EXPECT_TRUE(engines.insert(&engine_of(chosen_isa(), ScalarType::kFloat32)).second)
        << isa_name(isa);
  }
  EXPECT_TRUE(engines.contains(&kPortableEngines.fp32));
}

}  // namespace
}  // namespace distca::kernels
