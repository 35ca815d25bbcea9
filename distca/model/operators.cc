#include <ATen/ATen.h>

#include "distca/model/operators.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/comm/as_on_device.h"

namespace distca {
namespace {

/// Calls work(begin, count, block) for blocks of rows, on ATen's threads. How rows are divided
/// depends on their size alone. A device other than a CPU gets one block.
template <typename Work>
void for_blocks(const at::Tensor& rows, int64_t num_blocks, Work work) {
  const int64_t total = rows.size(0), each = ceil_div(total, std::max<int64_t>(1, num_blocks));
  at::parallel_for(0, num_blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * each;
      if (begin < total) work(begin, std::min(each, total - begin), block);
    }
  });
}

int64_t blocks_of(const at::Tensor& rows) {
  constexpr int64_t kBlockElements = 1 << 15;  // a few such blocks fit a core's second cache
  if (as_on_device(rows.get_device()) || rows.numel() == 0) return rows.size(0) > 0 ? 1 : 0;
  const int64_t of_row = rows.numel() / rows.size(0);
  return ceil_div(rows.size(0), std::max<int64_t>(1, kBlockElements / of_row));
}

/// Returns some rows. For all rows, that is the tensor itself, so that a device's host calls an
/// operator less.
at::Tensor part_of(const at::Tensor& rows, int64_t begin, int64_t count) {
  return count == rows.size(0) ? rows : rows.narrow(0, begin, count);
}
at::Tensor in_type(const at::Tensor& rows, at::ScalarType type) {
  return rows.scalar_type() == type ? rows : rows.to(type);
}

/// Lets write(rows) fill some rows of a result, which is computed in `type`: where they have
/// another type, in rows of `type` that are then rounded.
template <typename Write>
void fill_rows(const at::Tensor& rows, at::ScalarType type, Write write) {
  if (rows.scalar_type() == type) return write(rows);
  const at::Tensor wide = at::empty(rows.sizes(), rows.options().dtype(type));
  write(wide);
  rows.copy_(wide);
}

/// A tensor of x's sizes in `type`. write(rows, begin, count) computes each block of its rows, in
/// rows of the type `wide`.
template <typename Write>
at::Tensor filled(const at::Tensor& x, at::ScalarType wide, at::ScalarType type, Write write) {
  const int64_t blocks = blocks_of(x);
  if (blocks == 1) {  // rounded as a whole
    const at::Tensor rows = at::empty(x.sizes(), x.options().dtype(wide));
    write(rows, 0, x.size(0));
    return in_type(rows, type);
  }
  at::Tensor y = at::empty(x.sizes(), x.options().dtype(type));
  for_blocks(x, blocks, [&](int64_t begin, int64_t count, int64_t) {
    fill_rows(part_of(y, begin, count), wide,
              [&](const at::Tensor& rows) { write(rows, begin, count); });
  });
  return y;
}

/// ATen has a kernel of CUDA alone that norms: one pass over memory, where operators of parts make
/// ten.
bool has_norm_kernel(const at::Tensor& x, at::ScalarType type) {
  return x.is_cuda() && x.numel() > 0 && x.scalar_type() == type;
}

/// Gives the same as norm_rows(), by that kernel. It computes in fp32, and takes the weight, as it
/// gives its gradient, in the type of x.
std::pair<at::Tensor, at::Tensor> fused_norm(const at::Tensor& x, const at::Tensor& weight,
                                             double eps) {
  auto [y, factors] = at::_fused_rms_norm(x, weight.sizes(), in_type(weight, x.scalar_type()), eps);
  return {y, factors};
}
std::pair<at::Tensor, at::Tensor> fused_norm_backward(const at::Tensor& d_y, const at::Tensor& x,
                                                      const at::Tensor& weight,
                                                      const at::Tensor& factors) {
  const auto [d_x, d_weight] = at::_fused_rms_norm_backward(
      d_y, x, weight.sizes(), factors, in_type(weight, x.scalar_type()), {true, true});
  return {d_x, in_type(d_weight, weight.scalar_type())};
}

}  // namespace

std::pair<at::Tensor, at::Tensor> norm_rows(const at::Tensor& x, const at::Tensor& weight,
                                            double eps, at::ScalarType type) {
  if (has_norm_kernel(x, type)) return fused_norm(x, weight, eps);
  at::Tensor factors = at::empty({x.size(0), 1}, weight.options());
  const auto write = [&](at::Tensor rows, int64_t begin, int64_t count) {
    const at::Tensor wide = in_type(part_of(x, begin, count), weight.scalar_type());
    at::Tensor factor = part_of(factors, begin, count);
    at::mul_out(rows, wide, wide);
    at::mean_out(factor, rows, -1, /*keepdim=*/true).add_(eps).rsqrt_();
    at::mul_out(rows, wide, factor).mul_(weight);
  };
  return {filled(x, weight.scalar_type(), type, write), factors};
}

at::Tensor Normed::again(const at::Tensor& x, const at::Tensor& weight, double eps,
                         at::ScalarType type) const {
  if (rows.defined()) return rows;
  if (has_norm_kernel(x, type)) return fused_norm(x, weight, eps).first;
  const auto write = [&](at::Tensor y, int64_t begin, int64_t count) {
    const at::Tensor wide = in_type(part_of(x, begin, count), weight.scalar_type());
    at::mul_out(y, wide, part_of(factors, begin, count)).mul_(weight);
  };
  return filled(x, weight.scalar_type(), type, write);
}

// But for the kernel's, the gradient by x takes the place of `d_y`.
std::pair<at::Tensor, at::Tensor> norm_rows_backward(const at::Tensor& d_y, const at::Tensor& x,
                                                     const at::Tensor& weight,
                                                     const at::Tensor& factors) {
  if (has_norm_kernel(x, d_y.scalar_type())) return fused_norm_backward(d_y, x, weight, factors);
  const at::ScalarType type = weight.scalar_type();
  const int64_t blocks = blocks_of(x);
  at::Tensor d_weights = blocks == 1 ? at::empty(weight.sizes(), weight.options())
                                     : at::zeros({blocks, weight.size(0)}, weight.options());
  for_blocks(x, blocks, [&](int64_t begin, int64_t count, int64_t block) {
    const at::Tensor factor = part_of(factors, begin, count);
    const at::Tensor wide = in_type(part_of(x, begin, count), type);
    const at::Tensor d_rows = part_of(d_y, begin, count);
    const at::Tensor d_wide = in_type(d_rows, type);
    const at::Tensor product = d_wide * wide;
    at::Tensor of_block = blocks == 1 ? d_weights : d_weights.select(0, block);
    at::mv_out(of_block, product.t(), factor.squeeze(1));
    // The part along the row changes its length, which the norm takes away.
    const at::Tensor along =
        at::mv(product, weight).unsqueeze(1).mul_(factor).mul_(factor).mul_(factor);
    fill_rows(d_rows, type, [&](at::Tensor rows) {
      at::mul_out(rows, d_wide, weight).mul_(factor);
      rows.addcmul_(wide, along, -1.0 / static_cast<double>(x.size(1)));
    });
  });
  return {d_y, blocks == 1 ? d_weights : d_weights.sum(0)};
}

Rope Rope::part(int64_t begin, int64_t count) const {
  return {part_of(cosines, begin, count), part_of(sines, begin, count)};
}

at::Tensor rotate(const at::Tensor& x, const Rope& rope, double direction) {
  const at::ScalarType type = rope.cosines.scalar_type();
  if (as_on_device(x.get_device())) {
    // A device's kernels convert what they read and write, so x is neither widened nor rounded in a
    // pass of its own.
    at::Tensor y = at::empty(x.sizes(), x.options());
    return at::addcmul_out(y, x * rope.cosines, x.roll(x.size(-1) / 2, -1), rope.sines, direction);
  }
  return filled(x, type, x.scalar_type(), [&](at::Tensor rows, int64_t begin, int64_t count) {
    const at::Tensor wide = in_type(part_of(x, begin, count), type);
    at::mul_out(rows, wide, part_of(rope.cosines, begin, count));
    // Whole rows at a time: ATen's loops over half a head are twice as slow.
    rows.addcmul_(wide.roll(x.size(-1) / 2, -1), part_of(rope.sines, begin, count), direction);
  });
}

std::vector<at::Tensor> products(const at::Tensor& rows, const std::vector<at::Tensor>& matrices,
                                 const std::vector<at::Tensor>& biases) {
  DISTCA_CHECK(biases.empty() || biases.size() == matrices.size(), "{} biases", biases.size());
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < matrices.size(); ++i) {
    results.push_back(at::linear(rows, matrices[i]));
    if (!biases.empty()) results.back().add_(biases[i]);
  }
  return results;
}

void sum_of_products(const std::vector<at::Tensor>& rows, const std::vector<at::Tensor>& matrices,
                     at::Tensor& sum) {
  // ATen would give the sum other memory, and whoever reads its own would read what was there.
  DISTCA_CHECK(sum.sizes() == at::IntArrayRef({rows[0].size(0), matrices[0].size(1)}),
               "a product of other sizes");
  at::mm_out(sum, rows[0], matrices[0]);
  for (size_t i = 1; i < matrices.size(); ++i) sum.addmm_(rows[i], matrices[i]);
}

std::vector<at::Tensor> norm_linear(const at::Tensor& x, const at::Tensor& weight, double eps,
                                    const std::vector<at::Tensor>& matrices,
                                    const std::vector<at::Tensor>& biases, Keep keep,
                                    Normed* kept) {
  DISTCA_CHECK(!matrices.empty(), "no matrices");
  const auto [h, factors] = norm_rows(x, weight, eps, matrices[0].scalar_type());
  if (kept != nullptr)
    *kept = {.factors = factors, .rows = keep == Keep::kProducts ? h : at::Tensor()};
  return products(h, matrices, biases);
}

std::pair<at::Tensor, at::Tensor> norm_linear_backward(const Normed& kept, const at::Tensor& x,
                                                       const at::Tensor& weight,
                                                       const std::vector<at::Tensor>& matrices,
                                                       const std::vector<at::Tensor>& d_results) {
  at::Tensor d_h = at::empty({d_results[0].size(0), matrices[0].size(1)}, d_results[0].options());
  sum_of_products(d_results, matrices, d_h);
  return norm_rows_backward(d_h, x, weight, kept.factors);
}

at::Tensor matrix_gradient(const at::Tensor& d_y, const at::Tensor& rows) {
  return d_y.t().mm(rows);
}

at::Tensor bias_gradient(const at::Tensor& d_y, at::ScalarType type) {
  const int64_t blocks = blocks_of(d_y);
  at::Tensor sums = at::zeros({blocks, d_y.size(1)}, d_y.options().dtype(type));
  for_blocks(d_y, blocks, [&](int64_t begin, int64_t count, int64_t block) {
    at::Tensor of_block = sums.select(0, block);
    at::sum_out(of_block, part_of(d_y, begin, count), 0, /*keepdim=*/false, type);
  });
  return sums.sum(0);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor product = at::empty_like(gate);
  for_blocks(gate, blocks_of(gate), [&](int64_t begin, int64_t count, int64_t) {
    at::Tensor rows = part_of(product, begin, count);
    at::silu_out(rows, part_of(gate, begin, count));
    rows.mul_(part_of(up, begin, count));
  });
  return product;
}

void swiglu_backward(const at::Tensor& gate, const at::Tensor& up, at::Tensor& d_gate,
                     at::Tensor& d_up) {
  for_blocks(gate, blocks_of(gate), [&](int64_t begin, int64_t count, int64_t) {
    const at::Tensor g = part_of(gate, begin, count), u = part_of(up, begin, count);
    at::Tensor by_gate = part_of(d_gate, begin, count), by_up = part_of(d_up, begin, count);
    at::silu_backward_out(by_gate, by_up * u, g);
    by_up.mul_(at::silu(g));
  });
}

at::Tensor norm_rotate(const at::Tensor& x, const at::Tensor& weight, double eps, const Rope& rope,
                       at::Tensor* factors) {
  at::Tensor y = at::empty_like(x);
  *factors = at::empty({x.size(0), x.size(1), 1}, weight.options());
  for_blocks(x, blocks_of(x), [&](int64_t begin, int64_t count, int64_t) {
    const at::Tensor wide = in_type(part_of(x, begin, count), weight.scalar_type());
    at::Tensor factor = part_of(*factors, begin, count);
    at::mean_out(factor, wide * wide, -1, /*keepdim=*/true).add_(eps).rsqrt_();
    const at::Tensor normed = (wide * factor).mul_(weight);
    part_of(y, begin, count).copy_(rotate(normed, rope.part(begin, count)));
  });
  return y;
}

std::pair<at::Tensor, at::Tensor> norm_rotate_backward(const at::Tensor& d_y, const at::Tensor& x,
                                                       const at::Tensor& weight,
                                                       const at::Tensor& factors,
                                                       const Rope& rope) {
  const int64_t blocks = blocks_of(x);
  at::Tensor d_x = at::empty_like(x);
  at::Tensor d_weights = at::zeros({blocks, weight.size(0)}, weight.options());
  for_blocks(x, blocks, [&](int64_t begin, int64_t count, int64_t block) {
    const at::Tensor factor = part_of(factors, begin, count);
    // The rows without their lengths, and the gradient by these times the weight.
    const at::Tensor even = in_type(part_of(x, begin, count), weight.scalar_type()) * factor;
    const at::Tensor d_normed =
        rotate(in_type(part_of(d_y, begin, count), weight.scalar_type()), rope.part(begin, count),
               /*direction=*/-1);
    at::Tensor of_block = d_weights.select(0, block);
    at::sum_out(of_block, d_normed * even, at::IntArrayRef{0, 1});
    const at::Tensor d_even = d_normed * weight;
    const at::Tensor along = (d_even * even).mean(-1, /*keepdim=*/true);
    part_of(d_x, begin, count).copy_((d_even - even * along).mul_(factor));
  });
  return {d_x, d_weights.sum(0)};
}

}  // namespace distca
