// The state that PyTorch keeps of a thread, as C functions: python/distca/_ping_pong.py gives each
// of its coroutines one of its own. They are no operators, for a dispatch mode is a part of this
// state and would see an operator. The caller holds Python's lock, for the state counts references
// to Python's objects.

#include <ATen/ATen.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>

namespace {

at::Tensor random_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

/// What ThreadLocalState leaves out, too: whether autocast may keep the casts of weights, and the
/// random numbers of the CPU, which checkpointing draws again as they follow each other.
struct ThreadState {
  at::ThreadLocalState most;
  bool keeps_casts = at::autocast::is_autocast_cache_enabled();
  at::Tensor random = random_state();
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

/// A copy of this thread's state, which distca_thread_state_free() gives back. Null: no memory.
extern "C" void* distca_thread_state_copy() noexcept {
  try {
    return new ThreadState;
  } catch (const std::exception&) {
    return nullptr;
  }
}

/// Exchanges this thread's state and the one in `state`.
extern "C" void distca_thread_state_swap(void* state) noexcept {
  ThreadState& other = *static_cast<ThreadState*>(state);
  ThreadState mine;
  if (!mine.casts_as(other)) at::autocast::clear_cache();
  at::ThreadLocalState::setThreadLocalState(other.most);
  at::autocast::set_autocast_cache_enabled(other.keeps_casts);
  set_random_state(other.random);
  other = std::move(mine);
}

extern "C" void distca_thread_state_free(void* state) noexcept {
  delete static_cast<ThreadState*>(state);
}
