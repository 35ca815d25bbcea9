#include "tests/run_command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/file.h"
#include "distca/base/random.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLauncherVariables[] = {"RANK=",   "WORLD_SIZE=",   "LOCAL_",
                                                   "MASTER_", "TORCHELASTIC_", "SLURM_",
                                                   "OMPI_",   "PMI",           "DISTCA_"};

std::vector<std::string> clean_environment(const std::map<std::string, std::string>& more) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const bool given = more.contains(std::string(text.substr(0, text.find('='))));
    if (!given && std::ranges::none_of(kLauncherVariables,
                                       [&](auto prefix) { return text.starts_with(prefix); })) {
      entries.emplace_back(text);
    }
  }
  for (const auto& [name, value] : more) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

/// Files of /proc have no size: they cannot be mapped or read by read_file. Empty if the process is
/// gone.
std::string read_proc(pid_t pid, const char* name) {
  std::string text;
  std::FILE* file = std::fopen(fmt::format("/proc/{}/{}", pid, name).c_str(), "r");
  if (file == nullptr) return text;
  for (int byte = std::fgetc(file); byte != EOF; byte = std::fgetc(file)) {
    text += static_cast<char>(byte);
  }
  std::fclose(file);
  return text;
}

}  // namespace

Program::Program(const std::vector<std::string>& arguments,
                 const std::map<std::string, std::string>& environment, const Streams& streams) {
  std::vector<std::string> command = {DISTCA_PROGRAM};
  command.insert(command.end(), arguments.begin(), arguments.end());
  start(std::move(command), environment, streams);
}

Program::Program(const ShellLine& line) {
  std::map<std::string, std::string> environment = line.environment;
  environment["PATH"] = fs::path(DISTCA_PROGRAM).parent_path().string() + ":/usr/bin:/bin";
  start({"/bin/sh", "-c", "cd \"$0\"; " + line.text, line.folder}, environment, {});
}

void Program::start(std::vector<std::string> command,
                    const std::map<std::string, std::string>& environment, const Streams& streams) {
  std::vector<std::string> entries = clean_environment(environment);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  const auto lead = [&](int to, int from, std::FILE* file) {
    if (from == Streams::kClosed) {
      posix_spawn_file_actions_addclose(&files, to);
    } else {
      posix_spawn_file_actions_adddup2(&files, from == Streams::kFile ? fileno(file) : from, to);
    }
  };
  lead(STDOUT_FILENO, streams.out, out_.get());
  lead(STDERR_FILENO, streams.err, err_.get());
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  const int error = posix_spawn(&pid_, command[0].c_str(), &files, &attributes,
                                pointers(command).data(), pointers(entries).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) throw std::runtime_error(fmt::format("{}: cannot be run", command[0]));
}

Program::~Program() {
  signal_group(SIGKILL);
  if (!ended_) waitpid(pid_, nullptr, 0);
}

void Program::signal_group(int signal) const { kill(-pid_, signal); }

pid_t Program::pid_of_rank(int rank) const {
  const std::string entry = fmt::format("DISTCA_RANK={}", rank);
  for (const pid_t pid : processes()) {
    const std::string environment = read_proc(pid, "environ");
    if (environment.starts_with(entry + '\0') ||
        environment.find('\0' + entry + '\0') != std::string::npos) {
      return pid;
    }
  }
  throw std::runtime_error(fmt::format("no process of rank {}", rank));
}

std::vector<pid_t> Program::processes() const {
  std::vector<pid_t> found;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid == 0) continue;
    // "PID (NAME) STATE PARENT GROUP ..."; the name may hold anything.
    const std::string status = read_proc(pid, "stat");
    const size_t name_end = status.rfind(')');
    if (name_end == std::string::npos) continue;
    std::istringstream rest(status.substr(name_end + 1));
    char state = 0;
    pid_t parent = 0, group = 0;
    rest >> state >> parent >> group;
    if (group == pid_ && state != 'Z' && state != 'X') found.push_back(pid);
  }
  return found;
}

Outcome Program::wait(double limit_s) {
  const Stopwatch watch;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (watch.seconds() > limit_s) {
      throw std::runtime_error(fmt::format("still running after {} s\n{}{}", limit_s,
                                           output(out_.get()), output(err_.get())));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ended_ = true;
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = output(out_.get()),
          .err = output(err_.get())};
}

std::string Program::output(std::FILE* file) const {
  std::string text(static_cast<size_t>(lseek(fileno(file), 0, SEEK_END)), '\0');
  const ssize_t got = pread(fileno(file), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

Outcome run_distca(const std::vector<std::string>& arguments) { return Program(arguments).wait(); }

std::string refusal(const std::vector<std::string>& arguments) {
  const Outcome outcome = run_distca(arguments);
  constexpr std::string_view kBeginning = "distca: error: ";
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_TRUE(outcome.err.starts_with(kBeginning)) << outcome.err;
  EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
  return outcome.err.substr(std::min(kBeginning.size(), outcome.err.size()));
}

std::string free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {.sin_family = AF_INET};
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return std::to_string(ntohs(address.sin_port));
}

std::map<std::string, std::string> torchrun_environment(int rank, int size,
                                                        const std::string& port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "localhost"},
          {"MASTER_PORT", port}};
}

std::vector<std::string> train_arguments(const fs::path& prefix, const fs::path& output,
                                         const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"train",
                                        "data.prefix=" + prefix.string(),
                                        "train.output_dir=" + output.string(),
                                        "data.validation_fraction=0.1",
                                        "batch.nano_batch_tokens=512",
                                        "batch.nano_batches=2",
                                        "batch.max_document_tokens=384",
                                        "model.hidden_size=32",
                                        "model.intermediate_size=64",
                                        "model.num_hidden_layers=2",
                                        "model.num_attention_heads=4",
                                        "model.num_key_value_heads=2",
                                        "model.head_dim=8",
                                        "optimizer.warmup_steps=2",
                                        "train.steps=6",
                                        "train.validation_every=3"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

fs::path make_data_set(const fs::path& folder) {
  constexpr std::string_view kNames[] = {"alpha", "beta", "gamma", "delta"};
  Random random(3);
  for (int file = 0; file < 40; ++file) {
    const uint64_t bytes = 20 + random.below(file % 10 == 0 ? 3000 : 400);
    std::string text;
    while (text.size() < bytes) {
      const std::string_view name = kNames[random.below(std::size(kNames))];
      text += fmt::format("def {}(x):\n    return x + {}\n\n", name, random.below(10));
    }
    write_file_atomically(folder / "text" / fmt::format("{:02}.py", file), text.substr(0, bytes));
  }
  const fs::path prefix = folder / "data" / "text";
  const Outcome made = run_distca({"data", "prepare", "--text", folder / "text", "--out", prefix});
  if (made.exit_code != 0) throw std::runtime_error("distca data prepare: " + made.err);
  return prefix;
}

std::vector<Json> read_json_lines(const fs::path& path) {
  std::vector<Json> lines;
  if (!fs::exists(path)) return lines;
  const std::string text = read_file(path);
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    lines.push_back(Json::parse(text.substr(begin, end - begin)));
  }
  return lines;
}

std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> files;
  if (!fs::exists(folder)) return files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(fs::relative(entry.path(), folder));
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace distca::testing
