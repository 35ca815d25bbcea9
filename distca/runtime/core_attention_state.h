#pragma once
// What core_attention.cc (forward) and core_attention_backward.cc share; nobody else includes it.
// Thread rule: as CoreAttention.

#include <ATen/ATen.h>

#include <initializer_list>
#include <vector>

#include "distca/runtime/aten_merge.h"
#include "distca/runtime/core_attention.h"

namespace distca {

/// One message: a flat buffer and its parts as tensors. Head dimensions are multiples of 8, so that
/// every part begins at a multiple of 16 bytes.
struct Block {
  at::Tensor bytes;
  std::vector<at::Tensor> parts;
};

Message to_message(const Block& block, int peer, uint32_t tag);

/// Rows of a [tokens, heads, dim] tensor from `row` on.
kernels::Rows rows_of(const at::Tensor& tensor, int64_t row);

/// Where a task's rows lie: in the local tensor, or in a part of the block they came in.
kernels::Rows resolve(const at::Tensor& local, const std::vector<Block>& blocks, int part,
                      const BlockRows& rows);

struct CoreAttention::State {
  /// What one layer keeps between its operations. Index i of a vector belongs to receives[i] or
  /// sends[i].
  struct Layer {
    at::Tensor q, k, v;                    // local
    at::Tensor o, lse;                     // local: [T, H, E], [T, H, 1]
    at::Tensor d_o, delta;                 // local, backward
    at::Tensor dq, dk, dv;                 // local accumulators, backward
    std::vector<Block> received;           // Q, K, V of others
    std::vector<Block> returned;           // O, LSE for others
    std::vector<AtenPartial> partials;     // of tasks[i] if it is partial; O in the accumulator
    std::vector<Block> received_backward;  // dO, LSE, delta of others
    std::vector<Block> accumulators;       // dQ, dK, dV for others
  };

  RankExchange exchange;
  CoreAttentionOptions options;
  Communicator& comm;
  at::ScalarType type;         // compute
  at::ScalarType accumulator;  // fp64 for fp64, else fp32
  std::vector<Range> merged;   // local rows that merges write, ascending
  std::vector<Layer> layers;
  ExchangeBytes bytes;

  State(RankExchange exchange_in, const CoreAttentionOptions& options_in, Communicator& comm_in);

  at::Device device() const;
  uint32_t tag(int layer, int phase) const;

  // The four kinds of message.
  Block qkv_block(const PeerTransfer& t) const;
  Block o_block(const PeerTransfer& t) const;
  Block d_o_block(const PeerTransfer& t) const;
  Block gradient_block(const PeerTransfer& t, at::ScalarType gradient_type) const;
  at::ScalarType travel_type() const;

  /// Calls `move(rows of local, rows of part)` for each range, and counts the part's bytes as
  /// copied.
  template <typename Move>
  void for_ranges(const at::Tensor& local, const std::vector<RowRange>& ranges,
                  const at::Tensor& part, const Move& move) {
    int64_t row = 0;
    for (const RowRange& range : ranges) {
      const int64_t tokens = range.tokens.size();
      move(local.narrow(0, range.row, tokens), part.narrow(0, row, tokens));
      row += tokens;
    }
    bytes.copied += part.numel() * static_cast<int64_t>(part.element_size());
  }
  /// Copies local rows into a message part, in the order of `ranges`.
  void pack(const at::Tensor& local, const std::vector<RowRange>& ranges, const at::Tensor& part);
  /// Copies a message part to local rows, but for those that merges write.
  void unpack(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local);
  /// Adds a message part to local rows.
  void add(const at::Tensor& part, const std::vector<RowRange>& ranges, const at::Tensor& local);

  /// Kernels read and write rows whose last dimension is contiguous.
  void check_local(const char* name, const at::Tensor& tensor, int64_t heads, int64_t dim) const;
  void run_exchange(const std::vector<Message>& sends, const std::vector<Message>& receives,
                    std::string_view operation);
  std::vector<kernels::KeyFragment> fragments(const Layer& layer, const ServerTask& task) const;

  /// O and LSE of all tasks: where they belong, or into partials.
  void run_tasks(Layer& layer);
  /// Merges rows into `block`, the O and LSE of their block; `arrived`: what came home.
  static void merge(const Layer& layer, const std::vector<Block>& arrived, const RowMerge& rows,
                    const AtenPartial& block);
};

}  // namespace distca
