#pragma once
// The first ranks of a group as a group of their own, with the same rank numbers: sums over those
// that hold weights beside ranks that only serve.

#include <memory>

#include "distca/comm/communicator.h"

namespace distca {

/// Ranks 0 .. size - 1 of `whole`, which it borrows and of which this rank is one of them (CHECK).
/// Messages, timeouts and errors are the whole group's, and so is the thread rule.
std::unique_ptr<Communicator> first_ranks(Communicator& whole, int size);

}  // namespace distca
