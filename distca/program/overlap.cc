#include "distca/program/overlap.h"

#include <algorithm>

#include "distca/base/error.h"
#include "distca/program/program_builder.h"

namespace distca {
namespace {

struct BuilderOf {
  Overlap overlap;
  Program (*build)(const ProgramRequest& request);
};
constexpr BuilderOf kBuilders[] = {
    {Overlap::kNone, build_none},
    {Overlap::kWithin, build_within},
    {Overlap::kPingPong, build_ping_pong},
};

}  // namespace

Overlap overlap_of(std::string_view name) {
  for (const OverlapName& known : kOverlaps) {
    if (known.name == name) return known.overlap;
  }
  DISTCA_CHECK(false, "no way to overlap is named {}", name);
}

std::string_view overlap_name(Overlap overlap) {
  return std::ranges::find(kOverlaps, overlap, &OverlapName::overlap)->name;
}

OverlapModel overlap_model_of(Overlap overlap, int64_t nano_batches) {
  switch (overlap) {
    case Overlap::kNone:
      return OverlapModel::kNothing;
    case Overlap::kWithin:
      return OverlapModel::kHomeTasks;
    case Overlap::kPingPong:
      break;
  }
  return nano_batches > 1 ? OverlapModel::kOtherNanoBatch : OverlapModel::kHomeTasks;
}

Program build_program(const ProgramRequest& request) {
  for (const BuilderOf& builder : kBuilders) {
    if (builder.overlap == request.overlap) return builder.build(request);
  }
  DISTCA_CHECK(false, "overlap {} has no builder", static_cast<int>(request.overlap));
}

}  // namespace distca
