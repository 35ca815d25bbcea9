#pragma once
// Work that is divided over threads, where each part of it stands for itself. So neither the number
// of threads nor their speed changes a result.
//
//   for_each_in_parallel(plans.size(), threads_here(), [&](size_t i) { plans[i] = make(i); });
//
// Any thread may call the functions.

#include <cstddef>
#include <functional>

namespace distca {

/// How many threads of this process can run at the same time; at least 1.
int threads_here();

/// Calls work(i) once for each i below `count`, in ascending order, on up to so many threads, the
/// calling one included. Errors: if a call throws, no further one begins, and the exception of the
/// lowest i is rethrown once those under way have ended. A loop would have thrown the same.
void for_each_in_parallel(size_t count, int threads, const std::function<void(size_t)>& work);

}  // namespace distca
