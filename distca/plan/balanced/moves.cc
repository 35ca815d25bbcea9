#include "distca/plan/balanced/moves.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "distca/plan/balanced/caps.h"

namespace distca {
namespace {

/// Keys of the longest document: what it takes to serve any one shard.
int64_t fair_receive(const PlanRequest& request) {
  int64_t longest = 0;
  for (const Document& document : request.nano_batch.documents) {
    longest = std::max(longest, document.length);
  }
  return longest * request.shape.kv_token_bytes();
}

double least_byte_price(const PlanRequest& request) {
  const Cluster& cluster = request.cluster;
  return static_cast<double>(std::min(byte_price(cluster.inside), byte_price(cluster.between)));
}

/// The last r of e rows have about r (e - r / 2) pairs. Where r rows and e keys travel, and a row
/// costs `a` times as much as a key, a pair costs least at the share x = r / e that solves
/// a x^2 / 2 + x = 1. This is e times its price then, a little less for rounding.
double least_pair_price(const PlanRequest& request) {
  const AttentionShape& shape = request.shape;
  const auto rows = static_cast<double>(shape.q_token_bytes() + shape.o_token_bytes());
  const auto keys = static_cast<double>(shape.kv_token_bytes());
  const double a = rows / keys;
  const double x = std::min(1.0, (std::sqrt(1 + 2 * a) - 1) / a);
  return least_byte_price(request) * (x * rows + keys) / (x * (1 - x / 2)) * (1 - 1e-9);
}

}  // namespace

Mover::Mover(const PlanRequest& request, Assignment& state)
    : BestFirst(request, state),
      rows_(request.shape, state.task_price()),
      fair_receive_(fair_receive(request)),
      least_row_price_(
          least_byte_price(request) *
          static_cast<double>(request.shape.q_token_bytes() + request.shape.o_token_bytes())),
      least_pair_price_(least_pair_price(request)),
      small_shard_load_(state.total_load() / state.num_servers() / 100),
      noted_(state.num_servers()) {
  for (int server = 0; server < state.num_servers(); ++server) note_load(server);
}

void Mover::note_load(int server) {
  const auto before = [this](int a, int b) {
    return noted_[a] != noted_[b] ? noted_[a] > noted_[b] : a < b;
  };
  std::erase(by_room_, server);
  noted_[server] = room(server);
  by_room_.insert(std::ranges::lower_bound(by_room_, server, before), server);
}

double Mover::score(double price, int64_t useful) const {
  const auto load = static_cast<double>(useful);
  double eighth = 1;  // load^(larger_first / 8)
  const double root = larger_first_ > 0 ? std::sqrt(std::sqrt(std::sqrt(load))) : 1;
  for (int i = 0; i < larger_first_; ++i) eighth *= root;
  return price / (load * eighth);
}

void Mover::look_at(int donor, size_t index) {
  donor_ = donor;
  index_ = index;
  offers_.clear();
}

Mover::Offer& Mover::offer_of(const Range& q) {
  for (Offer& offer : offers_) {
    if (offer.part.q == q) return offer;
  }
  const Shard& from = state_.shards(donor_)[index_];
  Offer offer{.part = from};
  if (q != from.q) offer.part = state_.whole_context(from.document, q, from.home);
  const ShardRemainder remainder = state_.without(from, q, offer.part.kv);
  offer.saved = state_.to_shrink(donor_, index_, remainder.span()).price;
  return offers_.emplace_back(std::move(offer));
}

/// The cost of what a receiver would have to fetch. Strangers fetch all of it, over like links.
MoveCost Mover::cost_for(int receiver, Offer& offer) const {
  const int64_t document = offer.part.document;
  const std::span<const Shard> there = state_.shards(receiver, document);
  if (!there.empty() || state_.is_near(receiver, document))
    return state_.to_add(receiver, offer.part, there);
  if (!offer.of_stranger) offer.of_stranger = state_.to_add(receiver, offer.part, there);
  return *offer.of_stranger;
}

std::optional<Move> Mover::priced(int receiver, const Range& q) {
  Offer& offer = offer_of(q);
  const Shard& part = offer.part;
  const int64_t saved = offer.saved;
  const MoveCost there = cost_for(receiver, offer);
  if (there.blocked || !state_.within_caps(receiver, there.received, there.kept)) {
    return std::nullopt;
  }
  Move move{.donor = donor_, .index = index_, .part = part, .receiver = receiver};
  move.useful = std::min(part.load, excess(donor_));
  move.price = there.price - saved;
  // Bytes beyond the fair limit count twice: several receivers rather than one.
  const int64_t received = state_.receive_bytes(receiver) + there.received;
  const int64_t beyond = std::min(received - fair_receive_, there.received);
  auto price = static_cast<double>(move.price);
  if (beyond > 0) {
    price += static_cast<double>(there.price) * static_cast<double>(beyond) /
             static_cast<double>(there.received);
  }
  move.score = score(price, move.useful);
  return move;
}

/// Moves with equal scores have no order without even_receives.
bool Mover::goes_before(const Move& a, const Move& b) const {
  return a.score < b.score || (request_.even_receives && a.score == b.score &&
                               state_.receive_bytes(a.receiver) < state_.receive_bytes(b.receiver));
}

void Mover::consider(int receiver, std::optional<Move>& best) {
  const Shard& shard = state_.shards(donor_)[index_];
  const LoadWish wish{std::min(excess(donor_), room(receiver)), room(receiver)};
  const auto offer = [&](const Range& q) {
    if (q.empty()) return;
    const auto move = priced(receiver, q);
    if (move && (!best || goes_before(*move, *best))) best = move;
  };
  const auto offer_ending_at = [&](int64_t end) { offer(rows_.ending_at(end, shard.q, wish)); };
  if (shard.load <= wish.most) offer(shard.q);
  if (shard.load <= wish.wanted) return;
  offer_ending_at(shard.q.end);
  offer(rows_.from_begin(shard.q, wish));
  offer_ending_at(rows_.cheapest_end(shard.q, shard.load, wish.wanted));
  const int64_t held = round_down(state_.keys_end(receiver, shard.document), kBlockTokens);
  if (held > shard.q.begin && held < shard.q.end) offer_ending_at(held);
}

std::vector<Range> Mover::rows_of_excess(int donor, const Shard& shard) const {
  if (shard.load <= excess(donor)) return {shard.q};
  const LoadWish wish{excess(donor), shard.load};
  std::vector<Range> result{rows_.ending_at(shard.q.end, shard.q, wish),
                            rows_.from_begin(shard.q, wish)};
  std::erase_if(result, [](const Range& rows) { return rows.empty(); });
  return result;
}

/// No part of the shard can have a lower score: a document's head that the donor holds, so that
/// every row has to travel and no key is saved. Where nobody else knows the document, its keys have
/// to travel, too. 0 where that is not so simple.
double Mover::least_score(int donor, const Shard& shard) const {
  if (!state_.task_price().in_pairs() || shard.q.begin > 0) return 0;
  if (state_.home_of(shard) != donor) return 0;
  const int64_t load = std::min(shard.load, excess(donor));
  const auto end = static_cast<double>(shard.q.end);
  const bool alone = request_.shape.mask.sees_all_before() && knowing(shard.document).size() == 1;
  const double rows = static_cast<double>(load) / (alone ? end + 1 : end);
  return score(rows * (alone ? least_pair_price_ : least_row_price_), load);
}

std::optional<Move> Mover::best_move(int donor) {
  const size_t count = state_.shards(donor).size();
  outlook_.clear();
  for (size_t index = 0; index < count; ++index) {
    outlook_.emplace_back(least_score(donor, state_.shards(donor)[index]), index);
  }
  std::sort(outlook_.begin(), outlook_.end());
  std::optional<Move> best;
  for (const auto& [least, index] : outlook_) {
    if (best && least >= best->score) break;
    look_at(donor, index);
    std::optional<Move> here;
    for (const int receiver : likely_receivers(donor, state_.shards(donor)[index], kStrangers)) {
      consider(receiver, here);
    }
    if (!here) continue;
    // Among equal moves, the one of the shard that stands first is taken.
    const bool first = !best || (!goes_before(*best, *here) && here->index < best->index);
    if (first || goes_before(*here, *best)) best = here;
  }
  if (best || !has_caps(request_.cluster)) return best;
  for (const int receiver : by_room()) {  // caps forbid the likely ones
    if (room(receiver) <= 0) break;
    for (size_t index = 0; index < count; ++index) {
      look_at(donor, index);
      consider(receiver, best);
    }
  }
  return best;
}

void Mover::give(int from, size_t index, const Range& q, int to) {
  const Shard& shard = state_.shards(from)[index];
  reassign(from, index, state_.whole_context(shard.document, q, shard.home), to);
}

void Mover::undo_trial() {
  state_.undo_trial();
  for (const int server : state_.touched()) note_load(server);
}

void Mover::balance(int larger_first) {
  larger_first_ = larger_first;
  give_best_first();
}

void Mover::look_again(std::vector<Donor>& donors, const Move& made, int64_t document) {
  size_t looked_at = 0;
  for (Donor& donor : donors) {
    const bool shares = !state_.shards(donor.server, document).empty();
    if (donor.server == made.donor || (shares && ++looked_at <= kSharing)) {
      donor = {donor.server, false, best_move(donor.server)};
    } else if (shares || (donor.best && donor.best->receiver == made.receiver)) {
      donor.stale = true;
    }
  }
}

void Mover::shed_blocks() {
  double lowest = std::numeric_limits<double>::infinity();
  int idle = 0;  // moves since the highest load fell
  for (int donor = fullest(); donor >= 0; donor = fullest()) {
    idle = ratio(donor) < lowest ? 0 : idle + 1;
    lowest = std::min(lowest, ratio(donor));
    if (idle > state_.num_servers() || !shed_one_block(donor)) return;
  }
}

bool Mover::shed_one_block(int donor) {
  std::optional<Move> best;
  double lowest = ratio(donor);
  for (size_t index = 0; index < state_.shards(donor).size(); ++index) {
    const Range q = state_.shards(donor)[index].q;
    look_at(donor, index);
    for (const Range& block : end_blocks(q)) {
      const int receiver = lightest_with(state_.task_price().of_rows(block), donor);
      if (receiver < 0) return false;
      const auto move = priced(receiver, block);
      if (!move) continue;
      const double after = std::max(ratio(donor, state_.load(donor) - move->part.load),
                                    ratio(receiver, state_.load(receiver) + move->part.load));
      if (after < lowest || (best && after == lowest && move->price < best->price)) {
        best = move;
        lowest = after;
      }
    }
  }
  if (best) apply(*best);
  return best.has_value();
}

int64_t Mover::price() const {
  int64_t price = state_.price();
  for (int server = 0; server < state_.num_servers(); ++server) {
    const int64_t beyond = state_.receive_bytes(server) - fair_receive_;
    if (beyond > 0) price += beyond * byte_price(request_.cluster.between);
  }
  return price;
}

}  // namespace distca
