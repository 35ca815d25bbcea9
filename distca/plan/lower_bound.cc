#include "distca/plan/lower_bound.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace distca {
namespace {

double all_pairs(const Document& document) {
  const auto length = static_cast<double>(document.length);
  return length * (length + 1) / 2;
}

/// Key tokens read away from home, at least.
double fewest_keys(const Document& document, double allowed_pairs) {
  const double pieces = all_pairs(document) / allowed_pairs;
  if (pieces <= 1) return 0;
  double keys = 0;  // that the pieces read: up to the rows below which the lower pieces' pairs lie
  for (double i = 0; i < pieces; i += 1) {
    const double below = (1 - i / pieces) * all_pairs(document);
    keys += (std::sqrt(8 * below + 1) - 1) / 2;
  }
  return std::max(0.0, keys - static_cast<double>(document.length));
}

}  // namespace

int64_t lower_bound_bytes(const Plan& plan) {
  if (!plan.shape.mask.sees_all_before()) return 0;
  const auto& capacity = plan.cluster.capacity;
  const auto all = static_cast<double>(std::reduce(capacity.begin(), capacity.end()));
  const auto largest = static_cast<double>(*std::max_element(capacity.begin(), capacity.end()));
  double pairs = 0;
  for (const Document& document : plan.nano_batch.documents) pairs += all_pairs(document);
  const double allowed = plan.options.most_over_share() * pairs * largest / all;
  double keys = 0;
  for (const Document& document : plan.nano_batch.documents) {
    keys += fewest_keys(document, allowed);
  }
  return static_cast<int64_t>(keys * static_cast<double>(plan.shape.kv_token_bytes()));
}

}  // namespace distca
