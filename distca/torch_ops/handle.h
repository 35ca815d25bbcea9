#pragma once
// A handle is a tensor [1] of fp64 that owns an object of ours. Operators take and return handles
// as they do other tensors: so autograd, checkpointing and dispatch modes handle them, and an
// object lives as long as a tensor on the handle's storage.
//
// A handle is known by where its memory lies; nobody reads what is in it. So it may lie on a
// device. That of a layer's call lies where the layer's tensors lie: autograd then plays all nodes
// of the layer's backward in one thread, and in the stream of the forward.
//
// Include <ATen/ATen.h> before this header. Any thread may call these functions.

#include <map>
#include <memory>
#include <mutex>

#include "distca/base/error.h"

namespace distca::torch_ops {

/// The objects of one type that are alive, by where their handles lie.
template <typename T>
class Handles {
 public:
  /// There is one for each type. It is never destroyed: tensors may outlive static objects.
  static Handles& all() {
    static Handles* const handles = new Handles;
    return *handles;
  }

  at::Tensor give(std::shared_ptr<T> object, const at::Device& device) {
    const at::Tensor memory = at::empty({1}, at::dtype(at::kDouble).device(device));
    void* const place = memory.data_ptr();
    {
      const std::scoped_lock lock(mutex_);
      alive_[place] = object;
    }
    return at::for_blob(place, {1})
        .deleter([this, memory, object = std::move(object)](void* freed) {
          const std::scoped_lock lock(mutex_);
          alive_.erase(freed);
        })
        .options(memory.options())
        .target_device(device)
        .make_tensor();
  }

  /// Throws Error(kUsage) for a tensor that is no handle, or whose object is gone.
  std::shared_ptr<T> of(const at::Tensor& handle) {
    std::shared_ptr<T> object;
    {
      const std::scoped_lock lock(mutex_);
      const auto found = alive_.find(handle.const_data_ptr());
      if (found != alive_.end()) object = found->second.lock();
    }
    DISTCA_THROW_IF(!object, ErrorKind::kUsage,
                    "no handle of distca, or one of a graph that was freed");
    return object;
  }

 private:
  std::mutex mutex_;
  std::map<const void*, std::weak_ptr<T>> alive_;
};

}  // namespace distca::torch_ops
