#include "distca/report/run_state.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(RunState, says_at_which_step_it_was_stopped_and_what_is_saved_where) {
  RunState state("runs/demo", 100);
  EXPECT_EQ(state.stopped_by("SIGINT"),
            "stopped by SIGINT before the first step, with nothing new to save");
  state.begin_steps(0, 0);
  state.step_done(1);
  EXPECT_EQ(state.stopped_by("SIGTERM"),
            "stopped by SIGTERM at once after step 1 of 100; no checkpoint of it is saved; "
            "runs/demo/metrics.jsonl has 1 step");
  state.step_done(57);
  state.checkpoint_complete(50);
  EXPECT_EQ(state.stopped_by("SIGTERM"),
            "stopped by SIGTERM at once after step 57 of 100; the last checkpoint is that of step "
            "50; runs/demo/metrics.jsonl has 57 steps");
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

TEST(RunState, a_signal_is_a_request_once_training_has_begun) {
  RunState state("runs/demo", 100);
  EXPECT_FALSE(state.request_stop(15));
  EXPECT_EQ(state.stop_requested(), 0);
  state.begin_steps(40, 40);
  EXPECT_TRUE(state.request_stop(15));
  EXPECT_EQ(state.stop_requested(), 15);
}

}  // namespace
}  // namespace distca
