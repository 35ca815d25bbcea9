#include "distca/comm/launch/launch_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "distca/base/error.h"

namespace distca {

RankStream::RankStream(int rank, Console& to, bool hold_exit_message)
    : rank_(rank), to_(&to), hold_exit_message_(hold_exit_message) {
  int ends[2];
  DISTCA_THROW_IF(pipe2(ends, O_CLOEXEC) != 0, ErrorKind::kIo, "no pipe for rank {}: {}", rank,
                  std::strerror(errno));
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  from_ = FileDescriptor(ends[0]);
  rank_end_ = FileDescriptor(ends[1]);
}

void RankStream::pass_on() {
  char buffer[4096];
  while (from() >= 0) {
    const ssize_t got = read(from(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      from_ = FileDescriptor();
      if (!line_.empty()) emit();
      return;
    }
    for (const char byte : std::string_view(buffer, static_cast<size_t>(got))) {
      if (byte == '\n') {
        emit();
      } else {
        line_ += byte;
      }
    }
  }
}

void RankStream::emit() {
  const std::string line = std::exchange(line_, {});
  if (hold_exit_message_ && line.starts_with(kExitMessage)) {
    if (exit_message_.empty()) exit_message_ = line;
    return;
  }
  to_->line(fmt::format("[rank {}] {}", rank_, line));
}

}  // namespace distca
