#include "bench/huge_pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "distca/base/error.h"
#include "distca/base/integers.h"

namespace distca::bench {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kReserved = int64_t{4} << 30;  // address space; pages come when touched

}  // namespace

Arena::Arena() {
  void* mapped = mmap(nullptr, kReserved, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    throw Error(ErrorKind::kIo, "no {} GiB of addresses: {}", kReserved >> 30,
                std::strerror(errno));
  }
  madvise(mapped, kReserved, MADV_HUGEPAGE);  // refused: small pages, which the report shows
  mapped_ = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<int64_t>(mapped);
  taken_ = round_up(address, kHugePage) - address;
}

Arena::~Arena() { munmap(mapped_, kReserved); }

std::byte* Arena::take(int64_t bytes) {
  const int64_t begin = taken_;
  taken_ += round_up(bytes, kLine);
  DISTCA_CHECK(taken_ <= kReserved, "an arena has {} GiB", kReserved >> 30);
  return mapped_ + begin;
}

double huge_page_share(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<uint64_t>(address);
  bool inside = false;
  double resident = 0;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    double kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin <= wanted && wanted < end;
    } else if (inside && std::sscanf(line.c_str(), "Anonymous: %lf kB", &kib) == 1) {
      resident = kib;
    } else if (inside && std::sscanf(line.c_str(), "AnonHugePages: %lf kB", &kib) == 1) {
      return resident > 0 ? kib / resident : 0;
    }
  }
  return 0;
}

}  // namespace distca::bench
