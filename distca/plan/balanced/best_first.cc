#include "distca/plan/balanced/best_first.h"

#include <algorithm>

#include "distca/plan/bounds.h"

namespace distca {

BestFirst::BestFirst(const PlanRequest& request, Assignment& state)
    : request_(request),
      state_(state),
      bound_(load_bounds(request, state.total_load())),
      know_(request.nano_batch.documents.size()),
      listed_(state.num_servers(), 0) {
  for (const HomeSegment& home : state_.homes().all()) note_knowing(home.document, home.worker);
  for (int server = 0; server < state_.num_servers(); ++server) {
    for (const Shard& shard : state_.shards(server)) note_knowing(shard.document, server);
  }
}

void BestFirst::note_knowing(int64_t document, int server) {
  std::vector<int>& know = know_[document];
  if (std::ranges::find(know, server) == know.end()) know.push_back(server);
}

void BestFirst::give_best_first() {
  std::vector<Donor> donors;
  for (int server = 0; server < state_.num_servers(); ++server) {
    if (excess(server) > 0) donors.push_back({server, false, best_move(server)});
  }
  for (;;) {
    Donor* next = nullptr;
    for (Donor& donor : donors) {
      if (donor.best && (!next || better(*donor.best, *next->best))) next = &donor;
    }
    if (!next) break;
    if (next->stale) {
      *next = {next->server, false, best_move(next->server)};
      continue;
    }
    const Move move = *next->best;
    apply(move);
    std::erase_if(donors, [this](const Donor& donor) { return excess(donor.server) <= 0; });
    look_again(donors, move, move.part.document);
  }
}

void BestFirst::reassign(int from, size_t index, const Shard& part, int to) {
  const ShardRemainder remainder = state_.without(state_.shards(from)[index], part.q, part.kv);
  state_.shrink(from, index, remainder.span());
  state_.add(to, part);
  for (const int server : {from, to}) note_load(server);
  note_knowing(part.document, to);
}

const std::vector<int>& BestFirst::likely_receivers(int donor, const Shard& shard,
                                                    size_t strangers) {
  receivers_.clear();
  listed_[donor] = ++list_;
  const std::vector<int>& order = by_room();
  const auto add = [&](int server) {
    if (listed_[server] == list_) return;
    listed_[server] = list_;
    if (may_take(server, donor)) receivers_.push_back(server);
  };
  for (const int64_t load : {excess(donor), shard.load}) {
    const auto less = std::partition_point(order.begin(), order.end(),
                                           [&](int server) { return room(server) >= load; });
    if (less != order.begin()) add(less[-1]);
  }
  for (size_t i = 0; i < std::min(strangers, order.size()); ++i) add(order[i]);
  // The last ones come first: they took some of the document, so they read keys.
  const auto& know = know_[shard.document];
  const size_t enough = receivers_.size() + kKnowing;
  for (size_t i = know.size(); i > 0 && receivers_.size() < enough; --i) add(know[i - 1]);
  return receivers_;
}

double BestFirst::ratio(int server, int64_t load) const {
  const auto units = static_cast<double>(load);
  const int64_t capacity = request_.cluster.capacity[server];
  return capacity > 0 ? units / static_cast<double>(capacity) : units * 1e12;
}

int BestFirst::fullest() const {
  int fullest = -1;
  for (int server = 0; server < state_.num_servers(); ++server) {
    if (excess(server) > 0 && (fullest < 0 || ratio(server) > ratio(fullest))) fullest = server;
  }
  return fullest;
}

int BestFirst::lightest_with(int64_t more, int donor) const {
  int lightest = -1;
  for (int server = 0; server < state_.num_servers(); ++server) {
    if (server == donor || request_.cluster.capacity[server] == 0) continue;
    if (lightest < 0 ||
        ratio(server, state_.load(server) + more) < ratio(lightest, state_.load(lightest) + more)) {
      lightest = server;
    }
  }
  return lightest;
}

}  // namespace distca
