#pragma once
// Stand-ins for FlashAttention 4's compiled kernels (test_kernels/standin.cc), found as such
// kernels are. Thread rule: one thread.
//
//     const StandInKernels kernels(/*group=*/2, /*head_dim=*/16);
//     const AsOnDevice as_on_device;
//     AttentionKernel kernel({.choice = KernelChoice::kFa4, .shape = shape, .type = bf16});

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "distca/base/file.h"
#include "distca/base/json.h"
#include "distca/base/sha256.h"
#include "distca/kernels/kernel_choice.h"
#include "distca/runtime/cuda/compiled_kernels.h"

namespace distca {

/// The manifest of a folder in which stand-ins compute with so many heads for each key head.
inline Json stand_in_manifest(int64_t group, int64_t head_dim = 16) {
  Json json = {{"format", "distca-kernels"},
               {"version", 1},
               {"provider", "fa4"},
               {"packages", {{"flash-attn-4", "stand-in"}}},
               {"arch", "host"},
               {"cuda", 13},
               {"head_dim", head_dim},
               {"dtype", "bfloat16"},
               {"heads_of_a_key_head", group},
               {"masks", Json::object()},
               {"sha256", Json::object()}};
  for (const std::string mask : kKernelMasks) {
    const bool is_causal = mask == "causal";
    const std::string file = is_causal ? DISTCA_KERNELS_CAUSAL : DISTCA_KERNELS_FULL;
    json["sha256"][file] = sha256_hex(read_file(file, ErrorKind::kIo));
    Json& of_mask = json["masks"][mask];
    of_mask["tiles"] = {is_causal ? 64 : 80, 128};
    for (const char* step : kKernelSteps) of_mask["kernels"][step] = file;
  }
  return json;
}

/// A folder with their manifest, which DISTCA_KERNELS names while this lives.
class StandInKernels {
 public:
  explicit StandInKernels(int64_t group = 2, int64_t head_dim = 16) {
    setenv("DISTCA_KERNELS", folder_.c_str(), /*overwrite=*/1);
    const std::filesystem::path folder =
        compiled_kernels_folder(head_dim, ScalarType::kBFloat16, group);
    std::filesystem::create_directories(folder);
    write_file_atomically(folder / "manifest.json",
                          canonical_json(stand_in_manifest(group, head_dim)));
  }
  ~StandInKernels() {
    unsetenv("DISTCA_KERNELS");
    std::filesystem::remove_all(folder_);
  }
  StandInKernels(const StandInKernels&) = delete;
  StandInKernels& operator=(const StandInKernels&) = delete;

 private:
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("distca_stand_ins_" + std::to_string(getpid()));
};

}  // namespace distca
