#include "distca/program/overlap.h"

#include <algorithm>

#include "distca/base/error.h"
#include "distca/program/program_builder.h"

namespace distca {

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
  switch (request.overlap) {
    case Overlap::kNone:
      return build_none(request);
    case Overlap::kWithin:
      return build_within(request);
    case Overlap::kPingPong: {
      const TensorPlace& tensor = request.stage ? request.stage->stage.tensor : request.tensor;
      return tensor.size > 1 ? build_counter_phase(request) : build_in_turn(request);
    }
  }
  DISTCA_CHECK(false, "overlap {} has no builder", static_cast<int>(request.overlap));
}

}  // namespace distca
