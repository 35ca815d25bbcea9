#include "distca/plan/key_sub_ranges_groups.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "distca/plan/key_sub_ranges_give.h"

namespace distca {
namespace {

constexpr size_t kMostMembers = 12;

struct Member {
  int server;
  Piece piece;
  int64_t room;    // with the piece gone
  int64_t price;   // of the bytes it fetches for the piece
  int64_t center;  // mean position of the document's tokens that it holds
};

struct Stripe {
  size_t member;
  Range keys;
};

class Grouping {
 public:
  Grouping(Assignment& state, const PlanRequest& request, int64_t row_permille)
      : request_(request),
        price_(request.shape, request.profile.get()),
        row_permille_(row_permille),
        state_(state),
        bound_(load_bounds(state, request)) {}

  void run() {
    const size_t documents = request_.nano_batch.documents.size();
    std::vector<std::vector<int>> servers(documents);
    for (int server = 0; server < state_.num_servers(); ++server) {
      for (const Piece& piece : state_.pieces(server)) {
        auto& list = servers[piece.document];
        if (list.empty() || list.back() != server) list.push_back(server);
      }
    }
    for (size_t document = 0; document < documents; ++document) {
      if (servers[document].size() > 1) divide(static_cast<int64_t>(document), servers[document]);
    }
  }

 private:
  void divide(int64_t document, const std::vector<int>& servers);
  std::optional<std::vector<Stripe>> stripes(size_t first, size_t count) const;
  int64_t load(size_t first, size_t count, const Range& keys) const;
  std::optional<double> group_price(size_t first, size_t count,
                                    const std::vector<Stripe>& stripes) const;
  template <typename Visit>
  void parts(size_t first, size_t count, const Range& keys, const Visit& visit) const;

  const PlanRequest& request_;
  const TaskPrice price_;
  const int64_t row_permille_;
  Assignment& state_;
  const std::vector<int64_t> bound_;
  std::vector<Member> members_;  // of the document at hand, highest rows first
};

int64_t Grouping::load(size_t first, size_t count, const Range& keys) const {
  int64_t sum = 0;
  for (size_t i = first; i < first + count; ++i) sum += price_(members_[i].piece.q, keys);
  return sum;
}

/// visit(piece): the rows of all members with these keys.
template <typename Visit>
void Grouping::parts(size_t first, size_t count, const Range& keys, const Visit& visit) const {
  for (size_t i = first; i < first + count; ++i) {
    const Piece& piece = members_[i].piece;
    const Range kv{keys.begin, std::min(keys.end, piece.q.end)};
    if (kv.empty()) continue;
    visit(state_.with_keys(piece.document, piece.q, kv, piece.home));
  }
}

/// One a member, those that hold the lower tokens of the document with the lower keys; cut where
/// each gets the load of its piece.
std::optional<std::vector<Stripe>> Grouping::stripes(size_t first, size_t count) const {
  std::vector<Stripe> result;
  for (size_t i = first; i < first + count; ++i) result.push_back({i, {}});
  std::stable_sort(result.begin(), result.end(), [this](const Stripe& a, const Stripe& b) {
    return members_[a.member].center < members_[b.member].center;
  });
  const int64_t end = members_[first].piece.q.end;
  int64_t begin = 0;
  int64_t over = 0;  // load that the members so far have too little
  for (size_t i = 0; i + 1 < count; ++i) {
    const Member& member = members_[result[i].member];
    const int64_t wanted = std::min(member.piece.load + over, member.room);
    int64_t low = begin / kBlockTokens;  // the highest cut with no more than `wanted`
    int64_t high = ceil_div(end, kBlockTokens);
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (load(first, count, {begin, middle * kBlockTokens}) <= wanted ? low : high) = middle;
    }
    if (low * kBlockTokens <= begin) return std::nullopt;
    int64_t cut = low * kBlockTokens;
    const int64_t got = load(first, count, {begin, cut});
    over += member.piece.load - got;
    result[i].keys = {begin, cut};
    begin = cut;
  }
  if (begin >= end) return std::nullopt;
  result.back().keys = {begin, end};
  return result;
}

std::optional<double> Grouping::group_price(size_t first, size_t count,
                                            const std::vector<Stripe>& stripes) const {
  const Cluster& cluster = request_.cluster;
  double price = 0;
  for (const Stripe& stripe : stripes) {
    const Member& member = members_[stripe.member];
    int64_t received = 0;
    int64_t kept = 0;
    bool blocked = false;
    bool keys_counted = false;
    parts(first, count, stripe.keys, [&](Piece piece) {
      // The highest rows come first and see most keys: those of the others are among theirs.
      if (!keys_counted) {
        Piece keys = piece;
        keys.q = {};
        const Toll toll = state_.to_add(member.server, keys);
        price += static_cast<double>(toll.price);
        received += toll.received;
        kept += toll.kept;
        blocked = blocked || toll.blocked;
        keys_counted = true;
      }
      piece.kv = {};
      const Toll toll = state_.to_add(member.server, piece);
      price += static_cast<double>(toll.price) * static_cast<double>(row_permille_) / 1000;
      received += toll.received;
      kept += toll.kept;
      blocked = blocked || toll.blocked;
    });
    if (blocked ||
        (cluster.max_receive_bytes > 0 &&
         state_.receive_bytes(member.server) + received > cluster.max_receive_bytes) ||
        (cluster.max_memory_bytes > 0 &&
         state_.memory_bytes(member.server) + kept > cluster.max_memory_bytes)) {
      return std::nullopt;
    }
  }
  return price;
}

void Grouping::divide(int64_t document, const std::vector<int>& servers) {
  members_.clear();
  const int64_t length = request_.nano_batch.documents[document].length;
  for (const int server : servers) {
    const auto pieces = state_.pieces(server, document);
    const Piece top = *std::max_element(
        pieces.begin(), pieces.end(),
        [](const Piece& a, const Piece& b) { return a.q.end < b.q.end; });
    if (top.kv.begin != 0 || top.kv.end != top.q.end || top.load == 0) continue;
    const auto end = static_cast<double>(top.q.end);
    if (end * end < 2.0 * static_cast<double>(top.q.size()) * end) continue;
    members_.push_back({server, top, 0, 0, 0});
  }
  if (members_.size() < 2) return;
  std::sort(members_.begin(), members_.end(),
            [](const Member& a, const Member& b) { return a.piece.q.end > b.piece.q.end; });
  for (Member& member : members_) {
    const auto& all = state_.pieces(member.server);
    const size_t index = std::find(all.begin(), all.end(), member.piece) - all.begin();
    state_.shrink(member.server, index, {});
    member.room = bound_[member.server] - state_.load(member.server);
    member.price = state_.to_add(member.server, member.piece).price;
    int64_t tokens = 0;
    for (const HomeSegment& home : state_.homes()) {  // TODO speed
      if (home.worker != member.server || home.document != document) continue;
      tokens += home.tokens.size();
      member.center += home.tokens.size() * ((home.tokens.begin + home.tokens.end) / 2);
    }
    member.center = tokens > 0 ? member.center / tokens : length;
  }
  // best[i]: the lowest price of the members from i on
  const size_t n = members_.size();
  std::vector<double> best(n + 1, 0);
  std::vector<std::vector<Stripe>> choice(n);
  for (size_t i = n; i-- > 0;) {
    best[i] = best[i + 1] + static_cast<double>(members_[i].price);
    for (size_t count = 2; count <= std::min(kMostMembers, n - i); ++count) {
      auto cut = stripes(i, count);
      if (!cut) continue;
      const auto price = group_price(i, count, *cut);
      if (!price || *price + best[i + count] >= best[i]) continue;
      best[i] = *price + best[i + count];
      choice[i] = std::move(*cut);
    }
  }
  for (size_t i = 0; i < n;) {
    if (choice[i].empty()) {
      state_.add(members_[i].server, members_[i].piece);
      ++i;
      continue;
    }
    const size_t count = choice[i].size();
    for (const Stripe& stripe : choice[i]) {
      parts(i, count, stripe.keys,
            [&](const Piece& piece) { state_.add(members_[stripe.member].server, piece); });
    }
    i += count;
  }
}

}  // namespace

void divide_keys(Assignment& state, const PlanRequest& request, int64_t row_permille) {
  Grouping(state, request, row_permille).run();
}

}  // namespace distca
