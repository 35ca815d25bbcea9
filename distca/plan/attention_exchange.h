#pragma once
// One exchange of core attention: what one rank sends, receives and computes under one plan, with
// its messages laid out. A plan's layers go through its exchange one after another; whoever builds,
// plays, checks or prices them reads the same value. Paper 4.1.
// Plain value, not changed once it is made; any thread.

#include <array>
#include <cstdint>
#include <vector>

#include "distca/base/scalar_type.h"
#include "distca/cost/attention_cost.h"
#include "distca/plan/exchange.h"

namespace distca {

/// Types of what travels and is summed.
struct ExchangeTypes {
  ScalarType compute = ScalarType::kFloat32;      // of Q, K, V, O, dO
  ScalarType accumulator = ScalarType::kFloat32;  // of LSE, delta and sums of gradients
  ScalarType gradient = ScalarType::kFloat32;     // in which dQ, dK, dV travel
  bool operator==(const ExchangeTypes&) const = default;
};
/// Sums are in fp32, in fp64 for fp64. `wide_gradients`: dQ, dK, dV travel in the type of the sums.
ExchangeTypes exchange_types(ScalarType compute, bool wide_gradients);
/// The type of so many bytes: 2 (bf16), 4 or 8; anything else is a CHECK.
ScalarType compute_type(int64_t element_bytes);

/// What messages hold: their parts lie one after another in the order given here.
enum class Content : uint8_t {
  kQkv,          // Q, K, V; from a home to its servers
  kO,            // O, LSE; from a server to the homes
  kDO,           // dO, LSE, delta; from a home to its servers
  kGradient,     // dQ, dK, dV; from a server to the homes
  kAccumulator,  // dQ, dK, dV as a server sums them; where their type is the one in which they
                 // travel, these are the messages themselves
};
inline constexpr int kNumContents = 5;
/// Whether it goes from a server to the homes.
constexpr bool goes_home(Content content) {
  return content == Content::kO || content == Content::kGradient;
}

/// [rows, heads, dim] of one type inside a message.
struct MessagePart {
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  ScalarType type = ScalarType::kFloat32;
  int64_t bytes() const { return rows * heads * dim * element_bytes(type); }
};
/// The parts of what travels with one peer. The third of O and LSE is empty, and so are all of
/// O and dO where the peer gives or gets keys only.
std::array<MessagePart, 3> message_parts(Content content, const PeerTransfer& transfer,
                                         const AttentionShape& shape, const ExchangeTypes& types);
int64_t message_bytes(Content content, const PeerTransfer& transfer, const AttentionShape& shape,
                      const ExchangeTypes& types);

/// One message: bytes [offset, offset + bytes) of the buffer that it travels from or into.
struct PeerMessage {
  int peer = 0;
  int64_t offset = 0;  // a multiple of kMessageAlignment
  int64_t bytes = 0;   // > 0
  bool operator==(const PeerMessage&) const = default;
};
inline constexpr int64_t kMessageAlignment = 64;

/// Messages that share a buffer, one after another, each at the next multiple of kMessageAlignment.
struct MessageList {
  std::vector<PeerMessage> messages;  // ascending peer, each peer at most once
  int64_t bytes = 0;                  // of all messages
  int64_t buffer_bytes = 0;           // that they take

  bool empty() const { return messages.empty(); }
  /// After those of lower peers; of no bytes: none.
  void add(int peer, int64_t message_bytes);
  /// Null: none.
  const PeerMessage* with(int peer) const;
};

/// Which of a rank's tasks are computed together. Tasks at home read nothing that was received and
/// write nothing that is returned: they run while messages are under way.
enum class TaskSet : uint8_t {
  kAll,
  kHomeFirst,  // about half of the work at home
  kAway,       // all that needs what was received, or is returned
  kHomeRest,
};
inline constexpr int kNumTaskSets = 4;

struct AttentionExchange {
  RankExchange rows;  // peers, rows, tasks and merges
  AttentionShape shape;
  ExchangeTypes types;
  // [Content] with whom this rank exchanges as a home, and as a server.
  std::array<MessageList, kNumContents> with_servers, with_homes;
  // [TaskSet] indices into rows.tasks, ascending, and their (query, key) pairs. The three partial
  // sets are disjoint and together kAll.
  std::array<std::vector<int32_t>, kNumTaskSets> tasks;
  std::array<int64_t, kNumTaskSets> pairs{};

  const MessageList& servers(Content content) const {
    return with_servers[static_cast<size_t>(content)];
  }
  const MessageList& homes(Content content) const {
    return with_homes[static_cast<size_t>(content)];
  }
  const std::vector<int32_t>& tasks_of(TaskSet set) const {
    return tasks[static_cast<size_t>(set)];
  }
  int64_t pairs_of(TaskSet set) const { return pairs[static_cast<size_t>(set)]; }
  // Messages of a content that this rank sends, and that it receives.
  const MessageList& sent(Content content) const {
    return goes_home(content) ? homes(content) : servers(content);
  }
  const MessageList& received(Content content) const {
    return goes_home(content) ? servers(content) : homes(content);
  }
  /// The sets in which tasks are computed where messages travel under those at home: only sets with
  /// tasks, but at least one; kAll alone where there is nothing to divide or to hide.
  std::vector<TaskSet> partial_sets() const;
  /// Whether gradients are summed in another buffer than the one they travel from.
  bool converts_gradients() const { return types.gradient != types.accumulator; }
};

/// Lays out the messages of `rows` and divides its tasks. Time: proportional to its output.
AttentionExchange make_attention_exchange(RankExchange rows, const AttentionShape& shape,
                                          const ExchangeTypes& types);

/// Whether the task neither needs what was received nor is returned.
bool is_home(const ServerTask& task);

}  // namespace distca
