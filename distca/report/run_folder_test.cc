#include "distca/report/run_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/batch/test_folder.h"
#include "distca/checkpoint/checkpoint_testing.h"
#include "distca/report/metrics_file.h"

namespace distca {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::string metrics_line(int64_t step) {
  return fmt::format(R"({{"imbalance_after":1.0,"loss":5.0,"step":{}}})", step);
}

/// A safetensors file without tensors.
std::string safetensors(const std::string& metadata) {
  std::string header = fmt::format(R"({{"__metadata__":{{{}}}}})", metadata);
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header;
}
std::string our_weights(int64_t steps, const std::string& note = "") {
  return safetensors(fmt::format(R"("format":"pt","producer":"distca train","steps":"{}"{})", steps,
                                 note.empty() ? "" : fmt::format(R"(,"note":"{}")", note)));
}

class RunFolderTest : public FolderTest {
 protected:
  fs::path run() const { return folder_ / "run"; }

  void write(const char* name, const std::string& text) {
    write_file_atomically(run() / name, text);
  }

  /// Makes the files that a run of so many steps leaves before it writes its weights or, if
  /// `finished`, with them.
  void make_run(int64_t steps, bool finished, const std::string& note = "old") {
    RunFolder folder(run(), {.overwrite = true});
    folder.reserve(10, note + " config");
    folder.begin("[train]\nsteps = " + std::to_string(steps) + "\n");
    MetricsFile metrics(folder.metrics_path(), 300);
    for (int64_t step = 1; step <= steps; ++step) metrics.add(metrics_line(step));
    if (finished) folder.save([&](AtomicFile& file) { file.write(our_weights(steps, note)); });
  }

  /// Every file of the folder with its bytes.
  std::map<std::string, std::string> contents() const {
    std::map<std::string, std::string> all;
    if (!fs::exists(run())) return all;
    for (const fs::directory_entry& entry : fs::directory_iterator(run()))
      all[entry.path().filename()] = entry.is_regular_file() ? read_file(entry.path()) : "no file";
    return all;
  }

  /// Both the look and the taking refuse, with one message, and leave everything as it is.
  std::string refusal(bool overwrite) {
    const auto before = contents();
    std::string look = "accepted", taking = "accepted";
    try {
      check_run_folder(run(), {.overwrite = overwrite});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      look = error.what();
    }
    EXPECT_EQ(contents(), before);
    try {
      const RunFolder folder(run(), {.overwrite = overwrite});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      taking = error.what();
    }
    EXPECT_EQ(contents(), before);
    EXPECT_EQ(look, taking);
    return taking;
  }
};

TEST_F(RunFolderTest, a_run_leaves_four_files) {
  make_run(3, true);
  const auto files = contents();
  EXPECT_EQ(files.size(), 4u);
  EXPECT_EQ(files.at("config.json"), "old config");
  EXPECT_EQ(files.at("model.safetensors"), our_weights(3, "old"));
  EXPECT_EQ(files.at("metrics.jsonl"),
            metrics_line(1) + "\n" + metrics_line(2) + "\n" + metrics_line(3) + "\n");
  EXPECT_EQ(files.at("config.toml"), std::string(kConfigTomlMark) + "\n[train]\nsteps = 3\n");
}

TEST_F(RunFolderTest, a_finished_run_is_replaced_with_permission_only) {
  make_run(100, true);
  EXPECT_THAT(refusal(false), AllOf(HasSubstr(run().string()), HasSubstr("(100 steps, 20"),
                                    HasSubstr("train.overwrite=true")));
  RunFolder folder(run(), {.overwrite = true});
  EXPECT_THAT(folder.replaces(), MatchesRegex("replacing the run in .*/run \\(100 steps, "
                                              "20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]\\)"));
}

TEST_F(RunFolderTest, an_unfinished_run_is_replaced_and_that_is_said) {
  make_run(7, false);
  check_run_folder(run(), {});
  {
    RunFolder folder(run(), {});
    EXPECT_THAT(folder.replaces(),
                AllOf(HasSubstr("replacing the unfinished run in "), HasSubstr("(7 steps, ")));
    EXPECT_NE(contents().at("metrics.jsonl"), "") << "it has not begun";
    folder.reserve(10, "");
    folder.begin("");
    EXPECT_EQ(contents().at("metrics.jsonl"), "");
  }
  // One that was killed before its first step is of no worth.
  EXPECT_EQ(RunFolder(run(), {}).replaces(), "");
}

TEST_F(RunFolderTest, what_no_run_made_is_refused_with_permission_too) {
  const std::pair<const char*, std::string> foreign[] = {
      {"model.safetensors", safetensors(R"("format":"pt")")},
      {"model.safetensors", "precious"},
      {"model.safetensors", ""},
      {"config.json", "{}"},
      {"config.toml", "[package]\nname = \"mine\"\n"},
      {"config.toml", std::string(kConfigTomlMark) + "\ncopied by hand\n"},
      {"metrics.jsonl", "{}\n"},
      {"metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n"},
      {"metrics.jsonl", "no json"},
  };
  for (const auto& [name, text] : foreign) {
    fs::remove_all(run());
    write(name, text);
    for (bool overwrite : {false, true}) {
      EXPECT_THAT(refusal(overwrite), AllOf(HasSubstr((run() / name).string() + ": no run "),
                                            HasSubstr("name another train.output_dir")))
          << text;
    }
  }
}

TEST_F(RunFolderTest, a_model_of_others_beside_a_run_is_refused_with_permission_too) {
  make_run(3, true);
  write("model.safetensors", safetensors(R"("format":"pt")"));
  EXPECT_THAT(
      refusal(true),
      HasSubstr("model.safetensors: no run of distca, or one of an older version, made this file"));
  fs::remove(run() / "model.safetensors");
  EXPECT_THAT(
      refusal(true),
      HasSubstr("config.json: no run of distca, or one of an older version, made this file"));
}

TEST_F(RunFolderTest, links_and_folders_of_these_names_are_refused) {
  for (const char* name : {"config.toml", "metrics.jsonl", "model.safetensors", "config.json"}) {
    fs::remove_all(run());
    fs::create_directories(run());
    fs::create_symlink("/dev/null", run() / name);
    EXPECT_THAT(refusal(true), HasSubstr("something that is not a file"));
    fs::remove(run() / name);
    fs::create_directory(run() / name);
    EXPECT_THAT(refusal(true), HasSubstr("something that is not a file"));
  }
}

TEST_F(RunFolderTest, other_files_are_no_matter) {
  write("notes.txt", "mine");
  write("tokenizer.json", "{}");
  make_run(2, true);
  EXPECT_EQ(contents().at("notes.txt"), "mine");
  EXPECT_EQ(contents().at("tokenizer.json"), "{}");
}

TEST_F(RunFolderTest, weights_stay_until_the_new_ones_are_whole) {
  make_run(3, true, "old");
  const std::string old_weights = contents().at("model.safetensors");
  RunFolder folder(run(), {.overwrite = true});
  folder.reserve(1 << 16, "new config");
  folder.begin("");
  const auto expect_old = [&] {
    EXPECT_EQ(contents().at("model.safetensors"), old_weights);
    EXPECT_EQ(contents().at("config.json"), "old config");
  };
  expect_old();
  folder.save([&](AtomicFile& file) {
    file.write(our_weights(5, "new"));
    expect_old();
  });
  EXPECT_EQ(contents().at("model.safetensors"), our_weights(5, "new"));
  EXPECT_EQ(contents().at("config.json"), "new config");
  EXPECT_EQ(contents().size(), 4u);
}

TEST_F(RunFolderTest, weights_that_cannot_be_written_leave_the_older_ones_and_say_what_is_lost) {
  make_run(3, true, "old");
  const auto weights = contents().at("model.safetensors");
  {
    RunFolder folder(run(), {.overwrite = true});
    folder.reserve(10, "new config");
    folder.begin("");
    try {
      folder.save([](AtomicFile& file) { throw Error(ErrorKind::kIo, "FILE: no space"); });
      FAIL() << "the error was swallowed";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("FILE: no space; the weights are not saved: the run has "
                                  "no checkpoint, and they are lost"),
                        HasSubstr("those of the run before are as they were")));
    }
  }
  EXPECT_EQ(contents().at("model.safetensors"), weights);
  EXPECT_EQ(contents().at("config.json"), "old config");
  EXPECT_EQ(contents().size(), 5u) << "the fifth says that the weights are older";
  EXPECT_THROW(newest_weights(run()), Error);
}

TEST_F(RunFolderTest, a_disk_without_room_is_found_before_anything_is_touched) {
  make_run(3, true);
  const auto before = contents();
  {
    RunFolder folder(run(), {.overwrite = true});
    EXPECT_THROW(folder.reserve(int64_t{1} << 60, ""), Error);
  }
  EXPECT_EQ(contents(), before);
  fs::remove_all(run());
  {
    RunFolder folder(run(), {.overwrite = true});
    EXPECT_THROW(folder.reserve(int64_t{1} << 60, ""), Error);
  }
  EXPECT_FALSE(fs::exists(run())) << "a run that did not begin left its folder";
}

/// The two renames at the end of a run, with a kill before, between and after.
TEST_F(RunFolderTest, a_replacement_that_was_cut_off_is_finished_or_undone) {
  const std::string old_weights = our_weights(3, "old"), new_weights = our_weights(5, "new");
  const auto after_a_look = [&] {
    EXPECT_THROW(check_run_folder(run(), {}), Error);
    EXPECT_EQ(contents().size(), 4u) << "something staged is left";
    return std::pair(contents().at("model.safetensors"), contents().at("config.json"));
  };
  make_run(3, true, "old");
  write(".model.safetensors.new",
        new_weights);  // config.json was not staged: not everything is there
  EXPECT_EQ(after_a_look(), std::pair(old_weights, std::string("old config")));
  write(".model.safetensors.new", new_weights);
  write(".config.json.new", "new config");
  EXPECT_EQ(after_a_look(), std::pair(new_weights, std::string("new config")));

  make_run(3, true, "old");
  write("model.safetensors", new_weights);
  write(".config.json.new", "new config");
  EXPECT_EQ(after_a_look(), std::pair(new_weights, std::string("new config")));
}

TEST_F(RunFolderTest, temporary_files_of_killed_runs_go_and_no_others) {
  make_run(1, false);
  for (const char* name : {".model.safetensors.123.tmp", ".config.json.7.tmp", ".config.json.x.tmp",
                           ".notes.123.tmp", "model.safetensors.123.tmp"})
    write(name, "x");
  const RunFolder folder(run(), {});
  std::vector<std::string> names;
  for (const auto& [name, text] : contents()) names.push_back(name);
  EXPECT_THAT(names, ::testing::ElementsAre(".config.json.x.tmp", ".notes.123.tmp", "config.toml",
                                            "metrics.jsonl", "model.safetensors.123.tmp"));
}

TEST_F(RunFolderTest, checkpoints_hold_a_run) {
  make_run(30, false);
  for (const int64_t step : {10, 20, 30}) write_checkpoint(run(), step);
  try {
    check_run_folder(run(), {});
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("holds a run with checkpoints (30 steps"),
                                    HasSubstr("--resume"), HasSubstr("train.overwrite=true")));
  }
  EXPECT_EQ(complete_checkpoints(run()).size(), 3u);
}

TEST_F(RunFolderTest, a_run_that_goes_on_keeps_its_lines_and_checkpoints_up_to_there) {
  make_run(30, false);
  for (const int64_t step : {10, 20, 30}) write_checkpoint(run(), step);
  fs::create_directories(unfinished_checkpoint(run(), 31));
  const std::string lines = contents().at("metrics.jsonl");
  {
    RunFolder folder(run(), {.goes_on_after = 20});
    EXPECT_EQ(
        folder.replaces(),
        run().string() + " has 30 steps; those after step 20 go once this run has saved its own");
    EXPECT_EQ(contents().at("metrics.jsonl"), lines);
    folder.begin("# new");
  }
  const std::string cut = contents().at("metrics.jsonl");
  EXPECT_TRUE(lines.starts_with(cut));
  EXPECT_EQ(std::ranges::count(cut, '\n'), 20);
  EXPECT_EQ(complete_checkpoints(run()).back().step, 20);
  EXPECT_EQ(old_checkpoints(run()).back().step, 30);
  EXPECT_FALSE(fs::exists(unfinished_checkpoint(run(), 31)));
}

TEST_F(RunFolderTest, steps_behind_the_one_that_a_run_goes_on_from_are_given_up_only_for_new_ones) {
  make_run(30, true);
  for (const int64_t step : {10, 20}) write_checkpoint(run(), step);
  EXPECT_EQ(
      RunFolder(run(), {.goes_on_after = 10}).replaces(),
      run().string() + " has 30 steps; those after step 10 go once this run has saved its own");
  const TakeFolder for_no_step{.goes_on_after = 10, .trains = false};
  EXPECT_THROW(check_run_folder(run(), for_no_step), Error);
  check_run_folder(run(), {.overwrite = true, .goes_on_after = 10, .trains = false});
  check_run_folder(run(), {.goes_on_after = 30, .trains = false});
  make_run(5, false);  // another one, which saves nothing
  write_checkpoint(run(), 5);
  EXPECT_EQ(RunFolder(run(), {.goes_on_after = 5, .trains = false}).replaces(), "");
}

TEST_F(RunFolderTest, the_newest_weights_are_never_those_of_a_run_that_another_one_replaces) {
  const auto newest = [&]() -> std::pair<std::string, std::optional<int64_t>> {
    const NewestWeights found = newest_weights(run());
    return {found.checkpoint.filename(), found.steps};
  };
  using Found = std::pair<std::string, std::optional<int64_t>>;
  make_run(30, true);
  EXPECT_EQ(newest(), Found("", 30));
  write_checkpoint(run(), 20);
  EXPECT_EQ(newest(), Found("", 30));
  { RunFolder(run(), {.goes_on_after = 20}).begin(""); }  // It is killed, as all that follow.
  EXPECT_EQ(newest(), Found("step_000020", 20));
  write_checkpoint(run(), 25);
  EXPECT_EQ(newest(), Found("step_000025", 25));
  make_run(3, false);
  EXPECT_THROW(newest(), Error) << "its checkpoints are set aside, and it has saved nothing";
  write_checkpoint(run(), 40);
  EXPECT_EQ(newest(), Found("step_000040", 40));
  make_run(50, true);
  EXPECT_EQ(newest(), Found("", 50));
  { RunFolder(run(), {.goes_on_after = 50}).begin(""); }
  EXPECT_EQ(newest(), Found("", 50)) << "its own weights of before";
}

TEST_F(RunFolderTest, a_folder_says_whose_its_weights_are_until_the_run_has_saved_its_own) {
  const auto begun = [&](const TakeFolder& how) {
    RunFolder folder(run(), how);
    folder.begin("");
    EXPECT_EQ(folder.replaces_model(), contents().at(".older_weights") == "of another run\n");
    return contents().at(".older_weights");
  };
  make_run(30, true);
  EXPECT_FALSE(contents().contains(".older_weights"));
  EXPECT_EQ(begun({.goes_on_after = 30}), "of the step that this run goes on from\n");
  EXPECT_EQ(begun({.goes_on_after = 20}), "of steps that this run has given up\n");
  EXPECT_EQ(begun({.goes_on_after = 30}), "of steps that this run has given up\n") << "others' 30";
  EXPECT_EQ(begun({.overwrite = true}), "of another run\n");
  EXPECT_EQ(begun({.goes_on_after = 30}), "of another run\n") << "it goes on with the replacement";
  RunFolder folder(run(), {.goes_on_after = 30});
  folder.reserve(10, "config");
  folder.begin("");
  folder.save([](AtomicFile& file) { file.write("weights"); },
              [&] { EXPECT_TRUE(contents().contains(".older_weights")); });
  EXPECT_FALSE(contents().contains(".older_weights"));
}

TEST_F(RunFolderTest, weights_that_no_run_made_are_the_newest) {
  fs::create_directories(run());
  write("model.safetensors", safetensors(R"("format":"pt")"));
  EXPECT_TRUE(newest_weights(run()).checkpoint.empty());
  EXPECT_EQ(newest_weights(run()).steps, std::nullopt);
  fs::remove(run() / "model.safetensors");
  EXPECT_THROW(newest_weights(run()), Error);
}

TEST_F(RunFolderTest, lines_are_cut_from_the_end) {
  make_run(30, false);
  const std::string lines = contents().at("metrics.jsonl");
  const size_t after_5 = lines.find(metrics_line(6)), after_20 = lines.find(metrics_line(21));
  const std::string torn = lines.substr(0, after_5) + "torn\n" + lines.substr(after_5);
  for (const char* end : {"", "\n", "{\"step\":31", "x\ny\n"}) {
    write("metrics.jsonl", torn + end);
    { RunFolder(run(), {.goes_on_after = 20}).begin(""); }
    EXPECT_EQ(contents().at("metrics.jsonl"), torn.substr(0, after_20 + 5)) << end;
    write("metrics.jsonl", lines + end);
    { RunFolder(run(), {.goes_on_after = 30}).begin(""); }
    EXPECT_EQ(contents().at("metrics.jsonl"), lines) << end;
  }
  for (const std::string& all : {metrics_line(21) + "\n", metrics_line(1), std::string()}) {
    write("metrics.jsonl", all);
    { RunFolder(run(), {.overwrite = true, .goes_on_after = 20}).begin(""); }
    EXPECT_EQ(contents().at("metrics.jsonl"), "");
  }
}

TEST_F(RunFolderTest, checkpoints_that_are_replaced_go_when_the_new_weights_are_whole) {
  make_run(30, false);
  write_checkpoint(run(), 30);
  RunFolder folder(run(), {.overwrite = true});
  folder.reserve(10, "config");
  EXPECT_EQ(complete_checkpoints(run()).size(), 1u);
  folder.begin("");
  EXPECT_EQ(complete_checkpoints(run()).size(), 0u);
  EXPECT_EQ(old_checkpoints(run()).size(), 1u);
  folder.save([](AtomicFile& file) { file.write("weights"); });
  EXPECT_EQ(old_checkpoints(run()).size(), 0u);
}

TEST_F(RunFolderTest, one_run_a_folder) {
  {
    RunFolder first(run(), {.overwrite = true});
    EXPECT_THAT(refusal(true), HasSubstr("another run is writing here"));
    first.reserve(10, "");
    first.begin("");
    EXPECT_THAT(refusal(true), HasSubstr("another run is writing here"));
  }
  check_run_folder(run(), {});
}

TEST_F(RunFolderTest, the_lock_goes_with_a_killed_process) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    RunFolder folder(run(), {});
    folder.reserve(10, "");
    folder.begin("");
    if (::write(ready[1], "x", 1) == 1) pause();
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THAT(refusal(false), HasSubstr("another run is writing here"));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  RunFolder folder(run(), {});
  EXPECT_EQ(contents().size(), 2u);
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace distca
