#pragma once
// A handle is a tensor [1] of fp64 on the CPU that owns an object of ours. Operators take and
// return handles as they do other tensors: so autograd, checkpointing and dispatch modes handle
// them, and an object lives as long as a tensor on the handle's storage.
//
// Include <ATen/ATen.h> before this header. Any thread may call these functions.

#include <map>
#include <memory>
#include <mutex>

#include "distca/base/error.h"

namespace distca::torch_ops {

/// The objects of one type that are alive, by the number that their handles hold.
template <typename T>
class Handles {
 public:
  /// There is one for each type. It is never destroyed: tensors may outlive static objects.
  static Handles& all() {
    static Handles* const handles = new Handles;
    return *handles;
  }

  at::Tensor give(std::shared_ptr<T> object) {
    struct Box {
      double number;
      std::shared_ptr<T> object;
    };
    auto* const box = new Box{.number = 0, .object = std::move(object)};
    {
      const std::scoped_lock lock(mutex_);
      box->number = static_cast<double>(++last_);
      alive_[last_] = box->object;
    }
    return at::from_blob(
        &box->number, {1},
        [this, box](void*) {
          {
            const std::scoped_lock lock(mutex_);
            alive_.erase(static_cast<int64_t>(box->number));
          }
          delete box;
        },
        at::kDouble);
  }

  /// Throws Error(kUsage) for a tensor that is no handle, or whose object is gone.
  std::shared_ptr<T> of(const at::Tensor& handle) {
    std::shared_ptr<T> object;
    if (handle.is_cpu() && handle.scalar_type() == at::kDouble && handle.numel() == 1) {
      const std::scoped_lock lock(mutex_);
      const auto found = alive_.find(static_cast<int64_t>(*handle.const_data_ptr<double>()));
      if (found != alive_.end()) object = found->second.lock();
    }
    DISTCA_THROW_IF(!object, ErrorKind::kUsage,
                    "no handle of distca, or one of a graph that was freed");
    return object;
  }

 private:
  std::mutex mutex_;
  int64_t last_ = 0;
  std::map<int64_t, std::weak_ptr<T>> alive_;
};

}  // namespace distca::torch_ops
