#include "distca/kernels/varlen_memory.h"

#include <gtest/gtest.h>

namespace distca::kernels {
namespace {

constexpr ScalarType kMemoryType = ScalarType::kBFloat16;
/// Attention of Llama-8B.
constexpr Shape kShape{.num_heads = 32,
                       .num_kv_heads = 8,
                       .head_dim_qk = 128,
                       .head_dim_v = 128,
                       .softmax_scale = 0.1};
/// 2 query heads and 1 key head of 40 numbers: a row of Q has 160 bytes, of K and V together 160.
constexpr Shape kSmall{
    .num_heads = 2, .num_kv_heads = 1, .head_dim_qk = 40, .head_dim_v = 40, .softmax_scale = 0.1};

TEST(FlashMemory, of_a_document_of_128k_tokens_is_mostly_the_deterministic_sums_of_dq) {
  constexpr int64_t kTokens = 131072;
  const FlashCall call{.sequences = 1, .query_rows = kTokens, .key_rows = kTokens};
  const int64_t dq = kTokens * 32 * 128 * 2, dk_dv = 2 * kTokens * 8 * 128 * 2;
  const int64_t of_each_head = 2 * kTokens * 32 * 128 * 2;
  const int64_t row_sums = 32 * (kTokens + 128) * 4;
  const int64_t sums = (kTokens + 128) * 32 * 128 * 4;
  EXPECT_EQ(sums, 2'149'580'800);
  EXPECT_EQ(flash_backward_call_memory(kShape, kMemoryType, call, {}),
            dq + dk_dv + of_each_head + row_sums + sums);
  // 132 multiprocessors for 32 heads of one sequence: 5 parts.
  EXPECT_EQ(flash_backward_call_memory(kShape, kMemoryType, call, {.deterministic = true}),
            dq + dk_dv + of_each_head + row_sums + 5 * sums);
  EXPECT_EQ(flash_backward_call_memory(kShape, kMemoryType, call,
                                       {.multiprocessors = 64, .deterministic = true}),
            dq + dk_dv + of_each_head + row_sums + 2 * sums);
}

TEST(FlashMemory, of_many_sequences_is_not_divided_and_has_a_gap_behind_each) {
  const FlashCall call{.sequences = 5, .query_rows = 1000, .key_rows = 1000};
  // 5 x 32 blocks are more than 132. 1000 + 5 x 128 rows.
  const int64_t in_one_part = flash_backward_call_memory(kShape, kMemoryType, call, {});
  EXPECT_EQ(flash_backward_call_memory(kShape, kMemoryType, call, {.deterministic = true}),
            in_one_part);
  EXPECT_EQ(in_one_part, 1000 * (8192 + 4096 + 16384) + 1640 * 32 * 4 + 1640 * 32 * 128 * 4);
}

TEST(FlashMemory, of_as_many_key_heads_has_no_copies_of_them_and_dims_are_rounded) {
  Shape shape = kSmall;
  shape.num_kv_heads = 2;
  const FlashCall call{.sequences = 1, .query_rows = 10, .key_rows = 20};
  // 40 becomes 64, and 136 becomes 192.
  EXPECT_EQ(flash_backward_call_memory(shape, kMemoryType, call, {}),
            10 * 160 + 20 * 320 + 138 * 2 * 4 + 138 * 2 * 64 * 4);
  shape.head_dim_qk = shape.head_dim_v = 136;
  EXPECT_EQ(flash_backward_call_memory(shape, kMemoryType, call, {}),
            10 * 544 + 20 * 1088 + 138 * 2 * 4 + 138 * 2 * 192 * 4);
}

/// Two shards of a document of 300 tokens, whose rows of queries begin at `row`. Its keys lie
/// in two buffers if `split`.
TaskList shard_tasks(int64_t second_row, bool split) {
  TaskList list;
  list.queries = {{.tokens = 1000}};
  list.keys = {{.tokens = 1000}, {.tokens = 1000}};
  const auto keys = [&](int64_t tokens) {
    std::vector<KeyRange> ranges = {{.tokens = split ? 50 : tokens}};
    if (split) ranges.push_back({.buffer = 1, .tokens = tokens - 50, .position = 50});
    return ranges;
  };
  list.tasks = {{.q_row = 0, .q_tokens = 100, .q_position = 100, .keys = keys(200)},
                {.q_row = second_row, .q_tokens = 100, .q_position = 200, .keys = keys(300)}};
  return list;
}

constexpr int64_t kQ = 160, kKv = 160, kNumber = 8, kO = 160;  // bytes of a row of kSmall

TEST(FlashMemory, of_a_list_in_place_is_what_the_operators_give_and_o_from_delta) {
  const TaskList list = shard_tasks(100, false);
  EXPECT_EQ(varlen_forward_memory(kSmall, kMemoryType, list), 200 * (kO + 2 * kNumber));
  const FlashDevice device{.multiprocessors = 1};
  const int64_t call = flash_backward_call_memory(
      kSmall, kMemoryType, {.sequences = 1, .query_rows = 200, .key_rows = 300}, device);
  EXPECT_EQ(varlen_backward_memory(kSmall, kMemoryType, list, device),
            200 * kO + 200 * kNumber + call);
}

TEST(FlashMemory, of_scattered_queries_and_keys_counts_what_is_packed_and_gathered) {
  const TaskList list = shard_tasks(500, true);
  // The keys of the second shard include those of the first.
  EXPECT_EQ(varlen_forward_memory(kSmall, kMemoryType, list),
            300 * kKv + 200 * (kQ + kO + 2 * kNumber));
  const FlashDevice device{.multiprocessors = 1};
  const int64_t call = flash_backward_call_memory(
      kSmall, kMemoryType, {.sequences = 1, .query_rows = 200, .key_rows = 300}, device);
  // Q and LSE, then O, dO and delta are packed.
  EXPECT_EQ(varlen_backward_memory(kSmall, kMemoryType, list, device),
            300 * kKv + 200 * (kQ + kNumber + 2 * kO + kNumber) + 200 * kNumber + call);
}

TEST(FlashMemory, of_flash_attention_4_has_sums_of_keys_and_no_o) {
  constexpr int64_t kTokens = 131072, kPadded = kTokens + 128;
  const FlashCall call{.sequences = 1, .query_rows = kTokens, .key_rows = kTokens};
  EXPECT_EQ(flash4_backward_call_memory(kShape, kMemoryType, call),
            kTokens * (8192 + 4096) + kPadded * 32 * (128 + 2) * 4 + kPadded * 8 * 256 * 4);
  Shape shape = kSmall;
  shape.num_kv_heads = 2;  // dK and dV are written as they are
  const FlashCall small{.sequences = 1, .query_rows = 10, .key_rows = 20};
  EXPECT_EQ(flash4_backward_call_memory(shape, kMemoryType, small),
            10 * kQ + 20 * 2 * kKv + 138 * 2 * 42 * 4);
  EXPECT_EQ(varlen_backward_memory(kSmall, kMemoryType, shard_tasks(100, false),
                                   {.deterministic = true, .flash4 = true}),
            200 * kNumber +
                flash4_backward_call_memory(kSmall, kMemoryType,
                                            {.sequences = 1, .query_rows = 200, .key_rows = 300}));
}

/// Documents of 504 tokens that adjoin.
TaskList documents_list(int64_t count) {
  TaskList list{.queries = {{.tokens = 504 * count}}, .keys = {{.tokens = 504 * count}}};
  for (int64_t row = 0; row < 504 * count; row += 504)
    list.tasks.push_back({.q_row = row, .q_tokens = 504, .keys = {{.row = row, .tokens = 504}}});
  return list;
}

TEST(FlashMemory, of_more_documents_than_flash_attention_4_takes_at_once_has_all_gradients_packed) {
  const auto call = [](int64_t documents) -> FlashCall {
    return {.sequences = documents, .query_rows = 504 * documents, .key_rows = 504 * documents};
  };
  const TaskList list = documents_list(260), fewer = documents_list(256);
  const auto memory = [](const TaskList& of, const FlashDevice& device) {
    return varlen_backward_memory(kShape, kMemoryType, of, device);
  };
  constexpr int64_t kLse = 504 * 32 * 4, kPacked = 504 * (8192 + 32 * 4);  // for each document
  const int64_t flash4 = flash4_backward_call_memory(kShape, kMemoryType, call(256));
  EXPECT_EQ(memory(fewer, {.flash4 = true}), 256 * kLse + flash4);
  EXPECT_EQ(memory(list, {.flash4 = true}), 256 * kLse + flash4 + 260 * kPacked);
  // ATen's operator takes all at once, unless FlashAttention 4 may compute some of the launches.
  const int64_t o = 260 * 504 * 8192;
  EXPECT_EQ(memory(list, {}),
            260 * kLse + flash_backward_call_memory(kShape, kMemoryType, call(260), {}) + o);
  EXPECT_EQ(memory(list, {.flash4_for_some = true}),
            256 * kLse + flash_backward_call_memory(kShape, kMemoryType, call(256), {}) + o +
                260 * kPacked);
  const TaskList many = documents_list(1000);
  EXPECT_EQ(memory(many, {.flash4_for_some = true}), memory(many, {}))
      << "without its kernels, ATen's operator takes them all at once, which needs more";
}

TEST(EfficientMemory, of_a_list_is_what_a_call_of_its_longest_sequence_makes_beside_all_results) {
  // In fp32, 2 query heads of 40 numbers and 1 key head.
  constexpr int64_t kWideQ = 320, kWideKv = 320, kWideO = 320;
  constexpr ScalarType kFp32 = ScalarType::kFloat32;
  // Two shards; in backward one sequence of 200 queries and 300 keys.
  const TaskList list = shard_tasks(100, false);
  EXPECT_EQ(varlen_forward_memory(kSmall, kFp32, list),
            200 * (kWideO + 2 * kNumber) + 100 * (kWideO + kNumber));
  const int64_t results = 200 * kWideQ + 300 * kWideKv;
  const int64_t call = 200 * (2 * kWideO + 2 * kNumber + kWideQ) + 300 * kWideKv * 3;
  EXPECT_EQ(varlen_backward_memory(kSmall, kFp32, list, {}),
            200 * kWideO + 200 * kNumber + results + call);
}

TEST(FlashMemory, of_a_list_without_launches_is_none) {
  TaskList list = shard_tasks(100, false);
  list.tasks[0].keys = list.tasks[1].keys = {};
  EXPECT_EQ(varlen_forward_memory(kSmall, kMemoryType, list), 0) << "no query sees a key";
  EXPECT_EQ(varlen_backward_memory(kSmall, kMemoryType, list, {}), 0);
  EXPECT_EQ(varlen_backward_memory(kSmall, kMemoryType, {}, {}), 0);
}

}  // namespace
}  // namespace distca::kernels
