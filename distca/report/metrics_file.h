#pragma once
// A file to which a run adds lines, each of them written whole or not at all. A full disk costs
// lines, but it never leaves half a line, and it never ends the run.
//
//     MetricsFile file("metrics.jsonl");
//     file.add(R"({"step": 1})");
//     const int64_t missing = file.finish();
//
// A line is written with one write(2). If the file system took only a part of it, that part is
// removed again. (Linux itself may cut a write short if the process is killed within the
// microsecond in which it passes from one page of memory to the next. So a reader should leave out
// a last line without a newline.) Thread rule: one thread.

#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>

namespace distca {

class MetricsFile {
 public:
  /// Opens the file, makes it if it does not exist, and adds after the lines that it holds. Throws
  /// Error(kIo).
  explicit MetricsFile(std::filesystem::path path);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  /// Adds a line, which is given without its newline. A line that cannot be written is kept, and it
  /// is tried again, in order, before the next line. If more than kMostKept bytes are kept, the
  /// oldest lines are given up. The first failure writes a warning to stderr.
  void add(std::string line);
  /// Tries the kept lines once more and syncs the file. Returns how many lines it lacks.
  int64_t finish();

  static constexpr size_t kMostKept = 16 << 20;  // bytes

 private:
  void write_kept();
  bool write(const std::string& line);

  std::filesystem::path path_;
  int descriptor_;
  int64_t size_;                  // bytes of whole lines
  bool torn_ = false;             // true if a part of a line follows them
  std::deque<std::string> kept_;  // lines that could not be written yet
  size_t kept_bytes_ = 0;
  int64_t given_up_ = 0;  // lines that are lost
  bool warned_ = false;
};

}  // namespace distca
