#include "distca/comm/hushed_cerr.h"

#include <iostream>
#include <mutex>
#include <streambuf>

#include "distca/base/env.h"

namespace distca {
namespace {

/// Takes everything, keeps nothing and has no state, so that several threads may write to it.
class Nowhere : public std::streambuf {
  int overflow(int byte) override { return traits_type::not_eof(byte); }
  std::streamsize xsputn(const char*, std::streamsize count) override { return count; }
};

struct Hush {
  std::mutex mutex;
  int holders = 0;
  std::streambuf* before = nullptr;
  Nowhere nowhere;
};

/// Never destroyed: a thread of Gloo's may write while the process ends.
Hush& hush() {
  static Hush* const one = new Hush;
  return *one;
}

}  // namespace

HushedCerr::HushedCerr() {
  const std::lock_guard lock(hush().mutex);
  if (hush().holders++ > 0 || env_string("GLOO_LOG_LEVEL")) return;
  hush().before = std::cerr.rdbuf(&hush().nowhere);
}

HushedCerr::~HushedCerr() {
  const std::lock_guard lock(hush().mutex);
  if (--hush().holders > 0 || hush().before == nullptr) return;
  std::cerr.rdbuf(hush().before);
  hush().before = nullptr;
}

}  // namespace distca
