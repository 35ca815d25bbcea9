#pragma once
// A disk of a few megabytes that a test can fill: a tmpfs, which only root can mount. The process
// that makes one has a mount namespace of its own from then on. Linux; one thread.

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "distca/base/file.h"

namespace distca::testing {

class SmallDisk {
 public:
  /// `size`: as mount takes it, "2m" for example.
  SmallDisk(std::filesystem::path folder, const std::string& size) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
    mounted_ = unshare(CLONE_NEWNS) == 0 &&
               mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
               mount("tmpfs", folder_.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount2(folder_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  /// False: no permission to have one.
  bool mounted() const { return mounted_; }

  /// Takes all that is free, but for so many bytes.
  void fill(int64_t spare = 0) const {
    const FileDescriptor file(open(filler().c_str(), O_WRONLY | O_CREAT, 0600));
    const std::string block(4096, 'x');
    int64_t size = 0;
    for (ssize_t written = 0; (written = write(file.get(), block.data(), block.size())) > 0;)
      size += written;
    if (spare > 0) std::filesystem::resize_file(filler(), static_cast<uintmax_t>(size - spare));
  }
  /// Gives it back.
  void clear() const { std::filesystem::remove(filler()); }

 private:
  std::filesystem::path filler() const { return folder_ / "filler"; }

  std::filesystem::path folder_;
  bool mounted_ = false;
};

}  // namespace distca::testing
