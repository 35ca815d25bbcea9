#include "distca/comm/hushed_cerr.h"

#include <iostream>
#include <mutex>
#include <streambuf>
#include <utility>

#include "distca/base/env.h"

namespace distca {
namespace {

/// Takes everything, keeps nothing and has no state, so that several threads may write to it.
class Nowhere : public std::streambuf {
  int overflow(int byte) override { return traits_type::not_eof(byte); }
  std::streamsize xsputn(const char*, std::streamsize count) override { return count; }
};

std::mutex cerr_mutex;
int hushes = 0;
std::streambuf* cerr_before = nullptr;

}  // namespace

HushedCerr::HushedCerr() {
  // Never destroyed: a thread of Gloo's may write while the process ends.
  static Nowhere* const nowhere = new Nowhere;
  const std::lock_guard lock(cerr_mutex);
  if (hushes++ > 0 || env_string("GLOO_LOG_LEVEL")) return;
  cerr_before = std::cerr.rdbuf(nowhere);
}

HushedCerr::~HushedCerr() {
  const std::lock_guard lock(cerr_mutex);
  if (--hushes > 0 || cerr_before == nullptr) return;
  std::cerr.rdbuf(std::exchange(cerr_before, nullptr));
}

}  // namespace distca
