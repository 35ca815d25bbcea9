#include "distca/program/tensor_rows.h"

namespace distca {

TensorRows make_tensor_rows(const TensorPlace& place, int64_t rows, int64_t row_bytes) {
  TensorRows result{.rows = rows, .row_bytes = row_bytes};
  const Range own = place.part(rows);
  for (int peer = 0; peer < place.size; ++peer) {
    if (peer == place.index) continue;
    const Range theirs = TensorPlace{place.size, peer}.part(rows);
    const auto add = [&](MessageList& list, const Range& part, int64_t bytes_a_row) {
      list.add_at(peer, part.begin * bytes_a_row, part.size() * bytes_a_row);
    };
    add(result.gather_sends, own, row_bytes);
    add(result.gather_receives, theirs, row_bytes);
    add(result.pair_sends, own, 2 * row_bytes);
    add(result.pair_receives, theirs, 2 * row_bytes);
    add(result.part_sends, theirs, row_bytes);
    result.part_receives.add_at(peer, result.part_receives.bytes, own.size() * row_bytes);
  }
  // All rows have a place in these buffers, whether they travel or not.
  for (MessageList* const list :
       {&result.gather_sends, &result.gather_receives, &result.part_sends})
    list->buffer_bytes = rows * row_bytes;
  for (MessageList* const list : {&result.pair_sends, &result.pair_receives})
    list->buffer_bytes = 2 * rows * row_bytes;
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
