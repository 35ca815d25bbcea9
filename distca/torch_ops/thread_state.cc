// The state that PyTorch keeps of a thread, as C functions: python/distca/_ping_pong.py gives each
// of its coroutines one of its own. They are no operators, for a dispatch mode is a part of this
// state and would see an operator. The caller holds Python's lock, for the state counts references
// to Python's objects.

#include <ATen/ATen.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace {

at::Tensor random_state(at::Generator generator) {
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(at::Generator generator, const at::Tensor& state) {
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

/// Random numbers of a CUDA device and the stream that it is given work through. Neither waits for
/// the device.
struct DeviceState {
  explicit DeviceState(const at::Device& device)
      : random(random_state(at::globalContext().defaultGenerator(device))),
        stream(c10::impl::VirtualGuardImpl(device.type()).getStream(device)) {}
  void set() const {
    set_random_state(at::globalContext().defaultGenerator(stream.device()), random);
    c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
  }

  at::Tensor random;
  c10::Stream stream;
};

/// The state of a thread, with what ThreadLocalState leaves out: whether autocast may keep the
/// casts of weights, and random numbers, which checkpointing draws again as they follow each other.
struct ThreadState {
  explicit ThreadState(int cuda_device) {
    if (cuda_device >= 0)
      on_device.emplace(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(cuda_device)));
  }

  at::ThreadLocalState most;
  bool keeps_casts = at::autocast::is_autocast_cache_enabled();
  at::Tensor random = random_state(at::detail::getDefaultCPUGenerator());
  std::optional<DeviceState> on_device;  // none if no device has been used
  // The casts that autocast keeps belong to the process. They fit only who casts alike.
  bool grad = at::GradMode::is_enabled();
  bool inference = c10::InferenceMode::is_enabled();
  at::ScalarType autocast_cpu = at::autocast::get_autocast_dtype(at::kCPU);
  at::ScalarType autocast_cuda = at::autocast::get_autocast_dtype(at::kCUDA);

  bool casts_as(const ThreadState& other) const {
    return grad == other.grad && inference == other.inference &&
           autocast_cpu == other.autocast_cpu && autocast_cuda == other.autocast_cuda;
  }
};

}  // namespace

/// A copy of this thread's state, with that of a CUDA device unless its index is below 0.
/// distca_thread_state_free() gives it back. Null means that there is no memory.
extern "C" void* distca_thread_state_copy(int cuda_device) noexcept {
  try {
    return new ThreadState(cuda_device);
  } catch (const std::exception&) {
    return nullptr;
  }
}

/// Exchanges this thread's state and the one in `state`.
extern "C" void distca_thread_state_swap(void* state) noexcept {
  ThreadState& other = *static_cast<ThreadState*>(state);
  ThreadState mine(other.on_device ? other.on_device->stream.device_index() : -1);
  if (!mine.casts_as(other)) at::autocast::clear_cache();
  at::ThreadLocalState::setThreadLocalState(other.most);
  at::autocast::set_autocast_cache_enabled(other.keeps_casts);
  set_random_state(at::detail::getDefaultCPUGenerator(), other.random);
  if (other.on_device) other.on_device->set();
  other = std::move(mine);
}

extern "C" void distca_thread_state_free(void* state) noexcept {
  delete static_cast<ThreadState*>(state);
}
