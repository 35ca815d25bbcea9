#pragma once
// Weights on disk: the safetensors format, one file. Thread rule: one writer a file.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "distca/base/file.h"

namespace at {
class Tensor;
}

namespace distca {

/// Free words of a file's header, beside "format", which is always "pt".
using SafetensorsMetadata = std::map<std::string, std::string>;

/// The bytes of the file that write_safetensors makes of the same arguments.
int64_t safetensors_bytes(const std::vector<std::string>& names,
                          const std::vector<at::Tensor>& tensors,
                          const SafetensorsMetadata& metadata = {});

/// Writes fp32, fp64 or bf16 tensors; the file is not committed. Throws Error(kIo).
void write_safetensors(AtomicFile& file, const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& tensors,
                       const SafetensorsMetadata& metadata = {});
/// The same atomically: the file is whole or absent.
void write_safetensors(const std::filesystem::path& path, const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& tensors);

/// The metadata of a file, "format" too; empty if it cannot be read or is no safetensors file.
SafetensorsMetadata read_safetensors_metadata(const std::filesystem::path& path);

/// All tensors of a file, by name. Throws Error(kCheckpoint) for a file that is missing, cut or not
/// safetensors.
std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path);

}  // namespace distca
