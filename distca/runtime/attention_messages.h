#pragma once
// Where the messages of core attention lie in a program's buffers, and what they hold: one rank's
// part of a plan, the program's operations and the buffers put together. Thread rule: one thread.

#include <array>
#include <cstdint>
#include <vector>

#include "distca/base/integers.h"
#include "distca/kernels/attention.h"
#include "distca/plan/exchange.h"
#include "distca/program/program.h"
#include "distca/program/schedule.h"
#include "distca/runtime/exchange_block.h"
#include "distca/runtime/exchange_buffers.h"

namespace distca {

/// What the messages of an exchange hold; accumulators are gradients that do not travel as they
/// are.
enum class Content { kQkv, kO, kDO, kGradient, kAccumulator };
inline constexpr int kNumContents = 5;

/// Of an operation that exchanges; any other is a CHECK.
Content content_of(const Op& op);

/// Messages lie in their buffer in the order of their peers, each at the next multiple of
/// kMessageAlignment. Between this rank as home and its servers there is one for each of
/// RankExchange::sends, between it as server and the homes one for each of RankExchange::receives;
/// none of O and dO where a peer gives or gets keys only.
class AttentionMessages {
 public:
  /// Borrows exchange and buffers.
  AttentionMessages(const RankExchange& exchange, const kernels::Shape& shape,
                    const ExchangeTypes& types, const ExchangeBuffers& buffers);

  /// Of RankExchange::sends and ::receives, in a buffer of the program; -1 where no peer has one.
  std::vector<Block> with_servers(Content content, int32_t buffer) const;
  std::vector<Block> with_homes(Content content, int32_t buffer) const;
  /// Whether some server of this home has a message.
  bool any_with_servers(Content content) const;
  /// The blocks that an exchange receives.
  std::vector<Block> incoming(const Op& op) const;
  /// The program's messages are what this rank's part of the plan says: else a CHECK.
  void check(const Op& op) const;

 private:
  using Layout = std::vector<Range>;  // bytes in the buffer; empty: no message

  int64_t message_bytes(Content content, const PeerTransfer& transfer) const;
  Layout layout(Content content, const std::vector<PeerTransfer>& transfers) const;
  Block block(Content content, const PeerTransfer& transfer, std::byte* memory,
              int64_t bytes) const;
  std::vector<Block> blocks(Content content, const std::vector<PeerTransfer>& transfers,
                            const Layout& layout, int32_t buffer) const;

  const RankExchange& exchange_;
  const kernels::Shape shape_;
  const ExchangeTypes types_;
  const ExchangeBuffers& buffers_;
  std::array<Layout, kNumContents> servers_, homes_;  // [content]
};

}  // namespace distca
