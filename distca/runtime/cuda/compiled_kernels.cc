#include "distca/runtime/cuda/compiled_kernels.h"

#include <ATen/ATen.h>
#include <ATen/dlpack.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/json_field.h"
#include "distca/base/sha256.h"
#include "distca/kernels/kernel_choice.h"

namespace distca {
namespace {

constexpr const char* kFormat = "distca-kernels";
constexpr int64_t kVersion = 1;
constexpr const char* kManifest = "manifest.json";
constexpr const char* kKernelCompiler = "nvidia-cutlass-dsl";
constexpr const char* kHost = "host";  // the architecture of stand-ins

/// Kinds of a value, as TVM FFI numbers them.
enum Kind : int32_t { kNone = 0, kInteger = 1, kNumber = 3, kTensor = 7, kList = 71 };

DLDataType dl_type(at::ScalarType type) {
  const auto bits = static_cast<uint8_t>(8 * c10::elementSize(type));
  const bool is_integer = c10::isIntegralType(type, /*includeBool=*/false);
  const DLDataTypeCode code = type == at::kBFloat16 ? kDLBfloat : is_integer ? kDLInt : kDLFloat;
  return {static_cast<uint8_t>(code), bits, 1};
}

/// CUDA's run-time library of this version, of which PyTorch has loaded one, found by all objects.
bool show_cuda_runtime(int64_t cuda) {
  const std::string name = fmt::format("libcudart.so.{}", cuda);
  return dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr;
}

/// "sm_90"; empty if it is not known.
std::string device_arch(int cuda_device) {
  constexpr int kMajor = 75, kMinor = 76;  // attributes: of the compute capability
  using Attribute = int(int* value, int attribute, int device);  // cudaDeviceGetAttribute
  void* library = RTLD_DEFAULT;
  for (const char* name : {"libcudart.so.13", "libcudart.so.12"})
    if (void* const loaded = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) library = loaded;
  auto* const attribute = reinterpret_cast<Attribute*>(dlsym(library, "cudaDeviceGetAttribute"));
  int major = 0, minor = 0;
  const bool is_known = attribute && attribute(&major, kMajor, cuda_device) == 0 &&
                        attribute(&minor, kMinor, cuda_device) == 0;
  return is_known ? fmt::format("sm_{}{}", major, minor) : "";
}

}  // namespace

struct KernelArguments::Tensor {
  DLTensor tensor{};
  std::vector<int64_t> sizes, strides;
};

/// The list keeps nothing that would have to be freed: the kernel borrows it.
struct KernelArguments::List {
  struct Head {  // TVMFFIObject
    uint64_t references = 1;
    int32_t kind = kList;
    uint32_t zero = 0;
    void (*deleter)(void* self, int flags) = nullptr;
  } head;
  void* data = nullptr;  // TVMFFISeqCell
  int64_t size = 0, capacity = 0;
  void (*data_deleter)(void* data) = nullptr;
  std::vector<Value> values{};
};

KernelArguments& KernelArguments::add(const at::Tensor& tensor) {
  if (!tensor.defined()) return none();
  const auto made = std::make_shared<Tensor>();
  made->sizes = tensor.sizes().vec();
  made->strides = tensor.strides().vec();
  made->tensor = {
      .data = tensor.data_ptr(),
      .device = {tensor.is_cpu() ? kDLCPU : kDLCUDA, std::max<int32_t>(tensor.device().index(), 0)},
      .ndim = static_cast<int32_t>(tensor.dim()),
      .dtype = dl_type(tensor.scalar_type()),
      .shape = made->sizes.data(),
      .strides = made->strides.data(),
      .byte_offset = 0};
  kept_.push_back(made);
  values_.push_back({.kind = kTensor, .pointer = &made->tensor});
  return *this;
}

KernelArguments& KernelArguments::number(double number) {
  values_.push_back({.kind = kNumber, .number = number});
  return *this;
}

KernelArguments& KernelArguments::integer(int64_t integer) {
  values_.push_back({.kind = kInteger, .integer = integer});
  return *this;
}

KernelArguments& KernelArguments::none(int count) {
  values_.resize(values_.size() + static_cast<size_t>(count));
  return *this;
}

KernelArguments& KernelArguments::list_of_none(int count) {
  const auto list = std::make_shared<List>();
  list->values.resize(static_cast<size_t>(count));
  list->data = list->values.data();
  list->size = list->capacity = count;
  kept_.push_back(list);
  values_.push_back({.kind = kList, .pointer = list.get()});
  return *this;
}

/// A shared object, which stays: its code for the device belongs to CUDA by now.
struct CompiledKernels::Object {
  int (*call)(void* self, const KernelArguments::Value* arguments, int32_t count,
              KernelArguments::Value* result) = nullptr;
  void (*set_stream)(void* stream) = nullptr;
  const char* (*error)() = nullptr;
  mutable std::atomic<bool> was_called = false;
};

const CompiledKernels::Object* CompiledKernels::load(const std::filesystem::path& folder,
                                                     const std::string& name,
                                                     const std::string& sha256) {
  const std::filesystem::path file = folder / name;
  std::unique_ptr<const Object>& object = objects_[file.string()];
  if (object) return object.get();
  const std::string remedy =
      fmt::format("distca kernels build --head-dim {} --qheads-per-kvhead {} --out {} --overwrite",
                  head_dim_, group_, folder.string());
  const bool is_whole = sha256_hex(read_file(file, ErrorKind::kConfig)) == sha256;
  DISTCA_THROW_IF(!is_whole, ErrorKind::kConfig, "{} is not the file that {} describes: run {}",
                  file.string(), kManifest, remedy);
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* const said = handle ? nullptr : dlerror();
  DISTCA_THROW_IF(!handle, ErrorKind::kConfig, "{} cannot be loaded: {}", file.string(),
                  said ? said : "the system's loader does not say why");
  auto made = std::make_unique<Object>();
  const auto find = [&](const char* symbol, auto** function) {
    *function =
        reinterpret_cast<std::remove_reference_t<decltype(**function)>*>(dlsym(handle, symbol));
    DISTCA_THROW_IF(!*function, ErrorKind::kConfig, "{} has no {}: run {}", file.string(), symbol,
                    remedy);
  };
  find("__tvm_ffi_func", &made->call);
  find("distca_kernel_stream", &made->set_stream);
  find("distca_kernel_error", &made->error);
  object = std::move(made);
  return object.get();
}

CompiledKernels::CompiledKernels(const std::filesystem::path& folder) {
  const std::filesystem::path manifest = folder / kManifest;
  const std::string file = manifest.string();
  const Json json = read_json(manifest, ErrorKind::kConfig);
  const JsonField all(json, file, ErrorKind::kConfig);
  all["format"].expect(all["format"].text() == kFormat, fmt::format("\"{}\"", kFormat));
  all["version"].expect(all["version"].integer() == kVersion, std::to_string(kVersion));
  const JsonField packages = all["packages"];
  name_ = fmt::format("{} {}", all["provider"].text(), packages["flash-attn-4"].text());
  if (packages.has(kKernelCompiler))  // stand-ins have none
    name_ += fmt::format(" ({} {})", kKernelCompiler, packages[kKernelCompiler].text());
  arch_ = all["arch"].text();
  head_dim_ = all["head_dim"].integer(1, 1024);
  group_ = all["heads_of_a_key_head"].integer(1, 1024);
  const std::optional<ScalarType> type = scalar_type(all["dtype"].text());
  all["dtype"].expect(type.has_value(), "a number type");
  type_ = *type;
  const int64_t cuda = all["cuda"].integer(1, 1000);
  const bool has_runtime = show_cuda_runtime(cuda);
  for (size_t mask = 0; mask < kKernelMasks.size(); ++mask) {
    const JsonField of_mask = all["masks"][kKernelMasks[mask]];
    const std::vector<int64_t> tiles = of_mask["tiles"].integers(1, 4096);
    of_mask["tiles"].expect(tiles.size() == 2, "two numbers");
    masks_[mask] = {.query_tile = tiles[0], .key_tile = tiles[1]};
    for (size_t step = 0; step < kKernelSteps.size(); ++step) {
      const bool is_needed =
          step != static_cast<size_t>(KernelStep::kBehindBackwardKv) || group_ > 1;
      if (!is_needed && !of_mask["kernels"].has(kKernelSteps[step])) continue;
      const std::string& name = of_mask["kernels"][kKernelSteps[step]].text();
      DISTCA_THROW_IF(!has_runtime && arch_ != kHost, ErrorKind::kConfig,
                      "{} needs the run-time library of CUDA {}, and this PyTorch has another one",
                      folder.string(), cuda);
      masks_[mask].steps[step] = load(folder, name, all["sha256"][name].text());
    }
  }
}

CompiledKernels::~CompiledKernels() = default;

std::string CompiledKernels::fault(const kernels::Shape& shape, ScalarType type) const {
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  if (shape.softcap == 0 && shape.head_dim_qk == head_dim_ && shape.head_dim_v == head_dim_ &&
      group == group_ && type == type_)
    return {};
  return fmt::format("are for head_dim {} in {}, {} heads for each key head, and no softcap",
                     head_dim_, long_name(type_), group_);
}

std::string CompiledKernels::device_fault(int cuda_device) const {
  if (cuda_device < 0) return {};
  const std::string device = device_arch(cuda_device);
  // "sm_90a" is sm_90, and no later one.
  if (!device.empty() && arch_.starts_with(device) && arch_.size() <= device.size() + 1) return {};
  return fmt::format("are for {}, and the device is {}", arch_,
                     device.empty() ? "of an unknown kind" : device);
}

std::pair<int64_t, int64_t> CompiledKernels::tiles(KernelMask mask) const {
  const OfMask& of = masks_[static_cast<size_t>(mask)];
  return {of.query_tile, of.key_tile};
}

void CompiledKernels::call(KernelMask mask, KernelStep step, const KernelArguments& arguments,
                           void* stream) const {
  const Object* const object = masks_[static_cast<size_t>(mask)].steps[static_cast<size_t>(step)];
  const char* const name = kKernelSteps[static_cast<size_t>(step)];
  DISTCA_CHECK(object != nullptr, "no kernel {} of the mask {}", name,
               kKernelMasks[static_cast<size_t>(mask)]);
  // The first call brings the code to the device, and ranks that are threads share the object.
  static std::mutex first_calls;
  std::unique_lock first_call(first_calls, std::defer_lock);
  if (!object->was_called) first_call.lock();
  object->set_stream(stream);
  KernelArguments::Value result;
  const int code = object->call(nullptr, arguments.values_.data(),
                                static_cast<int32_t>(arguments.values_.size()), &result);
  if (code == 0) object->was_called = true;
  DISTCA_THROW_IF(code != 0, ErrorKind::kConfig, "the kernel {} of {} refuses its call: {}", name,
                  name_, object->error());
}

FoundKernels find_compiled_kernels(const kernels::Shape& shape, ScalarType type, int cuda_device) {
  if (shape.head_dim_qk != shape.head_dim_v || shape.softcap != 0 || type != ScalarType::kBFloat16)
    return {.reason = "it computes bfloat16 with one head_dim and no softcap"};
  if (const std::string arch = cuda_device < 0 ? "" : device_arch(cuda_device);
      !arch.empty() && arch != "sm_90")
    return {.reason = fmt::format("it is for Hopper (sm_90), and the device is {}", arch)};
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  const std::filesystem::path folder = compiled_kernels_folder(shape.head_dim_qk, type, group);
  std::error_code denied;
  if (!std::filesystem::exists(folder, denied)) {
    if (shape.head_dim_qk != 64 && shape.head_dim_qk != 128)
      return {.reason = fmt::format("it has kernels for heads of 64 and 128, not of {}",
                                    shape.head_dim_qk)};
    return {.reason = fmt::format("there is no {}, as distca kernels build --head-dim {} "
                                  "--qheads-per-kvhead {} makes it",
                                  folder.string(), shape.head_dim_qk, group)};
  }
  try {
    auto kernels = std::make_unique<const CompiledKernels>(folder);
    for (const std::string& fault :
         {kernels->fault(shape, type), kernels->device_fault(cuda_device)}) {
      if (!fault.empty())
        return {.reason = fmt::format("the kernels of {} {}", folder.string(), fault)};
    }
    return {.kernels = std::move(kernels)};
  } catch (const Error& error) {
    return {.reason = error.what()};
  }
}

}  // namespace distca
