#pragma once
// The two kinds of failure (docs/errors.md).
//
//  * Error: the caller or the world is at fault. Its message is one line that says what is wrong,
//    where, and what would be right. Bad input ends the program with exit code 2, a failure of the
//    world (a lost rank, a full disk) with exit code 1, training that went wrong with 3.
//  * CheckFailure: our own code is at fault. DISTCA_CHECK* throw it with file and line; exit code
//    70.
//
//     throw Error(ErrorKind::kData, "{}: {} is not a token", path, id);
//     DISTCA_CHECK(rank < num_ranks, "rank {} of {}", rank, num_ranks);
//     DISTCA_CHECK_EQ(sent, received);
//
// Thread rule: these are plain values without shared state.

#include <fmt/format.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace distca {

/// The kind of an Error. The last three are failures of the world; the others are bad input.
enum class ErrorKind {
  kUsage,       // the command line, or a call of api/
  kConfig,      // a configuration file or override
  kData,        // a data set, lengths file or text folder
  kPlan,        // a plan file, or a plan that cannot exist under the given caps
  kCheckpoint,  // weights on disk
  kIo,          // the file system refused (exit code 1)
  kComm,        // a rank or the network failed (exit code 1)
  kTraining,    // the run diverged, or its replicas did: trying again would not help (exit code 3)
};

namespace detail {
/// The text with control characters replaced by spaces and, if it is longer than an error's
/// message may be, without its middle.
std::string one_line(std::string text);
[[noreturn]] void check_failed(const char* file, int line, const std::string& what);
}  // namespace detail

/// A failure that the caller or the world has caused. Its message is one line, whatever it quotes.
class Error : public std::runtime_error {
 public:
  static constexpr size_t kMostBytes = 2000;  // bytes of the message

  template <typename... Args>
  Error(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(detail::one_line(fmt::format(format, std::forward<Args>(args)...))),
        kind_(kind) {}

  ErrorKind kind() const noexcept { return kind_; }
  /// The exit code of a program that this error ends: 2 for bad input, 1 for a failure of the
  /// world, 3 for training that went wrong.
  int exit_code() const noexcept {
    if (kind_ == ErrorKind::kTraining) return 3;
    return kind_ == ErrorKind::kIo || kind_ == ErrorKind::kComm ? 1 : 2;
  }

 private:
  ErrorKind kind_;
};

/// A broken invariant of our own code, which ends the program with exit code 70.
class CheckFailure : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// The first line of the message of an exception of PyTorch, Gloo or the standard library, without
/// the place in their source code that it names.
std::string first_line(const std::exception& error);

/// How a program ends because of an exception: its exit code, and one line that begins with
/// "distca: error: " or "distca: bug: ".
struct ExitMessage {
  int exit_code = 0;
  std::string line;
};
/// The exit message for an exception. An Error has its own exit code. Exceptions that PyTorch and
/// the standard library throw when the machine refuses something mean exit code 1. Everything else
/// is a bug of ours.
ExitMessage exit_message(const std::exception_ptr& why);

}  // namespace distca

/// Refuses what somebody else has done wrong: Error(kind) with a line, if `wrong`.
#define DISTCA_THROW_IF(wrong, kind, ...)       \
  do {                                          \
    if (wrong) [[unlikely]]                     \
      throw ::distca::Error(kind, __VA_ARGS__); \
  } while (0)

#define DISTCA_CHECK(condition, ...)                                                           \
  do {                                                                                         \
    if (!(condition)) [[unlikely]] {                                                           \
      ::distca::detail::check_failed(__FILE__, __LINE__,                                       \
                                     std::string(#condition ": ") + fmt::format(__VA_ARGS__)); \
    }                                                                                          \
  } while (0)

#define DISTCA_CHECK_OP_(a, op, b)                                                              \
  do {                                                                                          \
    const auto& distca_check_a = (a);                                                           \
    const auto& distca_check_b = (b);                                                           \
    if (!(distca_check_a op distca_check_b)) [[unlikely]] {                                     \
      ::distca::detail::check_failed(                                                           \
          __FILE__, __LINE__,                                                                   \
          fmt::format("{} {} {}: {} against {}", #a, #op, #b, distca_check_a, distca_check_b)); \
    }                                                                                           \
  } while (0)

#define DISTCA_CHECK_EQ(a, b) DISTCA_CHECK_OP_(a, ==, b)
#define DISTCA_CHECK_LT(a, b) DISTCA_CHECK_OP_(a, <, b)
#define DISTCA_CHECK_GE(a, b) DISTCA_CHECK_OP_(a, >=, b)
