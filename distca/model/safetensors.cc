#include "distca/model/safetensors.h"

#include <ATen/ATen.h>

#include <cstring>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/json.h"

namespace distca {
namespace {

struct StoredType {
  at::ScalarType type;
  const char* name;
};
constexpr StoredType kStoredTypes[] = {
    {at::kFloat, "F32"}, {at::kDouble, "F64"}, {at::kBFloat16, "BF16"}};

const char* stored_name(at::ScalarType type) {
  for (const StoredType& stored : kStoredTypes) {
    if (stored.type == type) return stored.name;
  }
  DISTCA_CHECK(false, "safetensors: type {} is not written", static_cast<int>(type));
  return "";
}

at::ScalarType type_of(const std::string& name, const std::string& path) {
  for (const StoredType& stored : kStoredTypes) {
    if (name == stored.name) return stored.type;
  }
  throw Error(ErrorKind::kCheckpoint, "{}: tensor type {} (known: F32, F64, BF16)", path, name);
}

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

std::string header_of(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors,
                      const SafetensorsMetadata& metadata) {
  DISTCA_CHECK_EQ(names.size(), tensors.size());
  Json header = Json::object();
  header["__metadata__"] = metadata;
  header["__metadata__"]["format"] = "pt";
  int64_t offset = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    const int64_t end = offset + bytes_of(tensors[i]);
    header[names[i]] = {{"dtype", stored_name(tensors[i].scalar_type())},
                        {"shape", tensors[i].sizes().vec()},
                        {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begin at a multiple of 8
  return text;
}

/// What stands between the size of the header and the data.
std::string_view header_text(const MappedFile& file, const std::string& name) {
  uint64_t size = 0;
  if (file.size() >= 8) std::memcpy(&size, file.bytes().data(), 8);
  if (file.size() < 8 || size > static_cast<uint64_t>(file.size()) - 8) {
    throw Error(ErrorKind::kCheckpoint, "{}: {} bytes, too short for a safetensors header", name,
                file.size());
  }
  return {reinterpret_cast<const char*>(file.bytes().data() + 8), size};
}

}  // namespace

int64_t safetensors_bytes(const std::vector<std::string>& names,
                          const std::vector<at::Tensor>& tensors,
                          const SafetensorsMetadata& metadata) {
  auto bytes = static_cast<int64_t>(8 + header_of(names, tensors, metadata).size());
  for (const at::Tensor& tensor : tensors) bytes += bytes_of(tensor);
  return bytes;
}

void write_safetensors(AtomicFile& file, const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& tensors,
                       const SafetensorsMetadata& metadata) {
  const std::string text = header_of(names, tensors, metadata);
  const uint64_t size = text.size();
  file.write(std::as_bytes(std::span(&size, 1)));
  file.write(text);
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor host = tensor.detach().cpu().contiguous();
    file.write(std::span(static_cast<const std::byte*>(host.data_ptr()),
                         host.numel() * host.element_size()));
  }
}

void write_safetensors(const std::filesystem::path& path, const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& tensors) {
  AtomicFile file(path);
  write_safetensors(file, names, tensors);
  file.commit();
}

SafetensorsMetadata read_safetensors_metadata(const std::filesystem::path& path) {
  try {
    const std::string name = path.string();
    const MappedFile file(path, ErrorKind::kCheckpoint);
    const Json header = parse_json(header_text(file, name), name, ErrorKind::kCheckpoint);
    return header.at("__metadata__").get<SafetensorsMetadata>();
  } catch (const Error&) {
    return {};
  } catch (const Json::exception&) {
    return {};
  }
}

std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path) {
  const std::string name = path.string();
  const MappedFile file(path, ErrorKind::kCheckpoint);
  const std::string_view text = header_text(file, name);
  const Json header = parse_json(text, name, ErrorKind::kCheckpoint);
  const std::span<const std::byte> data = file.bytes().subspan(8 + text.size());
  std::map<std::string, at::Tensor> tensors;
  try {
    for (const auto& [key, entry] : header.items()) {
      if (key == "__metadata__") continue;
      const auto shape = entry.at("shape").get<std::vector<int64_t>>();
      const auto offsets = entry.at("data_offsets").get<std::vector<uint64_t>>();
      at::Tensor tensor = at::empty(shape, type_of(entry.at("dtype"), name));
      const uint64_t bytes = tensor.numel() * tensor.element_size();
      if (offsets.size() != 2 || offsets[1] < offsets[0] || offsets[1] - offsets[0] != bytes ||
          offsets[1] > data.size()) {
        throw Error(ErrorKind::kCheckpoint, "{}: tensor {} does not lie within the file (cut?)",
                    name, key);
      }
      std::memcpy(tensor.data_ptr(), data.data() + offsets[0], bytes);
      tensors.emplace(key, std::move(tensor));
    }
  } catch (const Json::exception& error) {
    throw Error(ErrorKind::kCheckpoint, "{}: not a safetensors header: {}", name, error.what());
  }
  return tensors;
}

}  // namespace distca
