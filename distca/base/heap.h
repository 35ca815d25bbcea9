#pragma once
// The heap of this process.

namespace distca {

/// Makes the process keep memory that it frees, instead of giving it back to the system. A training
/// step frees the activations of all layers. The next step would get new pages for them, and each
/// page that is touched first costs processor time. Call it before other threads are started.
void keep_freed_memory();

}  // namespace distca
