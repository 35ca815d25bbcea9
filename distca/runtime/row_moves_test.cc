#include "distca/runtime/row_moves.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "distca/comm/as_on_device.h"
#include "distca/runtime/tensor_rows.h"

namespace distca {
namespace {

constexpr int kCpu = -1;

/// Copies, clearing and sums of rows of several types and strides; gives what they leave.
at::Tensor moved(bool together) {
  std::optional<AsOnDevice> as_on_device;
  if (together) as_on_device.emplace();
  const at::Tensor from = at::arange(240).to(at::kFloat).view({20, 4, 3});
  const at::Tensor narrow = from.to(at::kBFloat16), wide = from.to(at::kDouble);
  const at::Tensor strided = at::arange(480).to(at::kFloat).view({20, 4, 6}).narrow(2, 1, 3);
  const at::Tensor to = at::full({20, 4, 3}, 7.5), sums = at::ones({20, 4, 3});
  RowMoves moves(kCpu);
  moves.copy(rows_at(to, 0, 3), rows_at(from, 5, 3));
  moves.copy(rows_at(to, 3, 0), rows_at(from, 0, 0));
  moves.copy(rows_at(to, 4, 2), rows_at(narrow, 9, 2));
  moves.copy(rows_at(to, 6, 5), rows_at(strided, 1, 5));
  moves.copy(rows_at(to, 12, 1), rows_at(narrow, 0, 1));
  moves.play();
  EXPECT_EQ(moves.copied_bytes(), (3 * 4 + 2 * 2 + 5 * 4 + 1 * 2) * 4 * 3);
  moves.clear(rows_at(to, 1, 1));
  moves.clear(rows_at(to, 14, 2));
  moves.add(rows_at(sums, 2, 4), rows_at(from, 0, 4));
  moves.add(rows_at(sums, 8, 4), rows_at(strided, 0, 4));
  moves.add(rows_at(sums, 14, 1), rows_at(wide, 3, 1));
  moves.add(rows_at(sums, 15, 1), rows_at(narrow, 3, 1));
  moves.play();
  moves.play();  // nothing is left
  return at::stack({to, sums});
}

TEST(RowMoves, leave_together_what_they_leave_one_by_one) {
  const at::Tensor want = moved(/*together=*/false);
  EXPECT_EQ(want[0][0][0][0].item<float>(), 60);  // row 5 of those that count up
  EXPECT_EQ(want[0][1].abs().sum().item<float>(), 0);
  EXPECT_EQ(want[1][3][0][0].item<float>(), 1 + 12);
  EXPECT_TRUE(at::equal(moved(/*together=*/true), want));
}

TEST(RowMoves, wait_for_play_where_they_go_together) {
  const AsOnDevice as_on_device;
  const at::Tensor to = at::zeros({2, 1, 8});
  RowMoves moves(kCpu);
  moves.copy(to, at::ones({2, 1, 8}));
  EXPECT_EQ(to.sum().item<float>(), 0);
  moves.play();
  EXPECT_EQ(to.sum().item<float>(), 16);
}

TEST(TensorRows, a_piece_keeps_its_memory_and_rows_are_those_of_the_tensor) {
  at::Tensor flat = at::arange(48).to(at::kFloat);
  const at::Tensor piece = piece_of(flat, 24, {3, 4, 2});
  const at::Tensor rows = rows_at(piece, 1, 2);
  EXPECT_TRUE(at::equal(rows, flat.narrow(0, 32, 16).view({2, 4, 2})));
  flat.reset();
  EXPECT_EQ(piece[2][3][1].item<float>(), 47);
  EXPECT_TRUE(at::equal(tensor_of(rows_of(piece, 2), ScalarType::kFloat32, 1, 4, 2, kCpu),
                        piece.narrow(0, 2, 1)));
}

}  // namespace
}  // namespace distca
