#include "distca/base/error.h"

namespace distca::detail {

void check_failed(const char* file, int line, const std::string& what) {
  throw CheckFailure(fmt::format("{}:{}: check failed: {}", file, line, what));
}

}  // namespace distca::detail
