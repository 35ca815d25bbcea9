#pragma once
// Reads the lines of a run's metrics.jsonl while the run writes them, or after it has ended.
//
//     RunFollower run("runs/mine");
//     const bool is_written = run.is_written();  // before read(): no line is missed then
//     for (const std::string& line : run.read().lines) ...
//
// The run may be on another machine that sees the folder, so nothing tells the reader of a new
// line: it has to look again from time to time. Thread rule: one thread.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace distca {

class RunFollower {
 public:
  /// Throws Error(kUsage) if `folder` is not the folder of a run.
  explicit RunFollower(const std::filesystem::path& folder);

  /// The lines that are new since the last call.
  struct News {
    std::vector<std::string> lines;  // whole ones, without their ends; of a long file not all yet
    /// The lines that were read last are gone, because the run went on from an earlier checkpoint
    /// or another run has taken the folder. `lines` begin with the file's first again.
    bool from_start = false;
  };
  /// Throws Error(kIo) if the file cannot be read any more.
  News read();
  /// The number of the last line that was read, from 1.
  int64_t line_number() const { return line_number_; }
  /// Returns true if a run is writing to the folder. It returns false where the file system has
  /// no locks.
  bool is_written() const;
  /// The file's path.
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int64_t offset_ = 0;  // place of the first byte that was not read
  int64_t line_number_ = 0;
  std::string last_;  // the last line that was read, with its end; it lies before offset_
};

}  // namespace distca
