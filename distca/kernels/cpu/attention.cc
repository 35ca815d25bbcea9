#include "distca/kernels/cpu/attention.h"

#include "distca/kernels/cpu/engine.h"
#include "distca/kernels/cpu/run_items.h"

namespace distca::kernels {

void cpu_forward(const Shape& shape, ScalarType type, ScalarType o_type, const TaskList& list,
                 ThreadPool& pool, Isa isa) {
  run_forward(engine_of(isa), shape, type, o_type, list, pool);
}

void cpu_backward(const Shape& shape, ScalarType type, const TaskList& list, ThreadPool& pool,
                  Isa isa) {
  run_backward(engine_of(isa), shape, type, list, pool);
}

}  // namespace distca::kernels
