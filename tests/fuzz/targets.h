#pragma once
// The fuzz targets: each gives a reader of files that others write any bytes as its input.
//
//   const bool read = fuzz::plan(bytes);  // throws nothing: the reader did what it promises
//
// A reader may return a value, or refuse the input as bad, in one line (unless_refused in
// fuzzing.h). A value that was read, written and read again is the same one. Everything else, an
// exception of a library too, leaves the target and is a bug. `make fuzz` searches for inputs that
// do so (libfuzzer.cc), and `make test` runs those of tests/fuzz/corpus/TARGET (replay_test.cc).
// Thread rule: one call at a time in a process.

#include <cstdint>
#include <span>

namespace distca::fuzz {

/// Returns whether the input was read; otherwise it was refused.
using Target = bool(std::span<const uint8_t> bytes);

/// A data set. The first two bytes say how many of the next ones the .bin has (uint16,
/// little-endian); the rest is the .idx.
Target idx;
/// A plan's JSON. What was read is validated, and a valid plan is used.
Target plan;
/// A safetensors file; the header alone is read.
Target safetensors;
/// The index of a checkpoint.
Target checkpoint_index;
/// A configuration's TOML. Behind it, each after a NUL byte, come overrides.
Target config;
/// A task list of attention, with rows in memory: no reader, but a check that must refuse what the
/// kernel cannot compute (task_list_fuzz.h).
Target task_list;

}  // namespace distca::fuzz
