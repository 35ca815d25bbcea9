#pragma once
// Random tensors for core attention, and room for what it computes of them, as kernels take them:
// for those who measure it. Include <ATen/ATen.h> before it. Thread rule: one
// thread.

#include "distca/comm/aten_types.h"
#include "distca/kernels/rows.h"
#include "distca/runtime/tensor_rows.h"

namespace distca {

struct AttentionTensors {
  at::Tensor q, k, v, d_o, delta;  // [tokens, heads, dim] random
  at::Tensor o, lse, dq, dk, dv;   // zeros
  kernels::TaskList list;          // these buffers; the tasks are the caller's

  AttentionTensors(const kernels::Shape& shape, ScalarType type, int64_t queries, int64_t keys,
                   at::Device device = at::kCPU) {
    const ScalarType sums = kernels::accumulator_type(type);
    const auto random = [&](int64_t tokens, int64_t heads, int64_t dim, ScalarType of) {
      return at::randn({tokens, heads, dim}, at::TensorOptions(device).dtype(at::kFloat))
          .to(aten_type(of));
    };
    q = random(queries, shape.num_heads, shape.head_dim_qk, type);
    d_o = random(queries, shape.num_heads, shape.head_dim_v, type);
    k = random(keys, shape.num_kv_heads, shape.head_dim_qk, type);
    v = random(keys, shape.num_kv_heads, shape.head_dim_v, type);
    delta = random(queries, shape.num_heads, 1, sums);
    o = at::zeros_like(d_o);
    lse = at::zeros_like(delta);
    dq = at::zeros_like(q, aten_type(sums));
    dk = at::zeros_like(k, aten_type(sums));
    dv = at::zeros_like(v, aten_type(sums));
    list.queries = {{.tokens = queries,
                     .q = rows_of(q),
                     .o = rows_of(o),
                     .lse = rows_of(lse),
                     .d_o = rows_of(d_o),
                     .delta = rows_of(delta),
                     .dq = rows_of(dq)}};
    list.keys = {
        {.tokens = keys, .k = rows_of(k), .v = rows_of(v), .dk = rows_of(dk), .dv = rows_of(dv)}};
  }
};

}  // namespace distca
