#include "distca/plan/load_bound.h"

#include <numeric>

namespace distca {
namespace {

/// floor(a * b / c) without overflow, for b, c < 2^31 and a * b / c within int64.
int64_t scale(int64_t a, int64_t b, int64_t c) { return a / c * b + a % c * b / c; }

}  // namespace

std::vector<int64_t> load_bounds(const PlanRequest& request, int64_t total) {
  const std::vector<int64_t>& capacity = request.cluster.capacity;
  const int64_t sum = std::accumulate(capacity.begin(), capacity.end(), int64_t{0});
  std::vector<int64_t> bounds;
  for (const int64_t own : capacity) {
    const int64_t share = scale(total, own, sum);
    bounds.push_back(share + scale(share, request.options.tolerance_ppm, 1'000'000));
  }
  return bounds;
}

}  // namespace distca
