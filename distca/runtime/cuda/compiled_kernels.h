#pragma once
// Attention kernels that were compiled ahead of time for one kind of GPU (`distca kernels build`,
// python/distca/_kernels.py): a folder with a shared object for each of them and manifest.json,
// which says what they compute. Neither their compiler nor CUDA's headers are needed here.
//
//     const CompiledKernels kernels("kernels");
//     KernelArguments arguments;
//     arguments.add(q).add(k).add(softmax_scale).none();
//     kernels.call(KernelMask::kCausal, KernelStep::kForward, arguments, stream);
//
// A kernel has the C interface of TVM FFI: it takes a list of tagged values and checks number, type
// and size of each itself. A folder that cannot be used is an Error(kConfig) in one line. Any
// thread may call a kernel.

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "distca/base/scalar_type.h"
#include "distca/kernels/attention.h"

namespace at {
class Tensor;
}

namespace distca {

/// The mask of a launch (kernels/varlen_launches.h): up to the last key that a row may see, all
/// keys, or the two limits that the call gives.
enum class KernelMask : uint8_t { kCausal, kFull, kWindow };
inline constexpr std::array<const char*, 3> kKernelMasks = {"causal", "full", "window"};

enum class KernelStep : uint8_t {
  kForward,
  kBackward,               // sums of dQ, dK and dV, in any order
  kBackwardDeterministic,  // likewise, in the same order each time
  kBehindBackwardQ,        // dQ of its sums
  kBehindBackwardKv,       // dK or dV of their sums; missing where each head has keys of its own
};
inline constexpr std::array<const char*, 5> kKernelSteps = {
    "forward", "backward", "backward_deterministic", "behind_backward_q", "behind_backward_kv"};

/// The values that a kernel is called with. Tensors must live until the call.
class KernelArguments {
 public:
  /// A tensor where it lies; none if it is undefined.
  KernelArguments& add(const at::Tensor& tensor);
  KernelArguments& number(double value);
  KernelArguments& integer(int64_t value);
  KernelArguments& none(int count = 1);
  /// One value that is a list of nothing, so many times.
  KernelArguments& list_of_none(int count);

 private:
  friend class CompiledKernels;
  struct Value {  // TVMFFIAny
    int32_t kind = 0;
    uint32_t zero = 0;
    union {
      int64_t integer = 0;
      double number;
      void* pointer;
    };
  };
  struct Tensor;  // DLTensor, and its sizes
  struct List;    // a TVM FFI array
  std::vector<Value> values_;
  std::vector<std::shared_ptr<void>> kept_;  // the memory that values point to
};

class CompiledKernels {
 public:
  explicit CompiledKernels(const std::filesystem::path& folder);
  ~CompiledKernels();
  CompiledKernels(const CompiledKernels&) = delete;
  CompiledKernels& operator=(const CompiledKernels&) = delete;

  /// "fa4 4.0.0b36 (nvidia-cutlass-dsl 4.6.0)": whose kernels they are, of which version, and by
  /// which compiler: another one makes other machine code.
  const std::string& name() const { return name_; }
  /// Empty if the kernels compute this, else what they compute, in words.
  std::string fault(const kernels::Shape& shape, ScalarType type) const;
  /// Empty if they are for this device, else for which, in words. -1, the CPU, has stand-ins.
  std::string device_fault(int cuda_device) const;
  /// Queries and keys of the blocks in which backward pads its sums.
  std::pair<int64_t, int64_t> tiles(KernelMask mask) const;

  /// Calls a kernel, which launches on `stream` (CUDA's handle). Throws Error(kConfig) with its own
  /// words if it refuses.
  void call(KernelMask mask, KernelStep step, const KernelArguments& arguments, void* stream) const;

 private:
  struct Object;
  struct OfMask {
    int64_t query_tile = 0, key_tile = 0;
    std::array<const Object*, kKernelSteps.size()> steps{};
  };
  const Object* load(const std::filesystem::path& folder, const std::string& name,
                     const std::string& sha256);

  std::string name_, arch_;
  int64_t head_dim_ = 0, group_ = 0;
  ScalarType type_ = ScalarType::kBFloat16;
  std::array<OfMask, kKernelMasks.size()> masks_;
  std::map<std::string, std::unique_ptr<const Object>> objects_;  // by file
};

/// The kernels of compiled_kernels_folder() for a device, or why they cannot be used, in one line.
struct FoundKernels {
  std::unique_ptr<const CompiledKernels> kernels;
  std::string reason;  // empty if there are kernels
};
FoundKernels find_compiled_kernels(const kernels::Shape& shape, ScalarType type, int cuda_device);

}  // namespace distca
