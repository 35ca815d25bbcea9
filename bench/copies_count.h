#pragma once
// Bytes of an exchange: what a plan makes travel, counted from its tasks alone, beside what the
// runtime counted. Plain values, any thread.

#include <array>
#include <cstdint>
#include <vector>

#include "distca/plan/plan.h"
#include "distca/program/overlap.h"

namespace distca::bench {

/// Messages of one layer, over all ranks and nano-batches, in the order in which they are sent.
enum class Travel : uint8_t { kQkv, kO, kQkvAgain, kDO, kGradients };
inline constexpr int kNumTravels = 5;
const char* travel_name(Travel travel);
/// Of an operation that exchanges, or of the core attention that fills a message: where its bytes
/// count.
Travel travel_of(const Op& op);

enum Count : size_t {
  kNeeded,  // bytes of tokens away from home, each once a server
  kSent,
  kReceived,
  kPacked,    // copied on the sender's side
  kUnpacked,  // copied or added on the receiver's side
  kMerged,    // O and LSE of split-KV, written again
  kMessages,  // their number
  kNumCounts
};
inline constexpr std::array<const char*, kNumCounts> kCountNames = {
    "needed", "sent", "received", "packed", "unpacked", "merged", "messages"};
using TravelBytes = std::array<int64_t, kNumCounts>;
using Travels = std::array<TravelBytes, kNumTravels>;

/// Tokens that a plan's tasks read away from their homes.
struct AwayTokens {
  int64_t queries = 0;
  int64_t keys = 0;  // that some query of the task may see
  bool operator==(const AwayTokens&) const = default;
};
AwayTokens away_tokens(const Plan& plan);

/// Fills in kNeeded. `redispatched`: keys travel again for backward.
void add_needed(const Plan& plan, const ExchangeTypes& types, bool redispatched, Travels* travels);

}  // namespace distca::bench
