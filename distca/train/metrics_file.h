#pragma once
// A file to which lines are added while a run goes on, each of them whole whatever happens: a disk
// that fills up costs lines, never half of one, and never the run.
//
// A line is one write(2); of one that the file system took in part, the part is taken back. (Linux
// itself may cut a write short when the process is killed in the middle of it, between two pages of
// memory: a microsecond. A reader leaves out a last line without its end.) Thread rule: one thread.

#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>

namespace distca {

class MetricsFile {
 public:
  /// Opens an empty file, where one was as well. Throws Error(kIo).
  explicit MetricsFile(std::filesystem::path path);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  /// Adds a line, given without its end. One that cannot be written is kept and tried again before
  /// the next one, in order; of more than kMostKept bytes the oldest are given up. The first time,
  /// a warning goes to stderr.
  void add(std::string line);
  /// Tries what is kept once more and syncs; returns how many lines the file lacks.
  int64_t finish();

  static constexpr size_t kMostKept = 16 << 20;  // bytes

 private:
  void write_kept();
  bool write(const std::string& line);

  std::filesystem::path path_;
  int descriptor_;
  int64_t size_ = 0;   // of whole lines
  bool torn_ = false;  // part of a line is behind them
  std::deque<std::string> kept_;
  size_t kept_bytes_ = 0;
  int64_t given_up_ = 0;
  bool warned_ = false;
};

}  // namespace distca
