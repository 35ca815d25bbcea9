// Runs FlashAttention 4's operator on the CPU, over shared objects that stand in for its compiled
// kernels (test_kernels/standin.cc). Results are compared with whole matrices.

#include "distca/runtime/cuda/flash4_operator.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <random>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/json.h"
#include "distca/base/sha256.h"
#include "distca/comm/as_on_device.h"
#include "distca/kernels/attention_testing.h"
#include "distca/kernels/merge.h"
#include "distca/kernels/varlen_memory.h"
#include "distca/runtime/attention_kernel.h"
#include "distca/runtime/attention_tensors.h"
#include "distca/runtime/cuda/compiled_kernels.h"
#include "distca/runtime/cuda/cuda_attention.h"
#include "distca/runtime/cuda/flash4_testing.h"
#include "distca/runtime/cuda/kernel_profiles.h"
#include "distca/runtime/cuda/task_launches.h"
#include "distca/runtime/cuda/varlen_attention.h"
#include "distca/runtime/memory_meter.h"
#include "distca/runtime/operator_count.h"

namespace distca {
namespace {

using kernels::Mask;
using kernels::Shape;
using kernels::Task;
using kernels::TaskList;
using kernels::testing::Bounds;
using kernels::testing::Case;
using kernels::testing::Document;
using kernels::testing::Tensor;
using kernels::testing::WholeMatrix;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kCpu = -1;
constexpr ScalarType kType = ScalarType::kBFloat16;

class Flash4Test : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
    at::globalContext().setDeterministicAlgorithms(false, false);
  }
  std::filesystem::path written(const Json& manifest) const {
    write_file_atomically(folder_ / "manifest.json", canonical_json(manifest));
    return folder_;
  }
  std::string refusal(const Json& manifest) const {
    try {
      const CompiledKernels kernels(written(manifest));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      return error.what();
    }
    return "none";
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("distca_kernels_" + std::to_string(getpid()));
};

void expect_like_whole_matrix(const Case& c, const std::vector<Range>& cuts, const Flash4& flash4) {
  Document doc(c);
  const WholeMatrix whole(doc);
  const Bounds bounds(c, whole,
                      {.sums = kernels::accumulator_type(kType),
                       .store = kType,
                       .store_roundings = 2 + 2 * static_cast<int64_t>(cuts.size())});
  std::vector<Task> tasks;
  for (const Range& cut : cuts)
    tasks.push_back(doc.task(
        cut, {0, c.mask.causal ? std::min(c.q_position + cut.end, c.k_tokens) : c.k_tokens}));
  const TaskList list = doc.list(std::move(tasks));
  cuda_forward(c.shape, kType, kType, list, kCpu, nullptr, flash4);
  kernels::testing::expect_forward(doc, whole, bounds);
  kernels::testing::set_backward_inputs(doc, whole);
  cuda_backward(c.shape, kType, list, kCpu, nullptr, flash4);
  kernels::testing::expect_backward(doc, whole, bounds);
}

/// Two tasks with all queries and a part of the keys each, whose results are merged.
void expect_split_keys_like_whole_matrix(const Case& c, int64_t first_keys, const Flash4& flash4) {
  Document doc(c);
  const WholeMatrix whole(doc);
  const Bounds bounds(
      c, whole, {.sums = kernels::accumulator_type(kType), .store = kType, .store_roundings = 8});
  kernels::testing::set_backward_inputs(doc, whole);
  const ScalarType partial = kernels::accumulator_type(kType);
  const int64_t heads = c.shape.num_heads, dim = c.shape.head_dim_v;
  Tensor o[2], lse[2];
  std::vector<kernels::Partial> parts;
  for (const int i : {0, 1}) {
    const Range keys = i == 0 ? Range{0, first_keys} : Range{first_keys, c.k_tokens};
    TaskList list = doc.list(doc.all_queries(), keys);
    cuda_backward(c.shape, kType, list, kCpu, nullptr, flash4);
    o[i] = Tensor(partial, c.q_tokens, heads, dim), lse[i] = Tensor(partial, c.q_tokens, heads, 1);
    list.queries[0].o = o[i].rows(), list.queries[0].lse = lse[i].rows();
    cuda_forward(c.shape, kType, partial, list, kCpu, nullptr, flash4);
    parts.push_back({o[i].rows(), partial, lse[i].rows()});
  }
  kernels::testing::expect_backward(doc, whole, bounds);
  kernels::merge_partials({c.q_tokens, heads, dim}, kType, parts,
                          {doc.o.rows(), kType, doc.lse.rows()});
  kernels::testing::expect_forward(doc, whole, bounds);
}

/// All kinds, with windows whose limits, added to a row, are more than 32 bits hold.
std::vector<Mask> masks() {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return {{},
          {.causal = true, .window_left = 9},
          {.causal = false},
          {.causal = true, .window_left = 300},
          {.causal = true, .window_left = kMost},
          {.causal = false, .window_left = kMost, .window_right = kMost},
          {.causal = false, .window_left = 9, .window_right = kMost}};
}

TEST_F(Flash4Test, equals_the_whole_matrix_for_every_mask_head_grouping_and_order) {
  for (const int64_t key_heads : {1, 2, 4}) {
    const CompiledKernels kernels(written(stand_in_manifest(4 / key_heads)));
    for (const bool is_deterministic : {false, true}) {
      at::globalContext().setDeterministicAlgorithms(is_deterministic, false);
      for (const Mask& mask : masks()) {
        for (const int64_t gap : {0, 24, 3}) {  // 3: rows that are not aligned
          Case c{.type = kType,
                 .q_position = 10,
                 .q_tokens = 60,
                 .k_tokens = 70,
                 .mask = mask,
                 .gap = gap};
          c.shape.num_kv_heads = key_heads;
          expect_like_whole_matrix(c, {{0, 60}}, {&kernels});
          expect_like_whole_matrix(c, {{30, 60}, {20, 30}, {0, 13}, {13, 14}, {14, 20}},
                                   {&kernels});
        }
      }
    }
  }
}

TEST_F(Flash4Test, random_launches_equal_the_whole_matrix) {
  const CompiledKernels kernels(written(stand_in_manifest(2)));
  std::mt19937 random(7);
  const auto below = [&](int64_t count) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(count));
  };
  for (int set = 0; set < 1000 && !HasFailure(); ++set) {
    SCOPED_TRACE(set);
    Case c{.type = kType, .q_position = below(100), .gap = 8 * below(3)};
    c.q_tokens = 1 + below(60);
    c.k_tokens = c.q_position + c.q_tokens;
    if (below(2) == 0) c.mask.window_left = below(80);
    for (int64_t cut = 1 + below(60); cut < c.k_tokens && below(3) > 0; cut += 1 + below(60))
      c.key_cuts.push_back(cut);
    std::vector<Range> cuts;
    for (int64_t begin = 0; begin < c.q_tokens;) {
      const int64_t end = std::min(c.q_tokens, begin + 1 + below(40));
      cuts.push_back({begin, end});
      begin = end;
    }
    std::ranges::shuffle(cuts, random);
    at::globalContext().setDeterministicAlgorithms(below(2) == 0, false);
    expect_like_whole_matrix(c, cuts, {&kernels});
    if (below(4) == 0) expect_split_keys_like_whole_matrix(c, below(c.k_tokens + 1), {&kernels});
  }
}

TEST_F(Flash4Test, a_launch_has_no_more_sequences_than_kernels_take_without_tables) {
  const CompiledKernels kernels(written(stand_in_manifest(2)));
  const Case c{.type = kType, .q_tokens = 600, .k_tokens = 600, .mask = {.window_left = 3}};
  std::vector<Range> cuts;
  for (int64_t begin = 0; begin < 600; begin += 2) cuts.push_back({begin, begin + 2});
  expect_like_whole_matrix(c, cuts, {&kernels});
}

TEST_F(Flash4Test, launches_go_to_the_kernel_that_was_measured_to_be_fastest_for_them) {
  const CompiledKernels kernels(written(stand_in_manifest(2)));
  const Case c{.type = kType, .q_tokens = 600, .k_tokens = 600};
  using enum KernelChoice;
  for (const MeasuredKernels& measured :
       {MeasuredKernels{}, MeasuredKernels{.forward = {kFa4, kAten}, .backward = {kAten, kFa4}},
        MeasuredKernels{.forward = {kAten, kFa4}, .backward = {kFa4, kAten}}}) {
    const auto op = fused_operator(c.shape, kType, {&kernels, &measured});
    for (const int length : {0, 1, 2}) {  // classes of up to 512 and 2,048 rows, and more
      const kernels::VarlenLaunch launch{.max_queries = int64_t{300} << (2 * length),
                                         .max_keys = 300};
      const size_t known = static_cast<size_t>(std::min(length, 1));
      const bool is_flash4 = !measured.backward.empty() && measured.backward[known] == kFa4;
      EXPECT_EQ(op->query_tile(launch), is_flash4 ? 80 : 0) << length;
    }
    expect_like_whole_matrix(c, {{0, 200}, {200, 210}, {210, 600}}, {&kernels, &measured});
  }
}

TEST_F(Flash4Test, kernels_are_found_by_their_shape_or_it_is_said_why_not) {
  const kernels::Shape shape = Case{}.shape;  // 4 heads of 16, 2 key heads
  const StandInKernels stand_ins;
  const std::filesystem::path folder = compiled_kernels_folder(16, kType, 2);
  EXPECT_EQ(folder.filename(), "fa4-sm_90-d16-bfloat16-g2");
  kernels::Shape other_heads = shape;
  other_heads.num_kv_heads = 1;
  EXPECT_THAT(find_compiled_kernels(other_heads, kType, kCpu).reason,
              HasSubstr("for heads of 64 and 128, not of 16"));
  other_heads.head_dim_qk = other_heads.head_dim_v = 64;
  EXPECT_THAT(find_compiled_kernels(other_heads, kType, kCpu).reason,
              AllOf(HasSubstr("there is no "), HasSubstr("fa4-sm_90-d64-bfloat16-g4"),
                    HasSubstr("distca kernels build --head-dim 64 --qheads-per-kvhead 4")));
  const FoundKernels found = find_compiled_kernels(shape, kType, kCpu);
  ASSERT_NE(found.kernels, nullptr) << found.reason;
  // Stand-ins are for no device, and it is said what the kernels are for.
  EXPECT_THAT(find_compiled_kernels(shape, kType, 0).reason,
              AllOf(HasSubstr("are for host"), HasSubstr("the device is")));
  EXPECT_THAT(find_compiled_kernels(shape, ScalarType::kFloat32, kCpu).reason,
              HasSubstr("bfloat16"));
  write_file_atomically(folder / "manifest.json", "{");
  EXPECT_THAT(find_compiled_kernels(shape, kType, kCpu).reason, HasSubstr("manifest.json"));

  // A free choice goes on with ATen's kernel; one by name does not, for heads that kernels have.
  KernelRequest request{.shape = shape, .type = kType, .cuda_device = 0};
  const AttentionKernel other(request);
  EXPECT_EQ(other.name(), "aten-cuda");
  EXPECT_THAT(other.passed_over(),
              AllOf(HasSubstr("FlashAttention 4 is passed over: "), HasSubstr("manifest.json")));
  request.choice = KernelChoice::kFa4;
  request.shape.head_dim_qk = request.shape.head_dim_v = 64;
  EXPECT_THROW(AttentionKernel{request}, Error);
}

TEST_F(Flash4Test, a_free_choice_takes_it_for_the_launches_for_which_a_profile_says_so) {
  const StandInKernels stand_ins;
  const AsOnDevice as_on_device;
  const Case c{.type = kType, .q_tokens = 60, .k_tokens = 60};
  KernelRequest request{.shape = c.shape, .type = kType};
  using enum KernelChoice;
  for (const auto& [measured, reason] :
       {std::pair(MeasuredKernels{}, "plan.profile names no profile"),
        std::pair(MeasuredKernels{.forward = {kAten, kAten}, .backward = {kAten}},
                  "ATen's kernel is faster in the profile")}) {
    request.measured = measured;
    const AttentionKernel other(request);
    EXPECT_THAT(other.passed_over(), HasSubstr(reason));
    EXPECT_THAT(other.name(), ::testing::StartsWith("cpu-"));
  }
  Document doc(c);
  const WholeMatrix whole(doc);
  const Bounds bounds(
      c, whole, {.sums = kernels::accumulator_type(kType), .store = kType, .store_roundings = 4});
  for (const MeasuredKernels& measured :
       {MeasuredKernels{.forward = {kFa4, kAten}, .backward = {kAten}},
        MeasuredKernels{.forward = {kAten}, .backward = {kAten, kFa4}}}) {
    request.measured = measured;
    AttentionKernel kernel(request);
    EXPECT_EQ(kernel.passed_over(), "");
    EXPECT_EQ(kernel.name(), "fa4 stand-in and aten-cuda by length");
    kernel.forward(kType, doc.list());
    kernels::testing::expect_forward(doc, whole, bounds);
    kernels::testing::set_backward_inputs(doc, whole);
    kernel.backward(doc.list());
    kernels::testing::expect_backward(doc, whole, bounds);
  }
  // Another type has no such kernels, and no line.
  request.type = ScalarType::kFloat32;
  EXPECT_EQ(AttentionKernel(request).passed_over(), "");
}

/// The most that one backward of adjoining documents makes, kernels computing nothing.
int64_t backward_peak(const Shape& shape, const AttentionTensors& tensors, const Flash4& flash4) {
  TaskLaunches launches;
  cuda_prepare(shape, kType, tensors.list, kCpu, Pass::kBackward, &launches, flash4);
  setenv("DISTCA_STAND_INS_COMPUTE_NOTHING", "1", /*overwrite=*/1);
  const MemoryMeter meter(kCpu);
  cuda_backward(shape, kType, tensors.list, kCpu, &launches, flash4);
  unsetenv("DISTCA_STAND_INS_COMPUTE_NOTHING");
  return meter.peak_bytes();
}

TEST_F(Flash4Test, the_memory_of_more_documents_than_a_launch_takes_is_predicted) {
  constexpr int64_t kDocuments = 260, kTokens = 504;
  const CompiledKernels kernels(written(stand_in_manifest(2)));
  const Shape shape = Case{}.shape;
  AttentionTensors tensors(shape, kType, kDocuments * kTokens, kDocuments * kTokens);
  for (int64_t row = 0; row < kDocuments * kTokens; row += kTokens) {
    tensors.list.tasks.push_back(
        {.q_row = row, .q_tokens = kTokens, .keys = {{.row = row, .tokens = kTokens}}});
  }
  const auto predicted = [&](const kernels::FlashDevice& device) {
    return static_cast<double>(kernels::varlen_backward_memory(shape, kType, tensors.list, device));
  };
  const auto measured = static_cast<double>(backward_peak(shape, tensors, {&kernels}));
  fmt::print("predicted {:.1f} MB, measured {:.1f} MB\n", predicted({.flash4 = true}) / 1e6,
             measured / 1e6);
  EXPECT_GE(predicted({.flash4 = true}), measured);
  EXPECT_LE(predicted({.flash4 = true}), 1.1 * measured);  // sequences are padded by 128 at most
  const MeasuredKernels by_length{.forward = {}, .backward = {KernelChoice::kFa4}};
  EXPECT_GE(predicted({.flash4_for_some = true}),
            static_cast<double>(backward_peak(shape, tensors, {&kernels, &by_length})));
  // ATen's launch has all documents, whose dO and delta lie in place.
  EXPECT_LT(predicted({}), predicted({.flash4_for_some = true}));
}

/// The operators of ATen that one pass of a list calls, kernels of FlashAttention 4 not among them.
int64_t operators_of(const Case& c, const std::vector<Range>& cuts, Pass pass, const Flash4& flash4,
                     int64_t& copied_bytes) {
  Document doc(c);
  std::vector<Task> tasks;
  for (const Range& cut : cuts) tasks.push_back(doc.task(cut, {0, cut.end}));
  const TaskList list = doc.list(std::move(tasks));
  TaskLaunches launches;
  cuda_prepare(c.shape, kType, list, kCpu, pass, &launches, flash4);
  const AsOnDevice as_on_device;
  const OperatorCount count;
  copied_bytes = pass == Pass::kForward
                     ? cuda_forward(c.shape, kType, kType, list, kCpu, &launches, flash4)
                     : cuda_backward(c.shape, kType, list, kCpu, &launches, flash4);
  return OperatorCount::total();
}

TEST_F(Flash4Test, a_pass_calls_few_operators_and_copies_no_more_than_with_atens_kernel) {
  const CompiledKernels kernels(written(stand_in_manifest(2)));
  const Case c{.type = kType, .q_tokens = 512, .k_tokens = 512};
  struct Expected {
    const char* name;
    std::vector<Range> cuts;
    int64_t forward, backward;  // operators at most
  };
  for (const auto& [name, cuts, forward, backward] :
       {Expected{"adjoining", {{0, 128}, {128, 256}, {256, 384}, {384, 512}}, 3, 9},
        Expected{"every second", {{128, 256}, {384, 512}}, 6, 21}}) {
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      int64_t copied_by_aten = 0, copied = 0;
      const int64_t aten = operators_of(c, cuts, pass, {}, copied_by_aten);
      const int64_t flash4 = operators_of(c, cuts, pass, {&kernels}, copied);
      fmt::print(
          "{}, {}: {} operators and {} bytes copied with ATen's kernel, {} and {} with "
          "FlashAttention 4\n",
          name, pass == Pass::kForward ? "forward" : "backward", aten, copied_by_aten, flash4,
          copied);
      EXPECT_LE(flash4, pass == Pass::kForward ? forward : backward) << name;
      EXPECT_LE(copied, copied_by_aten) << name;
    }
  }
}

TEST(KernelProfiles, each_class_of_launches_has_its_faster_kernel) {
  AttentionProfile aten{.path = "aten-cuda",
                        .q_tokens = {128, 1024},
                        .kv_tokens = {128, 1024, 4096},
                        .forward_ns = {100, 200, 300, 0, 400, 500},
                        .backward_ns = {100, 200, 300, 0, 400, 500}};
  AttentionProfile flash4 = aten;
  flash4.path = "fa4 4.0";
  flash4.forward_ns = {60, 120, 900, 0, 200, 400};   // short: 0.6 * 0.6 * 3 > 1; long: faster
  flash4.backward_ns = {90, 210, 150, 0, 410, 250};  // by keys: 128 faster, 1,024 not, 4,096 faster
  const AttentionProfile fastest = fastest_kernels(aten, flash4);
  EXPECT_EQ(fastest.path, "fa4 4.0 and aten-cuda");
  EXPECT_EQ(fastest.forward_kernels, (std::vector<std::string>{"aten", "fa4"}));
  EXPECT_EQ(fastest.forward_ns, (std::vector<int64_t>{100, 200, 300, 0, 200, 400}));
  EXPECT_EQ(fastest.backward_kernels, (std::vector<std::string>{"fa4", "aten", "fa4"}));
  EXPECT_EQ(fastest.backward_ns, (std::vector<int64_t>{90, 200, 150, 0, 400, 250}));
}

TEST_F(Flash4Test, kernels_of_another_shape_are_said) {
  const CompiledKernels kernels(written(stand_in_manifest(2)));
  const Case c{.type = kType};
  EXPECT_EQ(kernels.fault(c.shape, kType), "");
  for (int64_t kernels::Shape::*field :
       {&kernels::Shape::num_heads, &kernels::Shape::head_dim_qk}) {
    kernels::Shape other = c.shape;
    other.*field *= 2;
    EXPECT_THAT(kernels.fault(other, kType),
                AllOf(HasSubstr("head_dim 16"), HasSubstr("2 heads for each key head")));
  }
  EXPECT_NE(kernels.fault(c.shape, ScalarType::kFloat32), "");
  EXPECT_EQ(kernels.name(), "fa4 stand-in");
  Json manifest = stand_in_manifest(2);
  manifest["packages"]["nvidia-cutlass-dsl"] = "4.6.0";
  EXPECT_EQ(CompiledKernels(written(manifest)).name(), "fa4 stand-in (nvidia-cutlass-dsl 4.6.0)");
}

TEST_F(Flash4Test, a_folder_that_cannot_be_used_is_refused_in_one_line) {
  EXPECT_THROW(CompiledKernels(folder_ / "missing"), Error);
  Json manifest = stand_in_manifest(2);
  manifest["version"] = 2;
  EXPECT_THAT(refusal(manifest), AllOf(HasSubstr("manifest.json"), HasSubstr("version")));
  manifest = stand_in_manifest(2);
  manifest["masks"].erase("window");
  EXPECT_THAT(refusal(manifest), HasSubstr("window"));
  manifest = stand_in_manifest(2);
  manifest["masks"]["full"]["kernels"].erase("behind_backward_kv");
  EXPECT_THAT(refusal(manifest), HasSubstr("behind_backward_kv is missing"));
  manifest = stand_in_manifest(2);
  manifest["sha256"][DISTCA_KERNELS_CAUSAL] = std::string(64, '0');
  const std::string rebuilt =
      "run distca kernels build --head-dim 16 --qheads-per-kvhead 2 --out " + folder_.string() +
      " --overwrite";
  EXPECT_THAT(refusal(manifest), AllOf(HasSubstr("is not the file that manifest.json describes"),
                                       ::testing::EndsWith(rebuilt)));
  // A file that is no shared object.
  manifest = stand_in_manifest(2);
  write_file_atomically(folder_ / "text.so", "no object");
  manifest["masks"]["full"]["kernels"]["forward"] = "text.so";
  manifest["sha256"]["text.so"] = sha256_hex("no object");
  EXPECT_THAT(refusal(manifest), HasSubstr("cannot be loaded"));
}

TEST_F(Flash4Test, a_kernel_that_refuses_its_call_is_quoted) {
  const CompiledKernels kernels(written(stand_in_manifest(2)));
  KernelArguments arguments;
  arguments.none(3);
  try {
    kernels.call(KernelMask::kFull, KernelStep::kForward, arguments, nullptr);
    ADD_FAILURE() << "called";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("forward"), HasSubstr("Expects 7, 18 or 22")));
  }
}

}  // namespace
}  // namespace distca
