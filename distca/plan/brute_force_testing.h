#pragma once
// The fewest bytes on a given layout, by trying every assignment of blocks of 128 queries to
// servers: for small cases in tests.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "distca/plan/plan.h"

namespace distca::testing {

inline constexpr int64_t kNoPlan = std::numeric_limits<int64_t>::max();

/// A block of queries of a document, with all its keys.
struct QueryBlock {
  int64_t document = 0;
  Range q;
  int home = 0;
  int64_t pairs = 0;
};

/// Branch and bound over the blocks of a plan's layout, highest block of a document first: its
/// server then has the keys of all lower ones. Counts as DESIGN's byte counts do: Q and O of a
/// block away from home, K and V of every key once per server that needs it and does not hold it.
class BruteForce {
 public:
  explicit BruteForce(const Plan& plan)
      : shape_(plan.shape),
        layout_(plan.layout),
        servers_(plan.cluster.num_servers()),
        needs_(plan.nano_batch.documents.size(), std::vector<int64_t>(servers_, 0)) {
    for (int worker = 0; worker < plan.layout.num_workers(); ++worker) {
      for (const Segment& segment : plan.layout.workers[worker]) add_blocks(segment, worker);
    }
    std::sort(blocks_.begin(), blocks_.end(), [](const QueryBlock& a, const QueryBlock& b) {
      return a.document != b.document ? a.document < b.document : a.q.begin > b.q.begin;
    });
  }

  const std::vector<QueryBlock>& blocks() const { return blocks_; }

  /// Returns the bytes that travel when servers[i] computes blocks()[i].
  int64_t bytes(const std::vector<int>& servers) {
    int64_t bytes = 0;
    for (size_t i = 0; i < blocks_.size(); ++i) bytes += place(blocks_[i], servers[i]);
    for (const QueryBlock& block : blocks_) needs_[block.document].assign(servers_, 0);
    return bytes;
  }

  /// The fewest bytes with at most most_pairs[server] on each server; kNoPlan if there is no such
  /// assignment.
  int64_t fewest_bytes(const std::vector<int64_t>& most_pairs) {
    room_ = most_pairs;
    best_ = kNoPlan;
    search(0, 0);
    return best_;
  }

 private:
  void add_blocks(const Segment& segment, int worker) {
    for (int64_t begin = segment.tokens.begin; begin < segment.tokens.end;) {
      const int64_t end = std::min(begin + kBlockTokens, segment.tokens.end);
      int64_t pairs = 0;
      for (int64_t query = begin; query < end; ++query) pairs += query + 1;
      blocks_.push_back({segment.document, {begin, end}, worker, pairs});
      begin = end;
    }
  }

  /// Bytes that this block adds on `server`, where it is noted.
  int64_t place(const QueryBlock& block, int server) {
    int64_t bytes = 0;
    if (server != block.home) {
      bytes += block.q.size() * (shape_.q_token_bytes() + shape_.o_token_bytes());
    }
    int64_t& keys = needs_[block.document][server];
    if (keys > 0) return bytes;  // keys of a higher block, which include all that this one needs
    keys = block.q.end;
    int64_t fetched = keys;
    if (server < layout_.num_workers()) {
      for (const Segment& segment : layout_.workers[server]) {
        if (segment.document == block.document) {
          fetched -=
              std::max<int64_t>(0, std::min(segment.tokens.end, keys) - segment.tokens.begin);
        }
      }
    }
    return bytes + fetched * shape_.kv_token_bytes();
  }

  void search(size_t index, int64_t bytes) {
    if (bytes >= best_) return;
    if (index == blocks_.size()) {
      best_ = bytes;
      return;
    }
    const QueryBlock& block = blocks_[index];
    for (int turn = 0; turn < servers_; ++turn) {
      const int server = (block.home + turn) % servers_;  // home first: good bounds soon
      if (room_[server] < block.pairs) continue;
      int64_t& keys = needs_[block.document][server];
      const int64_t before = keys;
      room_[server] -= block.pairs;
      search(index + 1, bytes + place(block, server));
      room_[server] += block.pairs;
      keys = before;
    }
  }

  AttentionShape shape_;
  const Layout& layout_;
  int servers_;
  std::vector<QueryBlock> blocks_;
  std::vector<std::vector<int64_t>> needs_;  // [document][server] keys [0, x) that it needs so far
  std::vector<int64_t> room_;                // [server] pairs
  int64_t best_ = 0;
};

}  // namespace distca::testing
