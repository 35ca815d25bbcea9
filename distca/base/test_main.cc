// main() of every test program: GoogleTest's, and a limit to what a case may take.
//
// ctest runs a whole program and would end it without a word of which case hung. --case-timeout-s=N
// limits each case; without it, as in a debugger, nothing does.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

std::string message;  // names the running case for the signal's handler, which may not allocate

void end_of_patience(int) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, message.data(), message.size());
  _exit(EXIT_FAILURE);
}

class CaseTimeout : public ::testing::EmptyTestEventListener {
 public:
  explicit CaseTimeout(unsigned seconds) : seconds_(seconds) {}

 private:
  void OnTestStart(const ::testing::TestInfo& info) override {
    message = std::string("[ TIMEOUT  ] ") + info.test_suite_name() + "." + info.name() +
              ": still running after " + std::to_string(seconds_) +
              " s. This program's remaining cases did not run.\n";
    alarm(seconds_);
  }
  void OnTestEnd(const ::testing::TestInfo&) override { alarm(0); }

  unsigned seconds_;
};

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  constexpr std::string_view kLimit = "--case-timeout-s=";
  for (int i = 1; i < argc; ++i) {  // GoogleTest has taken its own
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kLimit)) {
      std::fprintf(stderr, "%s: unknown argument: %s\n", argv[0], argv[i]);
      return 2;
    }
    std::signal(SIGALRM, end_of_patience);
    ::testing::UnitTest::GetInstance()->listeners().Append(
        new CaseTimeout(static_cast<unsigned>(std::stoul(argv[i] + kLimit.size()))));
  }
  return RUN_ALL_TESTS();
}
