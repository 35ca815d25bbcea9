#include "distca/plan/balanced/assignment.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace distca {

Assignment::Assignment(const PlanRequest& request, const Layout& layout)
    : cluster_(request.cluster),
      mask_(request.shape.mask),
      q_bytes_(request.shape.q_token_bytes()),
      o_bytes_(request.shape.o_token_bytes()),
      kv_bytes_(request.shape.kv_token_bytes()),
      task_price_(request.shape, request.profile.get()),
      price_inside_(byte_price(request.cluster.inside)),
      price_between_(byte_price(request.cluster.between)),
      homes_(layout, request.nano_batch.documents.size()),
      shards_(request.cluster.capacity.size()) {
  const std::vector<int64_t> none(shards_.size(), 0);
  now_ = {.load = none, .send = none, .receive = none, .memory = none};
  for (int worker = 0; worker < layout.num_workers(); ++worker) {
    now_.memory[worker] = layout.num_tokens(worker) * cluster_.memory.token_bytes;
  }
  for (size_t i = 0; i < homes_.all().size(); ++i) {
    const HomeSegment& home = homes_.all()[i];
    add(home.worker, whole_context(home.document, home.tokens, static_cast<int32_t>(i)));
  }
}

std::span<const Shard> Assignment::shards(int server, int64_t document) const {
  const auto& all = shards_[server];
  const auto begin = std::ranges::lower_bound(all, document, {}, &Shard::document);
  auto end = begin;
  while (end != all.end() && end->document == document) ++end;
  return {begin, end};
}

Shard Assignment::whole_context(int64_t document, const Range& q, int32_t home) const {
  return with_keys(document, q, mask_.keys(q), home);
}

Shard Assignment::with_keys(int64_t document, const Range& q, const Range& kv, int32_t home) const {
  return {.document = document, .q = q, .kv = kv, .home = home, .load = task_price_(q, kv)};
}

ShardRemainder Assignment::without(const Shard& shard, const Range& q, const Range& kv) const {
  ShardRemainder remainder;
  const auto keep = [&](const Range& rows, const Range& keys) {
    if (rows.empty() || keys.empty()) return;
    const Range seen = intersect(keys, mask_.keys(rows));
    if (seen.empty()) return;
    const Shard part = with_keys(shard.document, rows, seen, shard.home);
    // Visible keys are whole blocks: a window may begin after the last of those seen.
    if (part.load > 0) remainder.shards[remainder.size++] = part;
  };
  keep({shard.q.begin, q.begin}, shard.kv);
  keep({q.end, shard.q.end}, shard.kv);
  keep(q, {shard.kv.begin, kv.begin});
  keep(q, {kv.end, shard.kv.end});
  return remainder;
}

int64_t Assignment::total_load() const {
  return std::accumulate(now_.load.begin(), now_.load.end(), int64_t{0});
}

int64_t Assignment::keys_end(int server, int64_t document) const {
  int64_t end = 0;
  for (const Shard& shard : shards(server, document)) end = std::max(end, shard.kv.end);
  return end;
}

/// visit(part): the parts of `tokens` that none of the others reads, from others.remainder[next] on
/// and then others.run. What others read mostly cuts off an end; only within it does it leave two
/// parts.
template <typename Visit>
void Assignment::unread(Range tokens, Range Shard::*side, const Others& others, size_t next,
                        const Visit& visit) const {
  const size_t num_remaining = others.remainder.size(), count = num_remaining + others.run.size();
  for (; next < count && !tokens.empty(); ++next) {
    const Shard& other =
        next < num_remaining ? others.remainder[next] : others.run[next - num_remaining];
    const Range& read = other.*side;
    if (read.end <= tokens.begin || read.begin >= tokens.end || &other == others.skip) continue;
    if (read.begin <= tokens.begin) {
      tokens.begin = read.end;
    } else {
      if (read.end < tokens.end) unread({read.end, tokens.end}, side, others, next + 1, visit);
      tokens.end = read.begin;
    }
  }
  if (!tokens.empty()) visit(tokens);
}

template <typename Visit>
void Assignment::fetched(int server, const Shard& shard, const Others& others,
                         const Visit& visit) const {
  const MemoryPrice& memory = cluster_.memory;
  const auto fetch = [&](int home, int64_t tokens, bool rows) {
    const bool inside = cluster_.node(home) == cluster_.node(server);
    const int64_t there = tokens * (rows ? q_bytes_ : kv_bytes_);
    const int64_t back = rows ? tokens * o_bytes_ : 0;
    visit(home,
          MoveCost{.price = (there + back) * (inside ? price_inside_ : price_between_),
                   .received = there,
                   .kept = tokens * (rows ? memory.kept_query_bytes : memory.kept_key_bytes)});
  };
  const int home = home_of(shard);
  if (home != server) {
    unread(shard.q, &Shard::q, others, 0,
           [&](const Range& rows) { fetch(home, rows.size(), true); });
  }
  unread(shard.kv, &Shard::kv, others, 0, [&](const Range& keys) {
    homes_.for_each_part(shard.document, keys, [&](const HomeSegment& held, const Range& part) {
      if (held.worker != server) fetch(held.worker, part.size(), false);
    });
  });
}

MoveCost Assignment::move_cost(int server, const Shard& shard, const Others& others) const {
  MoveCost result;
  std::vector<std::pair<int, int64_t>> sends;  // by home; filled only where a cap asks for it
  fetched(server, shard, others, [&](int home, const MoveCost& part) {
    result.price += part.price;
    result.received += part.received;
    result.kept += part.kept;
    if (cluster_.max_send_bytes == 0) return;
    auto sent = std::ranges::find(sends, home, &std::pair<int, int64_t>::first);
    if (sent == sends.end()) sent = sends.insert(sent, {home, send_bytes(home)});
    sent->second += part.received;
    if (sent->second > cluster_.max_send_bytes) result.blocked = true;
  });
  return result;
}

MoveCost Assignment::to_add(int server, const Shard& shard, std::span<const Shard> there) const {
  return move_cost(server, shard, {there, nullptr, {}});
}

MoveCost Assignment::to_shrink(int server, size_t index, std::span<const Shard> remainder) const {
  const Shard& shard = shards_[server][index];
  return move_cost(server, shard, {shards(server, shard.document), &shard, remainder});
}

void Assignment::book(int server, const Shard& shard, const Others& others, int64_t sign) {
  fetched(server, shard, others, [&](int home, const MoveCost& part) {
    now_.price += sign * part.price;
    now_.send[home] += sign * part.received;
    now_.receive[server] += sign * part.received;
    now_.memory[server] += sign * part.kept;
  });
}

void Assignment::begin_trial() {
  in_trial_ = true;
  touched_.clear();
  shards_before_.clear();
  before_ = now_;
}

void Assignment::touch(int server) {
  if (!in_trial_ || std::find(touched_.begin(), touched_.end(), server) != touched_.end()) return;
  touched_.push_back(server);
  shards_before_.push_back(shards_[server]);
}

void Assignment::undo_trial() {
  for (size_t i = 0; i < touched_.size(); ++i) shards_[touched_[i]] = std::move(shards_before_[i]);
  now_ = std::move(before_);
  in_trial_ = false;
}

void Assignment::add(int server, const Shard& shard) {
  touch(server);
  book(server, shard, {shards(server, shard.document), nullptr, {}}, 1);
  insert(server, shard);
}

void Assignment::shrink(int server, size_t index, std::span<const Shard> remainder) {
  touch(server);
  auto& shards_here = shards_[server];
  const Shard shard = shards_here[index];
  book(server, shard, {shards(server, shard.document), &shards_here[index], remainder}, -1);
  now_.load[server] -= shard.load;
  shards_here.erase(shards_here.begin() + static_cast<std::ptrdiff_t>(index));
  for (const Shard& part : remainder) insert(server, part);
}

/// Can one task compute both?
bool Assignment::one_task(const Shard& lower, const Shard& upper) const {
  if (lower.home != upper.home || lower.q.end != upper.q.begin) return false;
  return lower.kv == upper.kv ||
         (lower.kv == mask_.keys(lower.q) && upper.kv == mask_.keys(upper.q));
}

void Assignment::insert(int server, const Shard& shard) {
  auto& all = shards_[server];
  Shard merged = shard;
  for (bool found = true; found;) {
    found = false;
    const auto run = shards(server, shard.document);
    for (size_t i = run.data() - all.data(); i < run.data() - all.data() + run.size(); ++i) {
      const Shard other = all[i];
      const bool below = one_task(other, merged);
      if (!below && !one_task(merged, other)) continue;
      const Range q{std::min(other.q.begin, merged.q.begin), std::max(other.q.end, merged.q.end)};
      merged = other.kv == merged.kv ? with_keys(other.document, q, other.kv, other.home)
                                     : whole_context(other.document, q, other.home);
      now_.load[server] -= other.load;
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
      found = true;
      break;
    }
  }
  now_.load[server] += merged.load;
  const auto order = [](const Shard& of) {
    return std::tuple(of.document, of.q.begin, of.kv.begin, of.q.end);
  };
  all.insert(std::ranges::lower_bound(all, order(merged), {}, order), merged);
}

std::vector<Task> Assignment::tasks() const {
  std::vector<Task> tasks;
  for (int server = 0; server < num_servers(); ++server) {
    for (const Shard& shard : shards_[server]) {
      tasks.push_back({.document = shard.document, .q = shard.q, .kv = shard.kv, .server = server});
    }
  }
  return tasks;
}

}  // namespace distca
