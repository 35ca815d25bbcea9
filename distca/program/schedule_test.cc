#include "distca/program/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/program/program_testing.h"
#include "distca/program/validate.h"

namespace distca::testing {
namespace {

using ::testing::IsEmpty;

/// One letter for one shape of a step.
struct Pool {
  int workers, dedicated;
  bool in_place;
};
constexpr Pool kPools[] = {{1, 0, true},  {2, 0, true},  {3, 0, true},  {7, 0, true},
                           {1, 1, true},  {1, 1, false}, {2, 1, true},  {2, 1, false},
                           {2, 2, true},  {2, 2, false}, {3, 1, true},  {3, 2, false},
                           {7, 1, true},  {7, 2, false}};

const std::vector<std::vector<std::vector<int64_t>>> kSteps = {
    {{2000, 300, 100}},
    {{2000, 300, 100}, {1500, 900, 700, 40}},
    {{5000}, {130, 260, 390, 7}, {2000, 300, 100, 77}},
    {{3000, 500}, {}},      // an empty partner
    {{}, {3000, 500}, {1}}, // one token
};

TEST(Schedule, every_program_is_valid_for_all_ranks_together) {
  for (const Pool& shape : kPools) {
    for (const auto& lengths : kSteps) {
      for (const bool key_sub_ranges : {false, true}) {
        const StepExchanges step =
            plan_step(lengths, pool(shape.workers, shape.dedicated, shape.in_place),
                      {.scheduler = "balanced", .key_sub_ranges = key_sub_ranges});
        for (const ScheduleName& schedule : kSchedules) {
          for (const bool resent : {false, true}) {
            for (const ScalarType gradient : {ScalarType::kBFloat16, ScalarType::kFloat32}) {
              for (const auto kind :
                   {ProgramRequest::Kind::kTrain, ProgramRequest::Kind::kEvaluate}) {
                const Style style{.schedule = schedule.schedule,
                                  .resent = resent,
                                  .kind = kind,
                                  .num_layers = 3,
                                  .types = {.compute = ScalarType::kBFloat16,
                                            .gradient = gradient}};
                EXPECT_THAT(validate(programs_of(step, style)), IsEmpty())
                    << schedule.name << ", " << shape.workers << " + " << shape.dedicated;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace distca::testing
