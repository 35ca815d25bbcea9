#include "distca/train/run_state.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(RunState, says_at_which_step_it_was_stopped_and_what_is_saved_where) {
  RunState state("runs/demo", 100);
  EXPECT_EQ(
      state.stopped_by("SIGINT"),
      "stopped by SIGINT before the end of step 1 of 100; no weights of it are saved (they are "
      "written at the end of a run)");
  state.step_done(1);
  EXPECT_EQ(
      state.stopped_by("SIGTERM"),
      "stopped by SIGTERM after step 1 of 100; no weights of it are saved (they are written at "
      "the end of a run); runs/demo/metrics.jsonl has 1 step");
  state.step_done(100);
  state.begin_saving();
  EXPECT_EQ(
      state.stopped_by("SIGHUP"),
      "stopped by SIGHUP while it saved after step 100 of 100: runs/demo/model.safetensors is "
      "whole or as it was");
  state.saved();
  EXPECT_EQ(state.stopped_by("SIGHUP"),
            "stopped by SIGHUP after step 100 of 100; the weights are saved in "
            "runs/demo/model.safetensors");
}

}  // namespace
}  // namespace distca
