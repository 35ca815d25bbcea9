#pragma once
// Counts the operators of ATen that a thread calls. One that an operator calls inside
// counts with it: on a CUDA device that is the operator's own affair. Thread rule: counts the
// thread that made it, one object of a thread at a time.

#include <cstdint>
#include <map>
#include <string>

namespace distca {

class OperatorCount {
 public:
  OperatorCount();
  ~OperatorCount();
  OperatorCount(const OperatorCount&) = delete;
  OperatorCount& operator=(const OperatorCount&) = delete;

  /// How often each was called.
  static const std::map<std::string, int64_t>& names();
  static int64_t total();

 private:
  const uint64_t callback_;
};

}  // namespace distca
