#pragma once
// TaskLaunches keeps what a variable-length operator is told about a list of tasks
// (kernels/varlen_launches.h). That depends on the tasks, and on which keys lie aligned, but on no
// address. So the layers of a plan share it: it is made and brought to the device once, when the
// first of them asks for it.
//
//     TaskLaunches launches;   // kept with the list of one pass
//     for (int layer = 0; layer < layers; ++layer) {
//       set_buffers(layer, list);                           // other rows, the same tasks
//       kernel.forward(type, list, &launches);
//     }
//
// Thread rule: one thread at a time. Where calls have different current streams, the later ones
// wait on the device for the one that has made it.

#include <cstdint>
#include <memory>

namespace distca {

class TaskLaunches {
 public:
  /// How often it was made: once, unless rows have turned out to be aligned in another way.
  int64_t times_made() const { return times_made_; }

 private:
  friend class VarlenPlayer;
  struct Made;
  std::shared_ptr<const Made> made_;  // copies have it in common
  int64_t times_made_ = 0;
};

}  // namespace distca
