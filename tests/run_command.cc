#include "tests/run_command.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/env.h"
#include "distca/base/random.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLauncherVariables[] = {"RANK=",   "WORLD_SIZE=",   "LOCAL_",
                                                   "MASTER_", "TORCHELASTIC_", "SLURM_",
                                                   "OMPI_",   "PMI",           "DISTCA_"};

Words clean_environment(const Environment& more) {
  Words entries;
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

std::vector<char*> pointers(Words& words) {
  std::vector<char*> result;
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

/// Reads a file of /proc, which has no size and so cannot be read by read_file. Returns an empty
/// text if it is gone.
std::string read_proc(const std::string& name) {
  std::ifstream file("/proc/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Returns true if a process has ended with all its threads: where the first has ended, another of
/// a killed process may still write.
bool has_ended(pid_t pid) {
  const std::string status = read_proc(fmt::format("{}/stat", pid));
  // "PID (NAME) STATE ..."; the name may hold anything. The threads are the 18th word from STATE.
  const size_t name_end = status.rfind(')');
  if (name_end == std::string::npos) return true;
  std::istringstream words(status.substr(name_end + 1));
  const std::vector<std::string> all{std::istream_iterator<std::string>(words), {}};
  return (all.at(0) == "Z" || all.at(0) == "X") && std::stoi(all.at(17)) <= 1;
}

/// Returns what was printed into a temporary file.
std::string output(std::FILE* file) { return read_proc(fmt::format("self/fd/{}", fileno(file))); }

}  // namespace

Pipe::Pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  out = FileDescriptor(ends[0]);
  in = FileDescriptor(ends[1]);
}

Program::Program(const Words& arguments, const Environment& environment, const Streams& streams) {
  start(joined({DISTCA_PROGRAM}, arguments), environment, streams);
}

Program::Program(const ShellLine& line) {
  Environment environment = line.environment;
  environment["PATH"] = fs::path(DISTCA_PROGRAM).parent_path().string() + ":" +
                        env_string("PATH").value_or("/usr/bin:/bin");
  start({"/bin/sh", "-c", "cd \"$0\"; " + line.text, line.folder}, environment, {});
}

void Program::start(Words command, const Environment& environment, const Streams& streams) {
  Words entries = clean_environment(environment);
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
  const std::string entry = fmt::format("{0}DISTCA_RANK={1}{0}", '\0', rank);
  for (const pid_t pid : processes()) {
    const std::string environment = '\0' + read_proc(fmt::format("{}/environ", pid));
    if (environment.find(entry) != std::string::npos) return pid;
  }
  throw std::runtime_error(fmt::format("no process of rank {}", rank));
}

std::vector<pid_t> Program::processes() const {
  std::vector<pid_t> found;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid == 0 || getpgid(pid) != pid_) continue;
    if (!has_ended(pid)) found.push_back(pid);
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

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Outcome run_distca(const Words& arguments) { return Program(arguments).wait(); }

Outcome succeed(const Words& arguments) {
  Outcome outcome = run_distca(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << fmt::format("{}\n", fmt::join(arguments, " ")) << outcome.err;
  return outcome;
}

std::string error_line(const Outcome& outcome, int exit_code) {
  constexpr std::string_view kBeginning = "distca: error: ";
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.out << outcome.err;
  EXPECT_TRUE(outcome.err.starts_with(kBeginning)) << outcome.err;
  EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
  return outcome.err.substr(std::min(kBeginning.size(), outcome.err.size()));
}

std::string refusal(const Words& arguments) { return error_line(run_distca(arguments), 2); }

bool wait_until(const std::function<bool()>& condition, double limit_s, double every_s) {
  const Stopwatch watch;
  while (!condition()) {
    if (watch.seconds() > limit_s) return false;
    std::this_thread::sleep_for(std::chrono::duration<double>(every_s));
  }
  return true;
}

TakenPort::TakenPort() {
  for (const sa_family_t family : {AF_INET6, AF_INET}) {  // a machine may have no IPv6
    sockaddr_in6 any = {.sin6_family = family};  // all zeros and the port's place are those of both
    auto* const address = reinterpret_cast<sockaddr*>(&any);
    socklen_t size = sizeof(any);
    socket = FileDescriptor(::socket(family, SOCK_STREAM, 0));
    if (bind(socket.get(), address, size) != 0 || listen(socket.get(), 1) != 0) continue;
    getsockname(socket.get(), address, &size);
    port = std::to_string(ntohs(any.sin6_port));
    return;
  }
  throw std::runtime_error("no port");
}

std::string free_port() { return TakenPort().port; }

Environment torchrun_environment(int rank, int size, const std::string& port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "localhost"},
          {"MASTER_PORT", port}};
}

std::array<Outcome, 2> run_torchrun(const Words& rank_0, const Words& rank_1) {
  const std::string port = free_port();
  Program second(rank_1, torchrun_environment(1, 2, port));  // it may come first
  Program first(rank_0, torchrun_environment(0, 2, port));
  const Outcome outcome = first.wait();
  return {outcome, second.wait()};
}

Words train_arguments(const fs::path& prefix, const fs::path& output, const Words& more) {
  const Words arguments = {"train", "data.prefix=" + prefix.string(),
                           "train.output_dir=" + output.string()};
  const Words model = {"data.validation_fraction=0.1", "batch.nano_batch_tokens=512",
                       "batch.nano_batches=2",         "batch.max_document_tokens=384",
                       "model.hidden_size=32",         "model.intermediate_size=64",
                       "model.num_hidden_layers=2",    "model.num_attention_heads=4",
                       "model.num_key_value_heads=2",  "model.head_dim=8",
                       "optimizer.warmup_steps=2",     "train.steps=6",
                       "train.validation_every=3"};
  return joined(arguments, joined(model, more));
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
  succeed({"data", "prepare", "--text", folder / "text", "--out", prefix});
  return prefix;
}

std::vector<Json> read_json_lines(const fs::path& path) {
  std::vector<Json> objects;
  if (!fs::exists(path)) return objects;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line) && !lines.eof();)
    objects.push_back(Json::parse(line));
  return objects;
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

std::map<std::string, std::string> read_files(const fs::path& folder) {
  std::map<std::string, std::string> contents;
  for (const std::string& name : files_below(folder)) contents[name] = read_file(folder / name);
  return contents;
}

}  // namespace distca::testing
