#pragma once
// For tests: counts the operators of ATen that a thread calls. One that an operator calls inside
// counts with it: on a CUDA device that is the operator's own affair. Include
// <ATen/record_function.h> before it. Thread rule: counts the thread that made it.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace distca::testing {

class OperatorCount {
 public:
  OperatorCount() {
    depth() = 0;
    by_name().clear();
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& function) {
              if (depth()++ == 0) ++by_name()[function.name()];
              return std::unique_ptr<at::ObserverContext>();
            },
            [](const at::RecordFunction&, at::ObserverContext*) { --depth(); })
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~OperatorCount() { at::removeCallback(handle_); }
  OperatorCount(const OperatorCount&) = delete;
  OperatorCount& operator=(const OperatorCount&) = delete;

  /// How often each was called.
  static const std::map<std::string, int64_t>& names() { return by_name(); }
  static int64_t total() {
    int64_t all = 0;
    for (const auto& [name, count] : by_name()) all += count;
    return all;
  }

 private:
  // Callbacks are plain functions.
  static int64_t& depth() {
    static thread_local int64_t inside = 0;
    return inside;
  }
  static std::map<std::string, int64_t>& by_name() {
    static thread_local std::map<std::string, int64_t> counts;
    return counts;
  }

  at::CallbackHandle handle_;
};

}  // namespace distca::testing
