#pragma once
// The pause of a thread between two looks at a variable that another thread will soon change.
// Thread rule: no state.

namespace distca::kernels {

/// Tells the processor that this is a waiting loop. Takes tens of cycles.
inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace distca::kernels
