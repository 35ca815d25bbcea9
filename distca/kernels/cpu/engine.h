#pragma once
// The functions that an instruction set offers to cpu/attention.cc: they compute one item of a task
// list, forward or backward. Everything behind these function pointers is compiled for that
// instruction set. So it must not use inline functions of other headers that the linker could share
// with the rest of the program.
//
// Rows: the queries of a task with the R = H / G query heads of one key head, flattened. Row
// query * R + head is the query with that head of the group. The lanes of a vector are rows, and
// the mask of a lane is by position. Letters are those of kernels/attention.h.

#include <cstddef>
#include <cstdint>
#include <span>

#include "distca/kernels/attention.h"
#include "distca/kernels/cpu/isa.h"

namespace distca::kernels {

// The most rows of an item, a multiple of kPanelRows. Backward sums dK and dV over a tile before it
// adds them to the caller's, so its bits depend on this number.
constexpr int kTileRows = 512;
constexpr int kPanelRows = 32;  // rows that go through the kernel together
constexpr int kTileKeys = 64;   // keys of one step, aligned to the document's start
constexpr int kMostHeadDim = 256;

/// Consecutive keys of a task in one buffer. Rows count from the first of these keys on.
struct KeyFragment {
  Rows k{};
  Rows v{};
  Rows dk{};  // used in backward, as dv is
  Rows dv{};
  int64_t tokens = 0;
  int64_t position = 0;  // position of the first key in the document
};

/// A task (kernels/attention.h) with its rows found in their buffers. Rows count from the task's
/// first query on. Only those that the pass uses are set.
struct EngineTask {
  Rows q{};
  Rows o{};
  Rows lse{};
  Rows d_o{};
  Rows delta{};
  Rows dq{};
  int64_t q_position = 0;
  std::span<const KeyFragment> keys{};  // ascending position; none is empty
  Mask mask{};
};

/// Rows [row_begin, row_end) of one task and key head.
struct EngineItem {
  const Shape* shape = nullptr;
  const EngineTask* task = nullptr;
  int64_t kv_head = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
};

/// The engine gives O = 0 and LSE = -infinity to rows that see no key, and to all rows of a task
/// without keys.
struct ForwardItem : EngineItem {
  ScalarType o_type = ScalarType::kFloat32;  // type of O
  /// The item that this thread will probably compute next. Its queries are fetched during the last
  /// products of this item. It is nullptr if no item is foreseen.
  const ForwardItem* next = nullptr;
};

/// How an item waits for its predecessors where several items add to the same dk, dv or dq. It
/// calls wait(position) before it adds to the keys below that position, and wait(kAll) before it
/// adds to dq. It calls done(position) when it will add nothing more to the keys below that
/// position. Positions ascend. The caller reports kAll when the item has ended.
struct AccumulationGate {
  static constexpr int64_t kAll = INT64_MAX;
  void* state = nullptr;
  void (*wait)(void* state, int64_t position) = nullptr;  // nullptr means nothing to wait for
  void (*done)(void* state, int64_t position) = nullptr;  // nullptr means that nobody waits
};

/// A row whose LSE is -infinity adds nothing.
struct BackwardItem : EngineItem {
  AccumulationGate gate{};
};

/// Multiply-adds of numbers in registers (peak.h): how many FLOP they are, and the function that
/// does them. It returns the sum of all results, so that the compiler leaves nothing out.
struct Burst {
  float (*run)(float factor, float term) = nullptr;
  double flops = 0;
};

/// The functions of one instruction set for one type of Q, K and V. Scratch memory is aligned to 64
/// bytes and not cleared.
struct Engine {
  size_t (*forward_scratch_bytes)(const Shape& shape) = nullptr;
  void (*forward)(const ForwardItem& item, std::byte* scratch) = nullptr;
  size_t (*backward_scratch_bytes)(const Shape& shape) = nullptr;
  void (*backward)(const BackwardItem& item, std::byte* scratch) = nullptr;
  Burst burst{};
};
struct Engines {
  Engine fp32, bf16;
};

// Each is defined in engine_NAME.cc if the compiler targets machines that can have it.
extern const Engines kPortableEngines;
extern const Engines kAvx2Engines;
extern const Engines kAvx512Engines;
extern const Engines kAvx512Bf16Engines;

/// The engine of an available instruction set for this type; that of fp32 for fp64.
const Engine& engine_of(Isa isa, ScalarType type);

}  // namespace distca::kernels
