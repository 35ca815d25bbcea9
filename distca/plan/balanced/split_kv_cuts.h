#pragma once
// Which part of a rectangle of queries x keys has a wanted load: the cuts of split_kv_give.h.
// Any thread.

#include <cstdint>

#include "distca/base/integers.h"
#include "distca/cost/task_price.h"

namespace distca {

struct LoadWish {
  int64_t wanted = 0;  // at least, if that is
  int64_t most = 0;    // at most this; else one block of 128 less
};

// The fewest highest or lowest rows of `q` with keys `kv`, or the fewest lowest or highest keys of
// `kv` with rows `q`, that have the load: all of them where all have less. The larger part first:
// it ends an excess in one move. Empty where one block is more than `most`. Positions in the
// document; neither range may be empty.
Range highest_rows(const TaskPrice& price, const Range& q, const Range& kv, const LoadWish& wish);
Range lowest_rows(const TaskPrice& price, const Range& q, const Range& kv, const LoadWish& wish);
Range lowest_keys(const TaskPrice& price, const Range& q, const Range& kv, const LoadWish& wish);
Range highest_keys(const TaskPrice& price, const Range& q, const Range& kv, const LoadWish& wish);

}  // namespace distca
