#pragma once
// The greedy of key_sub_ranges.cc: overloaded servers give rectangles away until none is over its
// bound. Any thread, on its own Tiles.

#include "distca/plan/key_sub_ranges_tiles.h"

namespace distca {

struct GiveOptions {
  bool columns = true;  // false: whole-context rows only
};

void give_rectangles(Tiles& tiles, const GiveOptions& options);

}  // namespace distca
