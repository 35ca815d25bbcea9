#pragma once
// The heap of this process.

namespace distca {

/// Makes the process keep memory that it frees, instead of giving it back to the system. A step of
/// a pipeline frees the activations of many micro-batches at once. The next step would get new
/// pages for them, and each page that is touched first costs processor time. Blocks above 32 MiB
/// are given back all the same. Only glibc does as it is told; elsewhere, nothing happens. Call it
/// before other threads are started.
void keep_freed_memory();

}  // namespace distca
