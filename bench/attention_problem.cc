#include "bench/attention_problem.h"

#include <algorithm>
#include <cmath>

#include "distca/kernels/bfloat16.h"
#include "distca/kernels/rows.h"

namespace distca::bench {
namespace {

int64_t query_tokens(const std::vector<QueryRun>& runs) {
  int64_t tokens = 0;
  for (const QueryRun& run : runs) tokens += run.tokens;
  return tokens;
}

int64_t key_tokens(const std::vector<QueryRun>& runs) {
  int64_t tokens = 0;
  for (const QueryRun& run : runs) tokens = std::max(tokens, run.position + run.tokens);
  return tokens;
}

}  // namespace

Buffer::Buffer(Arena& arena, ScalarType type, int64_t tokens, int64_t heads, int64_t dim)
    : type_(type),
      tokens_(tokens),
      heads_(heads),
      dim_(dim),
      data_(arena.take(tokens * heads * dim * element_bytes(type))) {}

void Buffer::fill(Random& random) {
  const auto width = static_cast<float>(2 * std::sqrt(3.0));
  const int64_t elements = tokens_ * heads_ * dim_;
  auto* floats = reinterpret_cast<float*>(data_);
  auto* halves = reinterpret_cast<kernels::BFloat16*>(data_);
  for (int64_t i = 0; i < elements; ++i) {
    const float value = width * (static_cast<float>(random.uniform()) - 0.5F);
    if (type_ == ScalarType::kBFloat16) {
      halves[i] = kernels::to_bfloat16(value);
    } else {
      floats[i] = value;
    }
  }
}

kernels::Rows Buffer::rows() { return {data_, heads_ * dim_, dim_}; }

Problem::Problem(ScalarType type, const Heads& heads, int64_t head_dim,
                 const std::vector<QueryRun>& runs)
    : q(arena, type, query_tokens(runs), heads.heads, head_dim),
      k(arena, type, key_tokens(runs), heads.kv_heads, head_dim),
      v(arena, type, key_tokens(runs), heads.kv_heads, head_dim),
      o(arena, type, query_tokens(runs), heads.heads, head_dim),
      d_o(arena, type, query_tokens(runs), heads.heads, head_dim),
      lse(arena, ScalarType::kFloat32, query_tokens(runs), heads.heads, 1),
      delta(arena, ScalarType::kFloat32, query_tokens(runs), heads.heads, 1),
      dq(arena, ScalarType::kFloat32, query_tokens(runs), heads.heads, head_dim),
      dk(arena, ScalarType::kFloat32, key_tokens(runs), heads.kv_heads, head_dim),
      dv(arena, ScalarType::kFloat32, key_tokens(runs), heads.kv_heads, head_dim),
      type_(type),
      heads_(heads),
      shape_{.num_heads = heads.used(),
             .num_kv_heads = heads.kv_used,
             .head_dim_qk = head_dim,
             .head_dim_v = head_dim,
             .softmax_scale = 1 / std::sqrt(static_cast<double>(head_dim))} {
  Random random(1);
  for (Buffer* buffer : {&q, &k, &v, &d_o}) buffer->fill(random);
  list_.queries = {{.tokens = q.tokens(),
                    .q = q.rows(),
                    .o = o.rows(),
                    .lse = lse.rows(),
                    .d_o = d_o.rows(),
                    .delta = delta.rows(),
                    .dq = dq.rows()}};
  list_.keys = {
      {.tokens = k.tokens(), .k = k.rows(), .v = v.rows(), .dk = dk.rows(), .dv = dv.rows()}};
  add_tasks(runs);
}

void Problem::add_tasks(const std::vector<QueryRun>& runs) {
  int64_t token = 0;
  for (const QueryRun& run : runs) {
    list_.tasks.push_back({.q_row = token,
                           .q_tokens = run.tokens,
                           .q_position = run.position,
                           .keys = {{.tokens = k.tokens()}}});
    token += run.tokens;
    const auto n = static_cast<double>(run.tokens);
    pairs_ += n * static_cast<double>(run.position) + n * (n + 1) / 2;
  }
}

double Problem::flops(Pass pass) const {
  const double of_a_pair = (pass == Pass::kForward ? 4.0 : 10.0) * shape_.head_dim_qk;
  return of_a_pair * pairs_ * static_cast<double>(shape_.num_heads);
}

void Problem::prepare(kernels::ThreadPool& pool, kernels::Isa isa) {
  run(Pass::kForward, pool, isa);
  std::vector<double> output(shape_.head_dim_v), gradient(shape_.head_dim_v);
  for (int64_t token = 0; token < q.tokens(); ++token) {
    for (int64_t head = 0; head < shape_.num_heads; ++head) {
      kernels::read_row(o.rows(), type_, token, head, output);
      kernels::read_row(d_o.rows(), type_, token, head, gradient);
      double sum = 0;
      for (size_t i = 0; i < output.size(); ++i) sum += output[i] * gradient[i];
      kernels::write_row(delta.rows(), ScalarType::kFloat32, token, head, {&sum, 1});
    }
  }
}

void Problem::run(Pass pass, kernels::ThreadPool& pool, kernels::Isa isa) {
  if (pass == Pass::kForward) {
    kernels::cpu_forward(shape_, type_, type_, list_, pool, isa);
  } else {
    kernels::cpu_backward(shape_, type_, list_, pool, isa);
  }
}

}  // namespace distca::bench
