#include "distca/comm/nccl_testing.h"

#include <dlfcn.h>

#include <utility>

#include "distca/base/error.h"

namespace distca {
namespace {

template <typename Function>
Function* standin_function(const char* name) {
  void* const library = dlopen(DISTCA_NCCL_STANDIN, RTLD_NOW);
  DISTCA_CHECK(library != nullptr, "{}", DISTCA_NCCL_STANDIN);
  auto* const found = reinterpret_cast<Function*>(dlsym(library, name));
  DISTCA_CHECK(found != nullptr, "{}", name);
  return found;
}

void set_faults(const std::string& text) {
  standin_function<void(const char*)>("distcaStandinFaults")(text.c_str());
}

using Seen = void (*)(void*, int, int, int);

void watch(Seen seen, void* argument) {
  standin_function<void(Seen, void*)>("distcaStandinWatch")(seen, argument);
}

}  // namespace

StandinFaults::StandinFaults(const std::string& text) { set_faults(text); }
StandinFaults::~StandinFaults() { set_faults(""); }

StandinGroups::StandinGroups(std::function<void(int rank, int sends, int receives)> seen)
    : seen_(std::move(seen)) {
  watch([](void* self, int rank, int sends,
           int receives) { static_cast<StandinGroups*>(self)->seen_(rank, sends, receives); },
        this);
}
StandinGroups::~StandinGroups() { watch(nullptr, nullptr); }

}  // namespace distca
