#pragma once
// Reads and writes weights on disk, as one file in the safetensors format. Thread rule: one writer
// a file.
//
//     write_safetensors("model.safetensors", model.parameter_names(), model.parameters());
//     const auto tensors = read_safetensors("model.safetensors");  // by name

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

/// Free text in the header of a file, by key. "format" is always there too, and is "pt".
using SafetensorsMetadata = std::map<std::string, std::string>;

/// The size in bytes of the file that write_safetensors makes of the same arguments.
int64_t safetensors_bytes(const std::vector<std::string>& names,
                          const std::vector<at::Tensor>& tensors,
                          const SafetensorsMetadata& metadata = {});

/// Writes tensors in fp32, fp64 or bf16, but does not commit the file. Throws Error(kIo).
void write_safetensors(AtomicFile& file, const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& tensors,
                       const SafetensorsMetadata& metadata = {});
/// Writes a file that is either complete or absent. Throws Error(kIo).
void write_safetensors(const std::filesystem::path& path, const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& tensors);

/// The metadata of a file, with "format". Empty if the file cannot be read or is not safetensors.
SafetensorsMetadata read_safetensors_metadata(const std::filesystem::path& path);

}  // namespace distca
