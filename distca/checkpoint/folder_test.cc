#include "distca/checkpoint/folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/checkpoint/checkpoint_testing.h"

namespace distca {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class checkpoint_folder : public ::testing::Test {
 protected:
  checkpoint_folder() { fs::remove_all(run_); }
  ~checkpoint_folder() override { fs::remove_all(run_); }

  static std::vector<int64_t> steps(const std::vector<CheckpointPlace>& places) {
    std::vector<int64_t> steps;
    for (const CheckpointPlace& place : places) {
      EXPECT_EQ(read_checkpoint_index(place.folder).step, place.step);
      steps.push_back(place.step);
    }
    return steps;
  }

  const fs::path run_ = fs::path(::testing::TempDir()) / fmt::format("distca_folder_{}", getpid());
};

TEST_F(checkpoint_folder, an_unfinished_one_is_never_found) {
  EXPECT_THAT(complete_checkpoints(run_), IsEmpty());
  EXPECT_THROW(find_checkpoints(run_), Error);
  write_unfinished(run_, 3);
  EXPECT_THAT(complete_checkpoints(run_), IsEmpty());
  const fs::path complete = write_checkpoint(run_, 2);
  fs::create_directories(run_ / "checkpoints/step_12");  // not a name of ours
  EXPECT_THAT(steps(complete_checkpoints(run_)), ElementsAre(2));
  EXPECT_EQ(find_checkpoints(run_).newest(), complete);
  remove_unfinished_checkpoints(run_);
  EXPECT_FALSE(fs::exists(unfinished_checkpoint(run_, 3)));
  EXPECT_TRUE(fs::exists(complete));
}

TEST_F(checkpoint_folder, a_path_means_a_checkpoint_or_all_of_a_run) {
  const fs::path first = write_checkpoint(run_, 2), last = write_checkpoint(run_, 4);
  for (const fs::path& path : {run_, run_ / "", run_ / "checkpoints", run_ / "checkpoints/"}) {
    const FoundCheckpoints found = find_checkpoints(path);
    EXPECT_THAT(steps(found.places), ElementsAre(2, 4)) << path;
    EXPECT_TRUE(fs::equivalent(found.newest(), last)) << path;
    EXPECT_TRUE(fs::equivalent(found.run.value(), run_)) << path;
  }
  for (const fs::path& path : {first, first / ""}) {
    const FoundCheckpoints found = find_checkpoints(path);
    EXPECT_FALSE(found.run);
    EXPECT_THAT(steps(found.places), ElementsAre(2)) << path;
  }
}

TEST_F(checkpoint_folder, one_that_lost_its_index_is_there_and_damaged) {
  write_checkpoint(run_, 2);
  fs::remove(write_checkpoint(run_, 4) / kIndexFile);
  const fs::path newest = find_checkpoints(run_).newest();
  EXPECT_EQ(newest.filename(), "step_000004");
  EXPECT_EQ(find_checkpoints(newest).newest(), newest);
  EXPECT_THROW(read_checkpoint_index(newest), Error);
}

TEST_F(checkpoint_folder, old_ones_go_but_for_those_to_keep) {
  for (const int64_t step : {10, 20, 30, 40, 50}) write_checkpoint(run_, step);
  remove_old_checkpoints(run_, 50, 0, 0);
  EXPECT_THAT(steps(complete_checkpoints(run_)), ElementsAre(10, 20, 30, 40, 50));
  remove_old_checkpoints(run_, 40, 1, 20);
  EXPECT_THAT(steps(complete_checkpoints(run_)), ElementsAre(20, 40, 50))
      << "later ones do not count";
  remove_old_checkpoints(run_, 50, 2, 20);
  EXPECT_THAT(steps(complete_checkpoints(run_)), ElementsAre(20, 40, 50));
  remove_old_checkpoints(run_, 50, 1, 0);
  EXPECT_THAT(steps(complete_checkpoints(run_)), ElementsAre(50));
}

TEST_F(checkpoint_folder, those_before_a_bad_step_count_for_nothing_and_go_with_the_next) {
  write_checkpoint(run_, 10);
  write_checkpoint(run_, 20);
  mark_bad_step(run_, 25);
  write_checkpoint(run_, 25);
  EXPECT_EQ(newest_good(run_, 30).value().step, 20);
  EXPECT_EQ(newest_good(run_, 19).value().step, 10);
  EXPECT_FALSE(newest_good(run_, 9));
  remove_old_checkpoints(run_, 30, 1, 5);
  EXPECT_THAT(steps(complete_checkpoints(run_)), ElementsAre(10, 20, 25));
  remove_old_checkpoints(run_, 30, 1, 0);
  EXPECT_THAT(steps(complete_checkpoints(run_)), ElementsAre(20, 25));
  EXPECT_TRUE(complete_checkpoints(run_).back().before_bad_step);
  for (const CheckpointPlace& place : complete_checkpoints(run_)) {
    const std::string words = describe_weights(place.folder, place.step);
    EXPECT_EQ(words.find("may be spoilt") != std::string::npos, place.step == 25) << words;
  }
  write_checkpoint(run_, 30);
  remove_old_checkpoints(run_, 30, 2, 5);
  EXPECT_THAT(steps(complete_checkpoints(run_)), ElementsAre(20, 30));
}

TEST_F(checkpoint_folder, what_is_set_aside_stays_until_it_is_removed) {
  for (const int64_t step : {10, 20, 30}) write_checkpoint(run_, step);
  set_aside_checkpoints(run_, 10);
  EXPECT_THAT(steps(complete_checkpoints(run_)), ElementsAre(10));
  EXPECT_THAT(steps(old_checkpoints(run_)), ElementsAre(20, 30));
  const fs::path older = run_ / "checkpoints.old" / "step_000020";
  write_file_atomically(older / "mine", "of another branch");
  write_checkpoint(run_, 20);
  set_aside_checkpoints(run_, 0);
  EXPECT_THAT(complete_checkpoints(run_), IsEmpty());
  EXPECT_THAT(steps(old_checkpoints(run_)), ElementsAre(10, 20, 20, 30));
  EXPECT_EQ(read_file(older / "mine"), "of another branch");
  EXPECT_EQ(find_checkpoints(older.string() + ".2").places.back().step, 20);
  remove_set_aside(run_);
  EXPECT_FALSE(fs::exists(run_ / "checkpoints.old"));
}

TEST_F(checkpoint_folder, what_was_set_aside_is_the_runs_own_no_longer) {
  const fs::path first = write_checkpoint(run_, 10), last = write_checkpoint(run_, 20);
  set_aside_checkpoints(run_, 10);
  EXPECT_TRUE(is_checkpoint_of(run_, first));
  EXPECT_TRUE(is_checkpoint_of(run_ / "", first / ""));
  EXPECT_FALSE(is_checkpoint_of(run_, run_ / "checkpoints.old" / last.filename()));
  EXPECT_FALSE(is_checkpoint_of(run_, last)) << "it is not there";
  EXPECT_FALSE(is_checkpoint_of(run_ / "checkpoints", first));
}

TEST_F(checkpoint_folder, a_save_that_was_given_up_is_apart_from_later_ones) {
  give_up_checkpoint(run_, 3);  // nobody has written
  for (int times = 0; times < 2; ++times) {
    write_unfinished(run_, 3);
    give_up_checkpoint(run_, 3);
    EXPECT_FALSE(fs::exists(unfinished_checkpoint(run_, 3)));
  }
  write_unfinished(run_, 3);
  remove_given_up(run_);
  EXPECT_EQ(std::distance(fs::directory_iterator(checkpoints_folder(run_)), {}), 1);
  give_up_checkpoint(run_, 3);
  write_unfinished(run_, 3);
  remove_unfinished_checkpoints(run_);
  EXPECT_TRUE(fs::is_empty(checkpoints_folder(run_)));
}

TEST_F(checkpoint_folder, one_of_the_same_step_is_replaced) {
  write_checkpoint(run_, 10, 2);
  write_checkpoint(run_, 10, 3);
  ASSERT_THAT(steps(complete_checkpoints(run_)), ElementsAre(10));
  EXPECT_EQ(read_checkpoint_index(find_checkpoints(run_).newest()).files.size(), 3u);
}

}  // namespace
}  // namespace distca
