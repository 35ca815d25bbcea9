#pragma once
// A file to which a run adds lines, each of them written whole or not at all. A full disk costs
// lines, and a disk that hangs delays them, but neither leaves half a line or ends the run.
//
//     MetricsFile file("metrics.jsonl", /*patience_s=*/2);
//     file.add(R"({"step": 1})");
//     const int64_t missing = file.finish();
//
// A line is written with one write(2), by a thread of its own. If the file system took only a part
// of it, that part is removed again. (Linux itself may cut a write short if the process is killed
// within the microsecond in which it passes from one page of memory to the next. So a reader should
// leave out a last line without a newline.) Thread rule: one thread.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace distca {

class MetricsFile {
 public:
  /// Opens the file, makes it if it does not exist, and adds after the lines that it holds. Throws
  /// Error(kIo).
  MetricsFile(std::filesystem::path path, double patience_s);
  /// Without a finish() before, waits for lines that are still missing as finish() does.
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  /// Adds a line, which is given without its newline. Returns when it is in the file or, where the
  /// disk hangs, after patience_s; as long as it hangs, later lines are not waited for. A line that
  /// cannot be written is kept, and it is tried again, in order, before the next line. If more than
  /// kMostKept bytes are kept, the oldest lines are given up. The first failure writes a warning to
  /// stderr.
  void add(std::string line);
  /// Tries the kept lines once more and syncs the file, for at most kMostOfTheEnd. Returns how
  /// many lines it lacks.
  int64_t finish();

  static constexpr size_t kMostKept = 16 << 20;  // bytes
  static constexpr double kMostOfTheEnd = 60;    // seconds

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's, too: it may outlive this where the disk hangs
  double patience_s_;
  bool finished_ = false;
};

}  // namespace distca
