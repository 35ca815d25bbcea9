#pragma once
// cpu_forward and cpu_backward (cpu/attention.h) with the engine given. Those two call these, and
// tests of the order of items call these with an engine of their own. Thread rule and errors are
// the same as there.

#include "distca/kernels/attention.h"
#include "distca/kernels/cpu/engine.h"
#include "distca/kernels/cpu/thread_pool.h"

namespace distca::kernels {

void run_forward(const Engine& engine, const Shape& shape, ScalarType type, ScalarType o_type,
                 const TaskList& list, ThreadPool& pool);
void run_backward(const Engine& engine, const Shape& shape, ScalarType type, const TaskList& list,
                  ThreadPool& pool);

}  // namespace distca::kernels
