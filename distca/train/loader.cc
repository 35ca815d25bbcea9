#include "distca/train/loader.h"

#include <algorithm>

namespace distca {

LocalTokens load_tokens(const DataBlend& data, const NanoBatchSource& source,
                        const std::vector<Segment>& segments, int64_t vocab_size) {
  LocalTokens local;
  std::vector<int32_t> tokens;
  for (const Segment& segment : segments) {
    const DocumentSource& document = source.sources[segment.document];
    // One token more than the segment where there is one: the last row's target.
    const Range with_target{segment.tokens.begin,
                            std::min(segment.tokens.end, document.num_targets) + 1};
    const int64_t read = std::max(with_target.size(), segment.tokens.size());
    tokens.resize(read);
    data.read(document.document, document.offset + segment.tokens.begin, tokens, vocab_size);
    for (int64_t i = 0; i < segment.tokens.size(); ++i) {
      const int64_t position = segment.tokens.begin + i;
      local.ids.push_back(tokens[i]);
      local.targets.push_back(position < document.num_targets ? tokens[i + 1] : kNoTarget);
      local.positions.push_back(position);
    }
  }
  return local;
}

}  // namespace distca
