#include "distca/train/loader.h"

#include <algorithm>

#include "distca/config/bad_tokens.h"
#include "distca/config/config.h"

namespace distca {

LocalTokens load_tokens(const Config& config, const DataBlend& data, const NanoBatchSource& source,
                        const std::vector<Segment>& segments) {
  using BadTokens = Vocabulary::BadTokens;
  constexpr int32_t kBad = IndexedDataset::kBadId;
  const Vocabulary vocabulary = vocabulary_of(config);
  LocalTokens local;
  std::vector<int32_t> tokens;
  for (const Segment& segment : segments) {
    const DocumentSource& document = source.sources[segment.document];
    // One token more than the segment where there is one: the last row's target.
    const Range with_target{segment.tokens.begin,
                            std::min(segment.tokens.end, document.num_targets) + 1};
    const int64_t read = std::max(with_target.size(), segment.tokens.size());
    tokens.resize(read);
    const auto bad = data.read(document.document, document.offset + segment.tokens.begin, tokens,
                               vocabulary.size);
    if (bad && vocabulary.bad_tokens == BadTokens::kRefuse)
      throw bad_token(config, data, data.set_of(document.document), *bad);
    local.bad_tokens += std::count(tokens.begin(), tokens.begin() + segment.tokens.size(), kBad);
    const auto known = [&](int32_t token) { return token == kBad ? vocabulary.id : token; };
    for (int64_t i = 0; i < segment.tokens.size(); ++i) {
      const int64_t position = segment.tokens.begin + i;
      const bool has_target = position < document.num_targets;
      const bool left_out =
          has_target && tokens[i + 1] == kBad && vocabulary.bad_tokens == BadTokens::kSkipTarget;
      local.targets_left_out += left_out ? 1 : 0;
      local.ids.push_back(known(tokens[i]));
      local.targets.push_back(has_target && !left_out ? known(tokens[i + 1]) : kNoTarget);
      local.positions.push_back(position);
    }
  }
  return local;
}

}  // namespace distca
