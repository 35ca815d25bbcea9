#include "distca/plan/balanced/balanced_layout.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>

#include "distca/plan/accounting.h"
#include "distca/plan/balanced/layout_fill.h"
#include "distca/plan/balanced/layout_price.h"
#include "distca/plan/balanced/layout_spread.h"
#include "distca/plan/bounds.h"
#include "distca/plan/layout_sequential.h"

namespace distca {
namespace {

constexpr size_t kLargeSize = 8192;  // documents + workers
constexpr size_t kFewChoices = 3;
constexpr size_t kHugeSize = 16'384;  // from there on one

/// In the order of documents and positions; touching segments become one.
void tidy(std::vector<Segment>& worker) {
  std::sort(worker.begin(), worker.end());
  std::vector<Segment> merged;
  merged.reserve(worker.size());
  for (const Segment& segment : worker) {
    if (!merged.empty() && merged.back().document == segment.document &&
        merged.back().tokens.end == segment.tokens.begin) {
      merged.back().tokens.end = segment.tokens.end;
    } else {
      merged.push_back(segment);
    }
  }
  worker = std::move(merged);
}

/// The load each worker should hold, for itself and for the dedicated servers that are its turn.
std::vector<int64_t> shares_of(const Cluster& cluster, int64_t load) {
  const int64_t sum = std::accumulate(cluster.capacity.begin(), cluster.capacity.end(), int64_t{0});
  std::vector<int64_t> capacity(cluster.num_workers, 0);
  for (int server = 0; server < cluster.num_servers(); ++server) {
    capacity[server % cluster.num_workers] += cluster.capacity[server];
  }
  std::vector<int64_t> shares;
  for (const int64_t own : capacity) shares.push_back(share_of(load, own, sum));
  return shares;
}

/// Shares of 0 come first, so that they get the lightest tokens. Then the largest come first, so
/// that the longest documents are cut in few pieces.
std::vector<int64_t> filling_order(std::vector<int64_t> shares) {
  std::ranges::sort(shares, {}, [](int64_t share) { return std::tuple(share != 0, -share); });
  return shares;
}

/// From the order in which they were filled to one where every worker has a share of its own and,
/// among equal ones, those that hold pieces of one document are neighbours.
void order_workers(const TaskPrice& price, const std::vector<int64_t>& filled,
                   const std::vector<int64_t>& shares, Layout& layout) {
  struct Place {
    int64_t document;  // document of the costliest segment
    int64_t end;
    int worker;
  };
  std::vector<Place> places;
  for (int worker = 0; worker < layout.num_workers(); ++worker) {
    Place place{0, 0, worker};
    int64_t most = -1;
    for (const Segment& segment : layout.workers[worker]) {
      const int64_t load = price.of_rows(segment.tokens);
      if (load <= most) continue;
      most = load;
      place = {segment.document, segment.tokens.end, worker};
    }
    places.push_back(place);
  }
  std::ranges::sort(places, {}, [&](const Place& place) {
    return std::tuple(filled[place.worker], place.document, -place.end, place.worker);
  });
  std::vector<int> targets(places.size());
  std::iota(targets.begin(), targets.end(), 0);
  std::ranges::stable_sort(targets, {}, [&](int worker) { return shares[worker]; });
  Layout ordered;
  ordered.workers.resize(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    ordered.workers[targets[i]] = std::move(layout.workers[places[i].worker]);
  }
  layout = std::move(ordered);
}

/// The most promising first; fewer where each takes long.
std::vector<FillChoice> choices_for(const PlanRequest& request) {
  std::vector<FillChoice> choices = {{1500, 1300, 1000, 400}, {1500, 900, 980, 400},
                                     {1000, 600, 950, 300},   {1500, 600, 1000, 200},
                                     {1000, 300, 950, 400},   {1000, 900, 980, 300}};
  if (request.options.spread) {
    choices.clear();
    for (const int64_t rows : {600, 400}) choices.push_back({1500, 900, 980, 300, rows});
  }
  const size_t size =
      request.nano_batch.documents.size() + static_cast<size_t>(request.cluster.num_workers);
  if (request.profile || size > kLargeSize) {
    choices.resize(std::min(choices.size(), kFewChoices));
  }
  if (size >= kHugeSize) choices.resize(1);
  return choices;
}

/// Longest first, to one worker after another and back again; sequential where tokens differ.
Layout dealt_layout(const PlanRequest& request) {
  PlanRequest dealt = request;
  std::vector<Document> by_length = request.nano_batch.documents;
  std::ranges::stable_sort(by_length, std::ranges::greater(), &Document::length);
  dealt.nano_batch.documents.clear();
  const auto num_workers = static_cast<size_t>(request.cluster.num_workers);
  for (size_t worker = 0; worker < num_workers; ++worker) {
    for (size_t row = 0; row * num_workers < by_length.size(); ++row) {
      const size_t index = row * num_workers + (row % 2 == 0 ? worker : num_workers - 1 - worker);
      if (index < by_length.size()) dealt.nano_batch.documents.push_back(by_length[index]);
    }
  }
  return sequential_layout(dealt);
}

/// Is no document more than half of what a worker holds, the shares being equal?
bool all_short(const PlanRequest& request, const std::vector<int64_t>& shares) {
  int64_t longest = 0;
  for (const Document& document : request.nano_batch.documents) {
    longest = std::max(longest, document.length);
  }
  return longest * 2 * request.cluster.num_workers <= request.nano_batch.num_tokens() &&
         shares.front() == shares.back();
}

/// Half as much for one worker is worth 40 % more in all.
double spread_score(const LayoutPrice& price) {
  const auto bytes = static_cast<double>(price.bytes);
  return bytes * bytes * static_cast<double>(price.busiest);
}

/// The cost of a layout when every query is computed at home.
HomeCost home_cost(const PlanRequest& request, const TaskPrice& price, const Layout& layout,
                   const std::vector<int64_t>& shares) {
  HomeCost cost{.bytes = price_layout(request, price, layout, shares).bytes};
  for (int worker = 0; worker < layout.num_workers(); ++worker) {
    int64_t load = 0;
    for (const Segment& segment : layout.workers[worker]) load += price.of_rows(segment.tokens);
    const auto share = static_cast<double>(std::max<int64_t>(1, shares[worker]));
    cost.load = std::max(cost.load, static_cast<double>(load) / share);
    cost.tokens = std::max(cost.tokens, layout.num_tokens(worker));
  }
  return cost;
}

}  // namespace

Layout balanced_layout(const PlanRequest& request) {
  check_tokens_fit(request);
  const TaskPrice price(request.shape, request.profile.get());
  const int64_t load = load_of(request.nano_batch, price);
  const std::vector<int64_t> own_shares = shares_of(request.cluster, load);
  const std::vector<int64_t> shares = filling_order(own_shares);
  Filling filling{.request = request,
                  .price = price,
                  .shares = shares,
                  .by_length = request.nano_batch.documents,
                  .mean_load = load / std::max<int64_t>(1, request.nano_batch.num_tokens())};
  std::erase_if(filling.by_length, [](const Document& document) { return document.length == 0; });
  std::ranges::stable_sort(filling.by_length, {}, &Document::length);
  const bool spread = request.options.spread;
  std::optional<Layout> best;
  LayoutPrice lowest;
  const auto consider = [&](Layout layout) {
    for (auto& worker : layout.workers) tidy(worker);
    if (spread) {
      spread_hot_rows(request, price, shares, layout);
      for (auto& worker : layout.workers) tidy(worker);
    }
    const LayoutPrice cost = price_layout(request, price, layout, shares);
    const bool better =
        spread ? spread_score(cost) < spread_score(lowest) : cost.bytes < lowest.bytes;
    if (best && !better) return;
    best = std::move(layout);
    lowest = cost;
  };
  for (const FillChoice& choice : choices_for(request)) consider(fill_workers(filling, choice));
  if (all_short(request, shares)) consider(dealt_layout(request));
  order_workers(price, shares, own_shares, *best);

  // Documents in their order, where that is at least as good in every respect.
  Layout packed = sequential_layout(request);
  for (auto& worker : packed.workers) tidy(worker);
  const HomeCost ours = home_cost(request, price, *best, own_shares);
  const HomeCost theirs = home_cost(request, price, packed, own_shares);
  return theirs.as_good_as(ours) ? packed : std::move(*best);
}

}  // namespace distca
