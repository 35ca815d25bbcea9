#include "distca/plan/balanced/split_kv_steps.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "distca/plan/bounds.h"
#include "distca/plan/cuts.h"

namespace distca {
namespace {

constexpr size_t kMostMembers = 12;
constexpr double kAboveCaps = 1000;  // times its price: what a shard costs that does not fit alone
constexpr double kNoGroup = std::numeric_limits<double>::infinity();
/// How much the bytes of rows count, in thousandths: less makes larger groups, which ask the
/// holders of a document's keys for less.
constexpr double kRowWeights[] = {1000, 850, 700, 600, 500, 400, 300, 200};
constexpr double kSpreadShare = 0.08;  // more bytes in all than the cheapest groups, at most

struct Member {
  int server = 0;
  Shard shard;          // its highest
  int64_t room = 0;     // load that it may take, without the shard
  double price = 0;     // price of the bytes that the shard needs
  int64_t holding = 0;  // mean position of the document's tokens that it holds
};

/// The range of keys that goes to one member.
struct Stripe {
  const Member* member;
  Range keys;
  int64_t wanted = 0;  // load
};

struct GroupPrice {
  double keys = kNoGroup;
  double rows = kNoGroup;
};

/// One document: who computes its highest rows, and the groups that they could form.
struct Division {
  int64_t document = 0;
  std::vector<Member> members;                  // highest rows first
  std::vector<std::vector<GroupPrice>> prices;  // [first member][members - 2]
  std::vector<std::vector<size_t>> levels;      // [level] sizes of the groups, in order
  size_t level = 0;                             // in use
};

class Grouping {
 public:
  Grouping(Assignment& state, const PlanRequest& request)
      : request_(request), state_(state), bound_(load_bounds(request, state.total_load())) {}

  void run() {
    find_divisions();
    for (Division& division : divisions_) {
      set_aside(division);
      price_groups(division);
      find_levels(division);
      form(division);
    }
    if (may_enlarge()) enlarge();
  }

 private:
  /// Documents of which several servers compute rows that end far from the first key.
  void find_divisions() {
    for (const auto& document : request_.nano_batch.documents) {
      const auto homes = state_.homes().of(document.id);
      if (homes.size() < 2) continue;
      Division division;
      division.document = document.id;
      for (const HomeSegment& home : homes) {
        const double rows = static_cast<double>(home.tokens.size()) * request_.shape.row_per_key();
        if (home.tokens.begin == 0 || static_cast<double>(home.tokens.end) < rows) continue;
        auto& members = division.members;
        const auto same = std::ranges::find(members, home.worker, &Member::server);
        if (same != members.end()) members.erase(same);  // homes ascend: this one is higher
        const Range& q = home.tokens;
        const auto index = static_cast<int32_t>(&home - state_.homes().all().data());
        members.push_back({home.worker, state_.whole_context(document.id, q, index)});
      }
      if (division.members.size() < 2) continue;
      std::reverse(division.members.begin(), division.members.end());
      divisions_.push_back(std::move(division));
    }
  }

  /// Takes the members' shards out of the state, so that groups are priced by what is left.
  void set_aside(Division& division) {
    const auto homes = state_.homes().of(division.document);
    for (Member& member : division.members) {
      const auto& shards = state_.shards(member.server);
      const auto index = std::find(shards.begin(), shards.end(), member.shard) - shards.begin();
      state_.shrink(member.server, static_cast<size_t>(index), {});
      member.room = bound_[member.server] - state_.load(member.server);
      const MoveCost cost = state_.to_add(member.server, member.shard);
      const bool fits = state_.within_caps(member.server, cost.received, cost.kept);
      member.price = static_cast<double>(cost.price) * (fits ? 1 : kAboveCaps);
      int64_t tokens = 0;
      int64_t sum = 0;
      for (const HomeSegment& home : homes) {
        if (home.worker != member.server) continue;
        tokens += home.tokens.size();
        sum += home.tokens.size() * ((home.tokens.begin + home.tokens.end) / 2);
      }
      member.holding = sum / tokens;
    }
  }

  void price_groups(Division& division) const {
    const std::span<const Member> members = division.members;
    division.prices.resize(members.size());
    const double least_weight = may_enlarge() ? std::end(kRowWeights)[-1] / 1000 : 1;
    for (size_t first = 0; first < members.size(); ++first) {
      double best = kNoGroup;
      size_t best_count = 2;
      for (size_t count = 2; count <= std::min(kMostMembers, members.size() - first); ++count) {
        const GroupPrice price = group_price(members.subspan(first, count));
        division.prices[first].push_back(price);
        // Savings a member rise to the best size and fall from there.
        const double weighted =
            (price.keys + least_weight * price.rows) / static_cast<double>(count);
        if (weighted < best) {
          best = weighted;
          best_count = count;
        } else if (count > best_count + 2) {
          break;
        }
      }
    }
  }

  void find_levels(Division& division) const {
    for (const double weight : kRowWeights) {
      auto sizes = cheapest_sizes(division, weight);
      if (division.levels.empty() || division.levels.back() != sizes) {
        division.levels.push_back(std::move(sizes));
      }
      if (!may_enlarge()) return;
    }
  }

  /// The sizes of the cheapest groups, in the members' order. A member alone has size 1.
  std::vector<size_t> cheapest_sizes(const Division& division, double row_weight) const {
    const size_t n = division.members.size();
    std::vector<double> lowest(n + 1, 0);  // lowest price of the members from here on
    std::vector<size_t> size(n, 1);
    for (size_t first = n; first-- > 0;) {
      lowest[first] = lowest[first + 1] + division.members[first].price;
      for (size_t i = 0; i < division.prices[first].size(); ++i) {
        const GroupPrice& price = division.prices[first][i];
        const double sum = price.keys + price.rows * row_weight / 1000 + lowest[first + i + 2];
        if (sum >= lowest[first]) continue;
        lowest[first] = sum;
        size[first] = i + 2;
      }
    }
    std::vector<size_t> sizes;
    for (size_t first = 0; first < n; first += size[first]) sizes.push_back(size[first]);
    return sizes;
  }

  /// One a member, lower keys to those that hold lower tokens, cut where each has the load of its
  /// shard or, above its bound, what it may have. Empty where a member's stripe would be.
  std::vector<Stripe> stripes(std::span<const Member> group) const {
    std::vector<Stripe> result;
    int64_t left = 0;
    for (const Member& member : group) {
      const int64_t wanted = std::clamp<int64_t>(member.room, 0, member.shard.load);
      left += member.shard.load - wanted;
      result.push_back({&member, {}, wanted});
    }
    for (Stripe& stripe : result) {
      const int64_t more = std::clamp<int64_t>(stripe.member->room - stripe.wanted, 0, left);
      stripe.wanted += more;
      left -= more;
    }
    std::ranges::sort(result, {}, [](const Stripe& stripe) {
      return std::pair(stripe.member->holding, stripe.member->server);
    });
    const int64_t end = group.front().shard.q.end;
    int64_t begin = 0;
    int64_t wanted = 0;  // by the members so far and not given
    for (Stripe& stripe : result) {
      wanted += stripe.wanted;
      const int64_t beyond =  // the highest cut with no more than `wanted` lies before
          bisect(begin / kBlockTokens + 1, ceil_div(end, kBlockTokens), [&](int64_t block) {
            return load(group, {begin, block * kBlockTokens}) > wanted;
          });
      const int64_t cut = &stripe == &result.back() ? end : (beyond - 1) * kBlockTokens;
      if (cut <= begin) return {};
      stripe.keys = {begin, cut};
      wanted -= load(group, stripe.keys);
      begin = cut;
    }
    return result;
  }

  int64_t load(std::span<const Member> group, const Range& keys) const {
    int64_t sum = 0;
    for (const Member& member : group) sum += state_.task_price()(member.shard.q, keys);
    return sum;
  }

  /// Groups lower what holders send: enlarge() sees to that cap.
  GroupPrice group_price(std::span<const Member> group) const {
    GroupPrice price{0, 0};
    for (const Stripe& stripe : stripes(group)) {
      const int server = stripe.member->server;
      int64_t received = 0;
      int64_t kept = 0;
      const auto book = [&](const Shard& shard, double& sum) {
        const MoveCost cost = state_.to_add(server, shard);
        sum += static_cast<double>(cost.price);
        received += cost.received;
        kept += cost.kept;
      };
      Shard part = group.front().shard;  // its rows see all keys that the others' see
      part.q = {};
      part.kv = stripe.keys;
      book(part, price.keys);
      for (const Member& member : group) {
        part = member.shard;
        part.kv = {};
        if (stripe.keys.begin < part.q.end) book(part, price.rows);
      }
      if (!state_.within_caps(server, received, kept)) return {};
    }
    return price.keys > 0 ? price : GroupPrice{};
  }

  /// visit(server, shard)
  template <typename Visit>
  void visit_tasks(const Division& division, size_t level, const Visit& visit) const {
    std::span<const Member> rest = division.members;
    for (const size_t size : division.levels[level]) {
      const auto group = rest.first(size);
      rest = rest.subspan(size);
      if (size == 1) {
        visit(group[0].server, group[0].shard);
        continue;
      }
      for (const Stripe& stripe : stripes(group)) {
        for (const Member& member : group) {
          const Shard& shard = member.shard;
          const Range kv{stripe.keys.begin, std::min(stripe.keys.end, shard.q.end)};
          if (kv.empty()) continue;
          visit(stripe.member->server, state_.with_keys(shard.document, shard.q, kv, shard.home));
        }
      }
    }
  }

  void form(const Division& division) {
    visit_tasks(division, division.level,
                [this](int server, const Shard& shard) { state_.add(server, shard); });
  }

  void dissolve(const Division& division) {
    visit_tasks(division, division.level, [this](int server, const Shard& shard) {
      const auto& shards = state_.shards(server);
      const auto index = std::find(shards.begin(), shards.end(), shard) - shards.begin();
      state_.shrink(server, static_cast<size_t>(index), {});
    });
  }

  void change_level(Division& division, size_t level) {
    dissolve(division);
    division.level = level;
    form(division);
  }

  /// Step by step the busiest rank's documents to larger groups, the step that takes most off it
  /// per byte first. Without options.spread only until it sends no more than it may.
  void enlarge() {
    const bool spread = request_.options.spread;
    const double budget = spread ? static_cast<double>(state_.price()) * (1 + kSpreadShare)
                                 : std::numeric_limits<double>::infinity();
    for (;;) {
      const int rank = busiest();
      const int64_t before = traffic(rank);
      if (!spread && before <= request_.cluster.max_send_bytes) return;
      const auto price = static_cast<double>(state_.price());
      Division* best = nullptr;
      size_t best_level = 0;
      double best_gain = 0;
      for (Division& division : divisions_) {
        if (!state_.homes().holds(rank, division.document)) continue;
        const size_t now = division.level;
        for (size_t level = now + 1; level < division.levels.size(); ++level) {
          change_level(division, level);
          const auto cost = static_cast<double>(state_.price());
          const double gain =
              static_cast<double>(before - traffic(rank)) / std::max(1.0, cost - price);
          if (most_traffic(division) < before && cost <= budget && gain > best_gain) {
            best = &division;
            best_level = level;
            best_gain = gain;
          }
        }
        if (division.level != now) change_level(division, now);
      }
      if (best == nullptr) return;
      change_level(*best, best_level);
    }
  }

  int busiest() const {
    int rank = 0;
    for (int other = 1; other < state_.num_servers(); ++other) {
      if (traffic(other) > traffic(rank)) rank = other;
    }
    return rank;
  }

  /// Larger groups than the cheapest may be wanted: to spread what ranks send, or to meet a cap.
  bool may_enlarge() const {
    return request_.options.spread || request_.cluster.max_send_bytes > 0;
  }
  int64_t traffic(int rank) const {
    const int64_t sent = state_.send_bytes(rank);
    return request_.options.spread ? std::max(sent, state_.receive_bytes(rank)) : sent;
  }

  /// The most traffic of a rank that a change of the division's groups can touch.
  int64_t most_traffic(const Division& division) const {
    int64_t most = 0;
    for (const HomeSegment& home : state_.homes().of(division.document)) {
      most = std::max(most, traffic(home.worker));
    }
    return most;
  }

  const PlanRequest& request_;
  Assignment& state_;
  const std::vector<int64_t> bound_;
  std::vector<Division> divisions_;
};

}  // namespace

Assignment divide_keys(Assignment state, const PlanRequest& request) {
  if (request.shape.mask.sees_all_before()) Grouping(state, request).run();
  return state;
}

}  // namespace distca
