#pragma once
// What an instruction set offers to cpu/run_items.cc: one item of a task batch, forward or
// backward. Everything behind these pointers is compiled for that instruction set, so nothing there
// may use inline functions of other headers that the linker could share with the rest of the
// program.
//
// Rows: the queries of a task with the R = H / G query heads of one key head, flattened:
// row = query * R + head in the group. Lanes of a vector are rows; a lane's mask is by position.

#include <cstddef>
#include <cstdint>
#include <span>

#include "distca/kernels/attention.h"
#include "distca/kernels/cpu/isa.h"

namespace distca::kernels {

// Rows of one item at most, a multiple of kPanelRows. Backward sums dK and dV over a tile before it
// adds them to the caller's, so its bits depend on this.
constexpr int kTileRows = 512;
constexpr int kPanelRows = 32;  // rows that go through the kernel together
constexpr int kTileKeys = 64;   // keys of one step, aligned to the document's start
constexpr int kMostHeadDim = 256;

/// Consecutive keys of a task in one buffer; rows from the first of them on.
struct KeyFragment {
  Rows k{};
  Rows v{};
  Rows dk{};  // backward
  Rows dv{};
  int64_t tokens = 0;
  int64_t position = 0;
};

/// A task (kernels/attention.h) with the rows found in their buffers, from its first query on:
/// those that the pass uses.
struct EngineTask {
  Rows q{};
  Rows o{};
  Rows lse{};
  Rows d_o{};
  Rows delta{};
  Rows dq{};
  int64_t q_position = 0;
  std::span<const KeyFragment> keys{};  // ascending position, none is empty
  Mask mask{};
};

/// Rows [row_begin, row_end) of one task and key head. Rows without a visible key, and tasks
/// without any key, are the engine's: O = 0, LSE = -infinity.
struct ForwardItem {
  const Shape* shape = nullptr;
  ScalarType type = ScalarType::kFloat32;    // of Q, K, V
  ScalarType o_type = ScalarType::kFloat32;  // of O
  const EngineTask* task = nullptr;
  int64_t kv_head = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  /// The item that this thread probably computes next: its queries are fetched beside this one's
  /// last products. nullptr: none is foreseen.
  const ForwardItem* next = nullptr;
};

/// Where items add to the same dk, dv or dq, each waits for its predecessors: before it adds to the
/// keys up to a position (exclusive), and with kAll before it adds to dq. It reports how far it got
/// itself: it adds nothing more to the keys below this position. Positions ascend. The caller
/// reports kAll when the item has ended.
struct AccumulationGate {
  static constexpr int64_t kAll = INT64_MAX;
  void* state = nullptr;
  void (*wait)(void* state, int64_t position) = nullptr;  // nullptr: nothing to wait for
  void (*done)(void* state, int64_t position) = nullptr;  // nullptr: nobody waits
};

/// The task as in ForwardItem. A row whose LSE is -infinity adds nothing.
struct BackwardItem {
  const Shape* shape = nullptr;
  ScalarType type = ScalarType::kFloat32;
  const EngineTask* task = nullptr;
  int64_t kv_head = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  AccumulationGate gate{};
};

/// One instruction set's functions. Scratch: aligned to 64 bytes, not cleared.
struct Engine {
  size_t (*forward_scratch_bytes)(const Shape& shape, ScalarType type);
  void (*forward)(const ForwardItem& item, std::byte* scratch);
  size_t (*backward_scratch_bytes)(const Shape& shape, ScalarType type);
  void (*backward)(const BackwardItem& item, std::byte* scratch);
};

// Defined in engine_NAME.cc where the compiler targets such machines.
extern const Engine kPortableEngine;
extern const Engine kAvx2Engine;
extern const Engine kAvx512Engine;
extern const Engine kAvx512Bf16Engine;

/// The engine of an available instruction set.
const Engine& engine_of(Isa isa);

}  // namespace distca::kernels
