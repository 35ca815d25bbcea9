#include "distca/program/tensor_rows.h"

namespace distca {
namespace {

void add(MessageList& list, int peer, int64_t offset, int64_t bytes) {
  if (bytes == 0) return;
  list.messages.push_back({.peer = peer, .offset = offset, .bytes = bytes});
  list.bytes += bytes;
}

/// Rows take so many bytes each.
void add_gather(const TensorPlace& place, int64_t rows, int64_t row_bytes, MessageList& sends,
                MessageList& receives) {
  const Range own = place.part(rows);
  for (int peer = 0; peer < place.size; ++peer) {
    if (peer == place.index) continue;
    const Range theirs = TensorPlace{place.size, peer}.part(rows);
    add(sends, peer, own.begin * row_bytes, own.size() * row_bytes);
    add(receives, peer, theirs.begin * row_bytes, theirs.size() * row_bytes);
  }
  sends.buffer_bytes = receives.buffer_bytes = rows * row_bytes;
}

}  // namespace

TensorRows make_tensor_rows(const TensorPlace& place, int64_t rows, int64_t row_bytes) {
  TensorRows result{.rows = rows, .row_bytes = row_bytes};
  add_gather(place, rows, row_bytes, result.gather_sends, result.gather_receives);
  add_gather(place, rows, 2 * row_bytes, result.pair_sends, result.pair_receives);
  const int64_t own = place.part(rows).size() * row_bytes;
  for (int peer = 0; peer < place.size; ++peer) {
    if (peer == place.index) continue;
    const Range theirs = TensorPlace{place.size, peer}.part(rows);
    add(result.part_sends, peer, theirs.begin * row_bytes, theirs.size() * row_bytes);
    add(result.part_receives, peer, result.part_receives.bytes, own);
  }
  result.part_sends.buffer_bytes = rows * row_bytes;
  result.part_receives.buffer_bytes = result.part_receives.bytes;
  return result;
}

bool gathers_pairs(const Op& op) {
  return op.kind == OpKind::kGatherRows && op.pass == Pass::kBackward &&
         op.of_phase != OpKind::kEmbed;
}

int64_t buffer_bytes(const TensorRows& rows, const Op& op) {
  return rows.rows * rows.row_bytes * (gathers_pairs(op) ? 2 : 1);
}

}  // namespace distca
