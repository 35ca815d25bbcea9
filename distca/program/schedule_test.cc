#include "distca/program/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "distca/program/program_testing.h"

namespace distca::testing {
namespace {

TEST(Schedule, smoke) {
  const StepExchanges step = plan_step({{2000, 300, 100}, {1500, 900}}, Cluster::in_place(2));
  for (const ScheduleName& s : kSchedules) {
    fmt::print("{}\n{}\n", s.name,
               print_program(program_of(step, 0, {.schedule = s.schedule, .resent = true})));
    fmt::print("{}\n", order_of(program_of(step, 0, {.schedule = s.schedule, .resent = true})));
  }
}

}  // namespace
}  // namespace distca::testing
