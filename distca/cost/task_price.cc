#include "distca/cost/task_price.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "distca/base/error.h"

namespace distca {
namespace {

// A double's exponent and first three bits of fraction number the steps: 8 an octave, ascending.
constexpr int kStepShift = 49;

uint64_t step_of(double tokens) { return std::bit_cast<uint64_t>(tokens) >> kStepShift; }
double begin_of(uint64_t step) { return std::bit_cast<double>(step << kStepShift); }
/// How far into its step `tokens` lies, 0 to 1.
double fraction_of(double tokens) {
  const uint64_t exponent = std::bit_cast<uint64_t>(tokens) >> 52;
  const double steps_a_token =
      std::bit_cast<double>((2046 + 3 - exponent) << 52);  // 8 / 2^exponent
  return (tokens - begin_of(step_of(tokens))) * steps_a_token;
}

double triangle_pairs(double q) { return q * (q + 1) * 0.5; }
/// The causal pairs of q queries, which are the last of kv keys.
double causal_pairs(double q, double kv) { return q * (kv - (q - 1) * 0.5); }

/// Between which two points of the grid `tokens` lies, and how far from the first.
struct Place {
  size_t low, high;
  double fraction;
};

Place place_in(const std::vector<int64_t>& grid, double tokens) {
  size_t high = 0;
  while (high < grid.size() && static_cast<double>(grid[high]) <= tokens) ++high;
  if (high == 0) return {0, 0, 0};
  if (high == grid.size()) return {high - 1, high - 1, 0};
  const auto begin = static_cast<double>(grid[high - 1]);
  return {high - 1, high, (tokens - begin) / (static_cast<double>(grid[high]) - begin)};
}

double between(double low, double high, double fraction) { return low + (high - low) * fraction; }

/// Pairs per ns at every point of the grid; above the diagonal, what the column has last.
std::vector<double> throughputs(const AttentionProfile& profile, const std::vector<int64_t>& ns) {
  const size_t columns = profile.kv_tokens.size();
  std::vector<double> values(ns.size());
  for (size_t i = 0; i < ns.size(); ++i) {
    const int64_t q = profile.q_tokens[i / columns];
    const int64_t kv = profile.kv_tokens[i % columns];
    values[i] = q > kv ? values[i - columns]
                       : causal_pairs(static_cast<double>(q), static_cast<double>(kv)) /
                             static_cast<double>(ns[i]);
  }
  return values;
}

double bilinear(const std::vector<double>& values, size_t columns, const Place& q,
                const Place& kv) {
  const auto at = [&](size_t row) {
    return between(values[row * columns + kv.low], values[row * columns + kv.high], kv.fraction);
  };
  return between(at(q.low), at(q.high), q.fraction);
}

int64_t whole_ns(double ns) {
  if (ns >= static_cast<double>(TaskPrice::kMostNs)) return TaskPrice::kMostNs;
  return std::max<int64_t>(1, static_cast<int64_t>(ns + 0.5));
}

}  // namespace

TaskPrice::TaskPrice(const AttentionShape& shape, const AttentionProfile* profile)
    : mask_(shape.mask), has_closed_form_(profile == nullptr && mask_.sees_all_before()) {
  if (profile == nullptr) return;
  const std::string fault = profile_fault(*profile);
  DISTCA_CHECK(fault.empty(), "{}", fault);
  build(*profile, static_cast<double>(shape.pair_products()) /
                      static_cast<double>(profile->shape.pair_products()));
}

void TaskPrice::build(const AttentionProfile& profile, double scale) {
  q_least_ = static_cast<double>(profile.q_tokens.front());
  q_most_ = static_cast<double>(profile.q_tokens.back());
  kv_least_ = static_cast<double>(profile.kv_tokens.front());
  kv_most_ = static_cast<double>(profile.kv_tokens.back());
  first_q_step_ = step_of(q_least_);
  first_kv_step_ = step_of(kv_least_);
  // One more than lies in the grid: its last step has an end, too.
  const size_t rows = step_of(q_most_) - first_q_step_ + 2;
  columns_ = step_of(kv_most_) - first_kv_step_ + 2;
  nodes_.resize(rows * columns_);

  const size_t grid_columns = profile.kv_tokens.size();
  const std::vector<double> forward = throughputs(profile, profile.forward_ns);
  const std::vector<double> backward = throughputs(profile, profile.backward_ns);
  std::vector<Place> columns;
  for (size_t j = 0; j < columns_; ++j) {
    columns.push_back(place_in(profile.kv_tokens, begin_of(first_kv_step_ + j)));
  }
  for (size_t i = 0; i < rows; ++i) {
    const double q = begin_of(first_q_step_ + i);
    const Place row = place_in(profile.q_tokens, q);
    for (size_t j = 0; j < columns_; ++j) {
      const double kv = begin_of(first_kv_step_ + j);
      Node node;
      if (q <= kv) {
        const double pairs = causal_pairs(std::max(q, q_least_), std::max(kv, kv_least_)) * scale;
        node = {pairs / bilinear(forward, grid_columns, row, columns[j]),
                pairs / bilinear(backward, grid_columns, row, columns[j])};
      }
      // Measurements jitter; a larger task never costs less.
      const auto at_least = [&node](const Node& other) {
        node.forward = std::max(node.forward, other.forward);
        node.backward = std::max(node.backward, other.backward);
      };
      if (i > 0) at_least(nodes_[(i - 1) * columns_ + j]);
      if (j > 0) at_least(nodes_[i * columns_ + j - 1]);
      nodes_[i * columns_ + j] = node;
    }
  }
}

TaskPrice::Passes TaskPrice::nanoseconds(int64_t queries, int64_t pairs) const {
  const auto area = static_cast<double>(pairs);
  auto q = static_cast<double>(queries);
  double kv;
  if (area >= triangle_pairs(q)) {
    kv = area / q + (q - 1) * 0.5;
  } else {
    q = kv = (std::sqrt(8 * area + 1) - 1) * 0.5;
  }
  q = std::max(q, q_least_);
  kv = std::max(kv, kv_least_);
  const double grid_q = std::min(q, q_most_);
  const double grid_kv = std::min(kv, kv_most_);
  const double beyond =
      q > q_most_ || kv > kv_most_ ? causal_pairs(q, kv) / causal_pairs(grid_q, grid_kv) : 1;

  const double q_fraction = fraction_of(grid_q);
  const double kv_fraction = fraction_of(grid_kv);
  const Node* low =
      &nodes_[(step_of(grid_q) - first_q_step_) * columns_ + (step_of(grid_kv) - first_kv_step_)];
  const Node* high = low + columns_;
  const auto time = [&](double Node::*pass) {
    return whole_ns(beyond * between(between(low[0].*pass, low[1].*pass, kv_fraction),
                                     between(high[0].*pass, high[1].*pass, kv_fraction),
                                     q_fraction));
  };
  return {time(&Node::forward), time(&Node::backward)};
}

TaskPrice::Passes TaskPrice::passes(const Range& q, const Range& kv, MaskKind kind) const {
  return passes(q.size(), mask_.of_task(kind).pairs(q, kv));
}
TaskPrice::Passes TaskPrice::passes(int64_t queries, int64_t pairs) const {
  DISTCA_CHECK(!in_pairs(), "no profile");
  return pairs == 0 ? Passes{0, 0} : nanoseconds(queries, pairs);
}

}  // namespace distca
