#include "bench/copies_count.h"

#include <algorithm>

#include "distca/base/error.h"

namespace distca::bench {
namespace {

/// One flag a token of the nano-batch.
class TokenSet {
 public:
  explicit TokenSet(const NanoBatch& nano_batch) {
    for (const Document& document : nano_batch.documents)
      in_.emplace_back(document.length, static_cast<uint8_t>(0));
  }
  void set(int64_t document, const Range& tokens, uint8_t in) {
    std::fill(in_[document].begin() + tokens.begin, in_[document].begin() + tokens.end, in);
  }
  int64_t count() const {
    int64_t tokens = 0;
    for (const std::vector<uint8_t>& document : in_)
      tokens += std::count(document.begin(), document.end(), static_cast<uint8_t>(1));
    return tokens;
  }

 private:
  std::vector<std::vector<uint8_t>> in_;  // [document][token]
};

}  // namespace

const char* travel_name(Travel travel) {
  static constexpr std::array<const char*, kNumTravels> kNames = {
      "Q, K, V", "O, LSE", "Q, K, V again", "dO, LSE, delta", "dQ, dK, dV"};
  return kNames.at(static_cast<size_t>(travel));
}

Travel travel_of(const Op& op) {
  const bool forward = op.pass == Pass::kForward;
  switch (op.kind) {
    case OpKind::kDispatch:
      return forward ? Travel::kQkv : Travel::kDO;
    case OpKind::kRedispatch:
      return Travel::kQkvAgain;
    case OpKind::kCoreAttention:
    case OpKind::kCombine:
      return forward ? Travel::kO : Travel::kGradients;
    default:
      DISTCA_CHECK(false, "{} exchanges nothing", describe(op));
  }
}

AwayTokens away_tokens(const Plan& plan) {
  AwayTokens away;
  for (int server = 0; server < plan.cluster.num_servers(); ++server) {
    TokenSet queries(plan.nano_batch), keys(plan.nano_batch);
    for (const Task& task : plan.tasks) {
      if (task.server != server) continue;
      queries.set(task.document, task.q, 1);
      keys.set(task.document, {task.kv.begin, std::min(task.kv.end, task.q.end)}, 1);
    }
    if (server < plan.layout.num_workers()) {
      for (const Segment& segment : plan.layout.workers[server]) {
        queries.set(segment.document, segment.tokens, 0);
        keys.set(segment.document, segment.tokens, 0);
      }
    }
    away.queries += queries.count();
    away.keys += keys.count();
  }
  return away;
}

void add_needed(const Plan& plan, const ExchangeTypes& types, bool redispatched, Travels* travels) {
  const auto [queries, keys] = away_tokens(plan);
  const AttentionShape& shape = plan.shape;
  const int64_t q = shape.num_heads * shape.head_dim_qk;
  const int64_t kv = shape.num_kv_heads * (shape.head_dim_qk + shape.head_dim_v);
  const int64_t o = shape.num_heads * shape.head_dim_v;
  const int64_t compute = element_bytes(types.compute);
  const int64_t per_row = shape.num_heads * element_bytes(types.accumulator);  // LSE, or delta
  const auto add = [travels](Travel travel, int64_t bytes) {
    (*travels)[static_cast<size_t>(travel)][kNeeded] += bytes;
  };
  const int64_t qkv = (queries * q + keys * kv) * compute;
  add(Travel::kQkv, qkv);
  add(Travel::kO, queries * (o * compute + per_row));
  if (redispatched) add(Travel::kQkvAgain, qkv);
  add(Travel::kDO, queries * (o * compute + 2 * per_row));
  add(Travel::kGradients, (queries * q + keys * kv) * element_bytes(types.gradient));
}

}  // namespace distca::bench
