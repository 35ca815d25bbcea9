#pragma once
// One exchange of core attention: what one rank sends, receives and computes under one plan, with
// the places of its messages in their buffers. The layers of a plan go through its exchange one
// after another. Whoever builds, plays, checks or prices the exchange of a layer reads this same
// value (paper 4.1).
//
//   const AttentionExchange exchange = make_attention_exchange(
//       PlanIndex(plan).exchange(rank), plan.shape,
//       exchange_types(ScalarType::kBFloat16, /*wide_gradients=*/false));
//   const int64_t sent = exchange.sent(Content::kQkv).bytes;
//
// An exchange is a plain value, which is not changed once it is made. Any thread may read it.

#include <array>
#include <cstdint>
#include <vector>

#include "distca/base/scalar_type.h"
#include "distca/cost/attention_shape.h"
#include "distca/plan/exchange.h"

namespace distca {

/// The number types of what travels and of what is summed.
struct ExchangeTypes {
  ScalarType compute = ScalarType::kFloat32;      // type of Q, K, V, O, dO
  ScalarType accumulator = ScalarType::kFloat32;  // type of LSE, delta, sums of gradients
  ScalarType gradient = ScalarType::kFloat32;     // type in which dQ, dK, dV travel
  bool operator==(const ExchangeTypes&) const = default;
};
/// The types for a model that computes in `compute`. Sums are in fp32, or in fp64 where `compute`
/// is fp64. With `wide_gradients`, dQ, dK, dV travel in the type of the sums, otherwise in
/// `compute`.
ExchangeTypes exchange_types(ScalarType compute, bool wide_gradients);

/// The content of a message. Its parts lie one after another in the order given here.
enum class Content : uint8_t {
  kQkv,       // Q, K, V; from a home to its servers
  kO,         // O, LSE; from a server to the homes
  kDO,        // dO, LSE, delta; from a home to its servers
  kGradient,  // dQ, dK, dV; from a server to the homes
  /// dQ, dK, dV in the type in which a server sums them. Where they also travel in this type, the
  /// sums are the messages themselves.
  kAccumulator,
};
inline constexpr int kNumContents = 5;
/// Returns true if messages of this content go from a server to the homes.
constexpr bool goes_home(Content content) {
  return content == Content::kO || content == Content::kGradient;
}

/// A part of a message: [rows, heads, dim] numbers of one type.
struct MessagePart {
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  ScalarType type = ScalarType::kFloat32;
  int64_t bytes() const { return rows * heads * dim * element_bytes(type); }
};
/// The parts of the message to or from one peer. O and LSE have no third part, so it is empty. All
/// parts of O and dO are empty where the peer gives or gets keys only.
std::array<MessagePart, 3> message_parts(Content content, const PeerTransfer& transfer,
                                         const AttentionShape& shape, const ExchangeTypes& types);
int64_t message_bytes(Content content, const PeerTransfer& transfer, const AttentionShape& shape,
                      const ExchangeTypes& types);

/// One message, which takes bytes [offset, offset + bytes) of the buffer from which it is sent or
/// into which it is received.
struct PeerMessage {
  int peer = 0;
  int64_t offset = 0;
  int64_t bytes = 0;  // > 0
  bool operator==(const PeerMessage&) const = default;
};
inline constexpr int64_t kMessageAlignment = 64;

/// Messages that share a buffer. Those of add() lie one after another, each at the next multiple of
/// kMessageAlignment.
struct MessageList {
  std::vector<PeerMessage> messages;  // ascending peer, each at most once
  int64_t bytes = 0;                  // bytes of all messages, without gaps
  int64_t buffer_bytes = 0;           // size of the buffer, with gaps for alignment

  bool empty() const { return messages.empty(); }
  /// Adds a message behind the others. The peer must be above those before it. A message of no
  /// bytes is left out.
  void add(int peer, int64_t message_bytes);
  /// Likewise, at a place of its own in the buffer, which ends with the last of its messages.
  void add_at(int peer, int64_t offset, int64_t message_bytes);
  /// The message of this peer, or null if there is none.
  const PeerMessage* with(int peer) const;
};

/// The sets in which a rank's tasks are computed. Tasks at home read nothing that was received and
/// write nothing that is returned, so they can run while messages are under way.
enum class TaskSet : uint8_t {
  kAll,        // all tasks of the rank
  kHomeFirst,  // about half of the work at home
  kAway,       // all tasks that read what was received or whose result is returned
  kHomeRest,   // the other tasks at home
};
inline constexpr int kNumTaskSets = 4;

struct AttentionExchange {
  RankExchange rows;  // peers, rows, tasks and merges
  AttentionShape shape;
  ExchangeTypes types;
  // [Content] The messages that this rank exchanges as a home with its servers, and as a server
  // with the homes of its tasks.
  std::array<MessageList, kNumContents> with_servers, with_homes;
  // [TaskSet] Ascending indices into rows.tasks, and the number of (query, key) pairs of these
  // tasks. The three partial sets are disjoint and together kAll.
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
  // The messages of a content that this rank sends, and those that it receives.
  const MessageList& sent(Content content) const {
    return goes_home(content) ? homes(content) : servers(content);
  }
  const MessageList& received(Content content) const {
    return goes_home(content) ? servers(content) : homes(content);
  }
  /// The order in which sets of tasks are computed, where messages travel under the tasks at home.
  /// Sets without tasks are left out. It is kAll alone where there is nothing to divide or to hide.
  std::vector<TaskSet> partial_sets() const;
  /// Returns true if gradients are summed in another buffer than the one from which they are sent.
  bool converts_gradients() const { return types.gradient != types.accumulator; }
};

/// Lays out the messages of `rows` and divides its tasks into sets. Time: proportional to its
/// output.
AttentionExchange make_attention_exchange(RankExchange rows, const AttentionShape& shape,
                                          const ExchangeTypes& types);

/// Returns true if the task needs nothing that was received, and its result is not returned.
bool is_home(const ServerTask& task);
/// (query, key) pairs under a mask of these queries (positions in the document) of a task.
int64_t pairs_of(const ServerTask& task, const Range& queries, const Mask& mask);

}  // namespace distca
