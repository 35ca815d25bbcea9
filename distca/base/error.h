#pragma once
// The two kinds of failure (docs/errors.md).
//
//  * The caller's or the world's fault: Error, one line that says what, where and what would be
//  right.
//    Bad input ends the program with exit code 2, a failure of the world (lost rank, full disk)
//    with 1.
//  * Our fault: DISTCA_CHECK*, throws CheckFailure with file and line; exit code 70.
//
// Thread rule: values, no shared state.

#include <fmt/format.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace distca {

enum class ErrorKind {
  kUsage,       // command line, or a call of api/
  kConfig,      // configuration file or override
  kData,        // data set, lengths file, text folder
  kPlan,        // plan file, or a plan that cannot exist under the caps given
  kCheckpoint,  // weights on disk
  kIo,          // the file system said no (runtime: exit code 1)
  kComm,        // a rank or the network failed (runtime: exit code 1)
  kTraining,    // the run diverged (runtime: exit code 1)
};

class Error : public std::runtime_error {
 public:
  template <typename... Args>
  Error(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)), kind_(kind) {}

  ErrorKind kind() const noexcept { return kind_; }
  /// 2 for bad input, 1 for a failure of the world.
  int exit_code() const noexcept {
    const bool runtime =
        kind_ == ErrorKind::kIo || kind_ == ErrorKind::kComm || kind_ == ErrorKind::kTraining;
    return runtime ? 1 : 2;
  }

 private:
  ErrorKind kind_;
};

/// A broken invariant of our own code. Exit code 70.
class CheckFailure : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// What PyTorch, Gloo or the standard library said, as one line: the first, without the place in
/// their sources.
std::string first_line(const std::exception& error);

/// How a program says what ends it: "distca: error: ..." or "distca: bug: ..." in one line.
struct LastWords {
  int exit_code = 0;
  std::string line;
};
/// Of an Error, of what the standard library and PyTorch throw when the machine says no (exit code
/// 1), and of all else, which is a bug of ours.
LastWords last_words(const std::exception_ptr& why);

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const std::string& what);
}  // namespace detail

}  // namespace distca

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
#define DISTCA_CHECK_LE(a, b) DISTCA_CHECK_OP_(a, <=, b)
#define DISTCA_CHECK_LT(a, b) DISTCA_CHECK_OP_(a, <, b)
#define DISTCA_CHECK_GE(a, b) DISTCA_CHECK_OP_(a, >=, b)
