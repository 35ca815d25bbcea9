#include "distca/runtime/operator_count.h"

#include <ATen/record_function.h>

#include <memory>
#include <string_view>

namespace distca {
namespace {

// Callbacks are plain functions, so what they count is the thread's.
thread_local int64_t depth = 0;
thread_local std::map<std::string, int64_t> counts;

/// Autograd's engine says a function around each node of a graph; the operators are those inside.
bool is_operator(const at::RecordFunction& function) {
  return !std::string_view(function.name()).starts_with("autograd::engine");
}

uint64_t begin_counting() {
  depth = 0;
  counts.clear();
  return at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& function) {
            if (is_operator(function) && depth++ == 0) ++counts[function.name()];
            return std::unique_ptr<at::ObserverContext>();
          },
          [](const at::RecordFunction& function, at::ObserverContext*) {
            if (is_operator(function)) --depth;
          })
          .scopes({at::RecordScope::FUNCTION}));
}

}  // namespace

OperatorCount::OperatorCount() : callback_(begin_counting()) {}
OperatorCount::~OperatorCount() { at::removeCallback(callback_); }

const std::map<std::string, int64_t>& OperatorCount::names() { return counts; }

int64_t OperatorCount::total() {
  int64_t all = 0;
  for (const auto& [name, count] : counts) all += count;
  return all;
}

}  // namespace distca
