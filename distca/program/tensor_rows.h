#pragma once
// The messages of a nano-batch between the ranks of a server, where tensor parallelism divides the
// matrices of its layers (Megatron-LM's sequence parallelism). Each rank has some of the rows
// between two matrices. A kGatherRows sends its rows to all others, because a matrix that is
// divided by columns reads all of them. A kSumRows sends what this rank has computed of each row to
// the rank that has the row, because one that is divided by rows leaves a part of each.
//
// The functions are pure; any thread may call them.

#include <cstdint>

#include "distca/program/program.h"

namespace distca {

/// The messages of a nano-batch with so many rows at home, on all ranks of the server together.
TensorRows make_tensor_rows(const TensorPlace& place, int64_t rows, int64_t row_bytes);

/// Returns true if a kGatherRows carries two vectors a row: in backward, for the phases of a layer.
bool gathers_pairs(const Op& op);
/// The bytes of a communication's buffer `out`, whether this rank has rows to send or not.
int64_t buffer_bytes(const TensorRows& rows, const Op& op);

}  // namespace distca
