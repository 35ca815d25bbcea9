#include "distca/model/safetensors.h"

#include <ATen/ATen.h>

#include <cstring>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/json.h"

namespace distca {
namespace {

const char* stored_name(at::ScalarType type) {
  DISTCA_CHECK(type == at::kFloat || type == at::kDouble || type == at::kBFloat16,
               "safetensors: type {} is not written", static_cast<int>(type));
  return type == at::kFloat ? "F32" : type == at::kDouble ? "F64" : "BF16";
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
    const MappedFile file(path);
    uint64_t size = 0;  // of the header, which follows
    if (file.bytes().size() < sizeof(size)) return {};
    std::memcpy(&size, file.bytes().data(), sizeof(size));
    if (size > file.bytes().size() - sizeof(size)) return {};
    const auto header = file.bytes().subspan(sizeof(size), size);
    const std::string_view text(reinterpret_cast<const char*>(header.data()), size);
    return Json::parse(text).at("__metadata__").get<SafetensorsMetadata>();
  } catch (const Error&) {
    return {};
  } catch (const Json::exception&) {
    return {};
  }
}

}  // namespace distca
