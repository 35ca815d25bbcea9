#include "cli/python_verb.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "distca/base/env.h"
#include "distca/base/error.h"

namespace distca::cli {
namespace {

std::string python() { return env_string("DISTCA_PYTHON").value_or("python3"); }

/// The words of its command line.
std::vector<std::string> command(const std::string& verb, const std::vector<std::string>& arguments,
                                 PythonPackages packages) {
  std::vector<std::string> words = {python()};
  if (packages == PythonPackages::kNone) words.emplace_back("-I");
  words.push_back(std::filesystem::read_symlink("/proc/self/exe").replace_filename(verb));
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

/// Returns only if it fails.
void execute(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
}

[[noreturn]] void no_python(int error) {
  throw Error(ErrorKind::kIo, "{}: {}; this verb needs Python, which DISTCA_PYTHON may name",
              python(), std::strerror(error));
}

}  // namespace

void become_python(const std::string& verb, const std::vector<std::string>& arguments,
                   PythonPackages packages) {
  execute(command(verb, arguments, packages));
  no_python(errno);
}

PythonVerb::PythonVerb(const std::string& verb, const std::vector<std::string>& arguments)
    : verb_(verb) {
  const std::vector<std::string> words = command(verb, arguments, PythonPackages::kUsers);
  // A socket, because to write into it is no signal where the child has ended.
  std::array<int, 2> in{};
  DISTCA_THROW_IF(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in.data()) != 0,
                  ErrorKind::kIo, "cannot make a socket: {}", std::strerror(errno));
  in_ = FileDescriptor(in[0]);
  const FileDescriptor its_in(in[1]);
  std::array<int, 2> out{}, failed{};  // failed: what became of exec; it is closed by success
  DISTCA_THROW_IF(pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(failed.data(), O_CLOEXEC) != 0,
                  ErrorKind::kIo, "cannot make a pipe: {}", std::strerror(errno));
  child_ = fork();
  if (child_ == 0) {
    std::signal(SIGPIPE, SIG_DFL);
    dup2(out[1], STDOUT_FILENO);
    dup2(in[1], STDIN_FILENO);
    execute(words);
    const int error = errno;
    (void)!::write(failed[1], &error, sizeof error);
    _exit(127);
  }
  close(out[1]);
  close(failed[1]);
  int error = child_ < 0 ? errno : 0;
  if (child_ > 0) (void)!::read(failed[0], &error, sizeof error);
  close(failed[0]);
  out_ = fdopen(out[0], "rb");
  DISTCA_CHECK(out_ != nullptr, "{}", std::strerror(errno));
  if (error == 0) return;
  std::fclose(out_);
  wait();
  no_python(error);
}

PythonVerb::~PythonVerb() {
  end_input();
  std::fclose(out_);
  wait();
}

void PythonVerb::wait() {
  if (child_ <= 0) return;
  while (waitpid(child_, &status_, 0) < 0 && errno == EINTR) continue;
  child_ = -1;
}

void PythonVerb::ended() {
  wait();
  throw Error(ErrorKind::kIo, "{} ended before its work was done: {}", verb_,
              WIFSIGNALED(status_) ? fmt::format("killed by signal {} ({})", WTERMSIG(status_),
                                                 strsignal(WTERMSIG(status_)))
                                   : fmt::format("exit code {}", WEXITSTATUS(status_)));
}

std::string PythonVerb::line() {
  std::string text;
  for (int c = std::fgetc(out_); c != '\n'; c = std::fgetc(out_)) {
    if (c == EOF) ended();
    text.push_back(static_cast<char>(c));
  }
  return text;
}

void PythonVerb::read(std::span<std::byte> bytes) {
  if (std::fread(bytes.data(), 1, bytes.size(), out_) != bytes.size()) ended();
}

bool PythonVerb::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = send(in_.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    text.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

void PythonVerb::end_input() { in_ = FileDescriptor(); }

}  // namespace distca::cli
