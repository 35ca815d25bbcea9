#include "distca/kernels/varlen_memory.h"

#include <algorithm>

#include "distca/base/integers.h"
#include "distca/kernels/rows.h"

namespace distca::kernels {
namespace {

/// Bytes of a row (token) of a launch.
struct RowMemory {
  RowMemory(const Shape& shape, ScalarType type)
      : wide(element_bytes(accumulator_type(type))),
        q(shape.num_heads * shape.head_dim_qk * element_bytes(type)),
        o(shape.num_heads * shape.head_dim_v * element_bytes(type)),
        kv(shape.num_kv_heads * (shape.head_dim_qk + shape.head_dim_v) * element_bytes(type)),
        number(shape.num_heads * wide) {}

  int64_t wide;    // a number that sums
  int64_t q, o;    // Q or dQ, O or dO
  int64_t kv;      // K and V, or dK and dV
  int64_t number;  // LSE or delta
};

/// O and LSE of the sequence that has the most, before they are put among those of all.
int64_t efficient_forward_memory(const RowMemory& row, const VarlenLaunch& launch) {
  int64_t most = 0;
  for (int64_t b = 0; b < launch.sequences(); ++b)
    most = std::max(most, launch.queries_of(b).size() * (row.o + row.number));
  return most;
}

FlashCall call_of(const VarlenLaunch& launch) {
  return {.sequences = launch.sequences(),
          .query_rows = launch.query_rows(),
          .key_rows = launch.key_rows.size()};
}

/// dQ, dK and dV of a launch, with the copies from which several stretches of rows are added.
int64_t gradients_memory(const RowMemory& row, ScalarType type, const VarlenLaunch& launch,
                         bool adjoin) {
  const FlashCall call = call_of(launch);
  const int64_t times = row.wide / element_bytes(type);  // factor to bytes in the type of sums
  int64_t bytes = call.query_rows * row.q + call.key_rows * row.kv;
  if (!adjoin) bytes += call.query_rows * row.q * times;
  if (launch.gradients.size() > 1) bytes += call.key_rows * row.kv * times;
  return bytes;
}

/// The call of the operator that computes the launch or, where that is not known, of the one that
/// takes more.
int64_t operator_memory(const Shape& shape, ScalarType type, const VarlenLaunch& launch,
                        const FlashDevice& device) {
  if (type == ScalarType::kFloat32) return efficient_backward_memory(shape, launch);
  const FlashCall call = call_of(launch);
  const int64_t of_flash4 = flash4_backward_call_memory(shape, type, call);
  if (device.flash4) return of_flash4;
  const int64_t of_aten = flash_backward_call_memory(shape, type, call, device);
  return device.flash4_for_some ? std::max(of_flash4, of_aten) : of_aten;
}

}  // namespace

int64_t flash_backward_call_memory(const Shape& shape, ScalarType type, const FlashCall& call,
                                   const FlashDevice& device) {
  constexpr int64_t kFp32 = 4;
  const RowMemory row(shape, type);
  const int64_t heads = shape.num_heads, dim = shape.head_dim_qk;
  const int64_t rows = call.query_rows + kPaddingRows * call.sequences;
  const int64_t sums = rows * heads * round_up(dim, dim <= 128 ? 32 : 64) * kFp32;
  const int64_t blocks = call.sequences * heads;
  const int64_t splits = device.deterministic ? ceil_div(device.multiprocessors, blocks) : 1;
  const int64_t of_each_head =
      shape.num_kv_heads == heads ? 0 : call.key_rows * row.kv * (heads / shape.num_kv_heads);
  return call.query_rows * row.q + call.key_rows * row.kv + rows * heads * kFp32 + splits * sums +
         of_each_head;
}

int64_t flash4_backward_call_memory(const Shape& shape, ScalarType type, const FlashCall& call) {
  constexpr int64_t kFp32 = 4;
  const RowMemory row(shape, type);
  const int64_t gaps = kPaddingRows * call.sequences;
  const int64_t of_queries =
      (call.query_rows + gaps) * shape.num_heads * (shape.head_dim_qk + 2) * kFp32;
  const int64_t of_keys = shape.num_kv_heads == shape.num_heads
                              ? 0
                              : (call.key_rows + gaps) * shape.num_kv_heads *
                                    (shape.head_dim_qk + shape.head_dim_v) * kFp32;
  return call.query_rows * row.q + call.key_rows * row.kv + of_queries + of_keys;
}

int64_t efficient_backward_memory(const Shape& shape, const VarlenLaunch& launch) {
  const RowMemory row(shape, ScalarType::kFloat32);
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  int64_t most = 0;
  for (int64_t b = 0; b < launch.sequences(); ++b) {
    const int64_t queries = launch.queries_of(b).size();
    if (queries == 0) continue;
    // O, dO x O, its sums, LSE by tiles, dQ; then dK and dV of every query head, and their sums.
    most = std::max(most, queries * (2 * row.o + 2 * row.number + row.q) +
                              launch.keys_of(b).size() * row.kv * (group + 1));
  }
  return launch.query_rows() * row.q + launch.key_rows.size() * row.kv + most;
}

int64_t varlen_forward_memory(const Shape& shape, ScalarType type, const TaskList& list) {
  if (list.tasks.empty()) return 0;
  const RowMemory row(shape, type);
  const VarlenPlan plan = plan_forward_launches(type, list);
  int64_t bytes = plan.gathered_rows() * row.kv, most = 0;
  // All launches' O and LSE, which is turned by rows, stay until they are put in their places.
  for (const VarlenLaunch& launch : plan.launches) {
    const int64_t packed = query_runs(list, launch).size() > 1 ? row.q : 0;
    bytes += launch.query_rows() * (packed + row.o + 2 * row.number);
    if (type == ScalarType::kFloat32) most = std::max(most, efficient_forward_memory(row, launch));
  }
  return bytes + most;
}

int64_t varlen_backward_memory(const Shape& shape, ScalarType type, const TaskList& list,
                               const FlashDevice& device) {
  constexpr int64_t kFp64 = 8;
  if (list.tasks.empty()) return 0;
  const RowMemory row(shape, type);
  const bool is_bf16 = type == ScalarType::kBFloat16;
  const bool for_some = is_bf16 && device.flash4_for_some;
  const bool takes_delta = is_bf16 && device.flash4;  // in place of O
  const VarlenPlan plan =
      plan_backward_launches(type, list, for_some || takes_delta ? kFlash4Limits : LaunchLimits{});
  int64_t rows = 0, packed = plan.gathered_rows() * row.kv, most = 0;
  bool in_place = plan.launches.size() == 1;
  for (const VarlenLaunch& launch : plan.launches) {
    const bool adjoin = query_runs(list, launch).size() <= 1;  // so that none is packed
    in_place = in_place && adjoin;
    rows += launch.query_rows();
    if (!adjoin) packed += launch.query_rows() * (row.q + row.number);
    const int64_t of_operator = operator_memory(shape, type, launch, device);
    const int64_t call = launch.query_rows() * row.number + of_operator;  // LSE by heads
    most = std::max({most, call, gradients_memory(row, type, launch, adjoin)});
  }
  if (!in_place) packed += rows * (row.o + row.number);  // dO and delta
  if (takes_delta) return packed + most;
  packed += rows * row.o;
  // O from delta: dO in fp64 for its norm, the norm, and delta over it.
  const int64_t of_o = rows * (shape.num_heads * shape.head_dim_v + 2 * shape.num_heads) * kFp64;
  const int64_t bytes = packed + std::max(most, of_o);
  if (!for_some) return bytes;
  // FlashAttention 4 may be missing where the run is, and then launches are larger.
  FlashDevice without = device;
  without.flash4_for_some = false;
  return std::max(bytes, varlen_backward_memory(shape, type, list, without));
}

}  // namespace distca::kernels
