#include "distca/batch/layout.h"

namespace distca {

int64_t Layout::num_tokens(int worker) const {
  int64_t tokens = 0;
  for (const Segment& segment : workers[worker]) tokens += segment.tokens.size();
  return tokens;
}

}  // namespace distca
