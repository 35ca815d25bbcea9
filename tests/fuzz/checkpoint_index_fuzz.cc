#include <string>

#include "distca/checkpoint/index.h"
#include "tests/fuzz/fuzzing.h"
#include "tests/fuzz/targets.h"

namespace distca::fuzz {

bool checkpoint_index(std::span<const uint8_t> bytes) {
  const auto read =
      unless_refused([&] { return parse_checkpoint_index(as_text(bytes), kIndexFile); });
  if (!read) return false;
  const std::string json = canonical_json(to_json(*read));
  const CheckpointIndex again = parse_checkpoint_index(json, kIndexFile);
  DISTCA_CHECK(again.pieces == read->pieces && again.tensors == read->tensors &&
                   canonical_json(to_json(again)) == json,
               "an index that was read, written and read again is another one");
  for (const StoredPiece& piece : read->pieces) {
    DISTCA_CHECK_EQ(stored_tensor(*read, piece).numel(), piece.range.size());
  }
  // An index that can be read need not be that of a whole checkpoint.
  unless_refused([&] { return check_coverage(*read, kIndexFile), true; });
  return true;
}

}  // namespace distca::fuzz
