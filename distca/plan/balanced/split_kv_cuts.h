#pragma once
// Finds the part of a rectangle of queries x keys that has a wanted load. split_kv_give.h cuts by
// it. Any thread may call the functions.

#include <cstdint>

#include "distca/base/integers.h"
#include "distca/cost/task_price.h"

namespace distca {

/// The load that a part should have.
struct LoadWish {
  int64_t wanted = 0;  // at least this, if `most` allows it
  int64_t most = 0;    // at most this; otherwise one block of 128 less
};

// The fewest highest or lowest rows of `q` with the keys `kv`, or the fewest lowest or highest keys
// of `kv` with the rows `q`, that have the load; all of them where all have less. The larger part
// comes first because it ends an excess in one move. Empty where one block has more than `most`.
// Ranges are positions in the document, and neither may be empty.
Range highest_rows(const TaskPrice& price, const Range& q, const Range& kv, const LoadWish& wish);
Range lowest_rows(const TaskPrice& price, const Range& q, const Range& kv, const LoadWish& wish);
Range lowest_keys(const TaskPrice& price, const Range& q, const Range& kv, const LoadWish& wish);
Range highest_keys(const TaskPrice& price, const Range& q, const Range& kv, const LoadWish& wish);

}  // namespace distca
