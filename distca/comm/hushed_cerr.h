#pragma once
// Silences std::cerr, to which Gloo writes a line for each try to connect; what matters of them is
// in the exception. Our own messages go through stdio and are not touched.

namespace distca {

/// While one lives nothing written to std::cerr appears, unless GLOO_LOG_LEVEL is set. Any thread,
/// any number at a time.
class HushedCerr {
 public:
  HushedCerr();
  ~HushedCerr();
  HushedCerr(const HushedCerr&) = delete;
  HushedCerr& operator=(const HushedCerr&) = delete;
};

}  // namespace distca
