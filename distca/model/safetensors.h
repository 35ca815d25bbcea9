#pragma once
// Weights on disk: the safetensors format, one file. Thread rule: one writer a file.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace at {
class Tensor;
}

namespace distca {

/// Writes fp32, fp64 or bf16 tensors atomically: the file is whole or absent. Throws Error(kIo).
void write_safetensors(const std::filesystem::path& path, const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& tensors);

/// All tensors of a file, by name. Throws Error(kCheckpoint) for a file that is missing, cut or not
/// safetensors.
std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path);

}  // namespace distca
