#include "distca/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/json_field.h"

namespace distca {
namespace {

constexpr const char* kMetadata = "__metadata__";
constexpr int64_t kMostHeaderBytes = 100'000'000;  // the limit of the format's own library

constexpr std::array<std::pair<const char*, ScalarType>, 3> kTypes = {
    {{"F64", ScalarType::kFloat64},
     {"F32", ScalarType::kFloat32},
     {"BF16", ScalarType::kBFloat16}}};

const char* stored_type(ScalarType type) {
  return std::ranges::find(kTypes, type, &std::pair<const char*, ScalarType>::second)->first;
}

StoredTensor read_tensor(const std::string& name, const JsonField& field) {
  StoredTensor tensor{.name = name, .shape = field["shape"].integers(0, kMostTensorElements)};
  const std::string type = field["dtype"].text();
  tensor.is_float16 = type == "F16";
  const auto found = std::ranges::find_if(
      kTypes, [&](const auto& t) { return (tensor.is_float16 ? "BF16" : type) == t.first; });
  field["dtype"].expect(found != kTypes.end(), "F64, F32, BF16 or F16");
  tensor.type = found->second;
  int64_t numel = 1;
  for (const int64_t size : tensor.shape) {
    field["shape"].expect(size == 0 || numel <= kMostTensorElements / size,
                          "of at most 2^48 elements");
    numel *= size;
  }
  return tensor;
}

}  // namespace

int64_t StoredTensor::numel() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

std::string StoredTensor::type_name() const {
  return is_float16 ? "float16" : std::string(long_name(type));
}

std::string safetensors_header(const std::vector<StoredTensor>& tensors,
                               const SafetensorsMetadata& metadata) {
  Json header = Json::object();
  header[kMetadata] = metadata;
  header[kMetadata]["format"] = "pt";
  int64_t offset = 0;
  for (const StoredTensor& tensor : tensors) {
    const int64_t end = offset + tensor.bytes();
    header[tensor.name] = {{"dtype", tensor.is_float16 ? "F16" : stored_type(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize(round_up(static_cast<int64_t>(text.size()), 8),
              ' ');  // data begin at a multiple of 8
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text;
}

int64_t safetensors_bytes(const std::vector<StoredTensor>& tensors,
                          const SafetensorsMetadata& metadata) {
  auto bytes = static_cast<int64_t>(safetensors_header(tensors, metadata).size());
  for (const StoredTensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> begin, int64_t file_bytes,
                                           std::string_view name) {
  uint64_t size = 0;
  const auto fail = [&](std::string_view what) {
    return Error(ErrorKind::kCheckpoint, "{}: not a whole safetensors file: {}", name, what);
  };
  if (begin.size() < sizeof(size)) throw fail("it has less than 8 bytes");
  std::memcpy(&size, begin.data(), sizeof(size));
  if (size > kMostHeaderBytes || size > begin.size() - sizeof(size))
    throw fail(fmt::format("its header would take {} bytes", size));
  const std::string_view text(reinterpret_cast<const char*>(begin.data()) + sizeof(size), size);
  const Json json = parse_json(text, name, ErrorKind::kCheckpoint);
  const JsonField root(json, name, ErrorKind::kCheckpoint);
  root.expect(json.is_object(), "an object");
  SafetensorsHeader header;
  for (const auto& [key, value] : json.items()) {
    const JsonField field = root[key];
    field.expect(value.is_object(), "an object");
    if (key == kMetadata) {
      for (const auto& [word, said] : value.items()) header.metadata[word] = field[word].text();
      continue;
    }
    const std::vector<int64_t> place = field["data_offsets"].integers(0, file_bytes);
    field["data_offsets"].expect(place.size() == 2 && place[0] <= place[1], "a begin and an end");
    SafetensorsHeader::Entry entry{.tensor = read_tensor(key, field),
                                   .place = {place[0], place[1]}};
    field["data_offsets"].expect(entry.place.size() == entry.tensor.bytes(),
                                 fmt::format("{} bytes apart", entry.tensor.bytes()));
    header.tensors.push_back(std::move(entry));
  }
  std::ranges::stable_sort(header.tensors, {}, &SafetensorsHeader::Entry::place);
  const auto data = static_cast<int64_t>(sizeof(size) + size);
  int64_t end = 0;
  for (SafetensorsHeader::Entry& entry : header.tensors) {
    if (entry.place.begin != end)
      throw fail(
          fmt::format("{} does not begin where the tensor before it ends", entry.tensor.name));
    end = entry.place.end;
    entry.place = {entry.place.begin + data, entry.place.end + data};
  }
  if (data + end != file_bytes)
    throw fail(fmt::format("it has {} bytes and should have {}", file_bytes, data + end));
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path),
      file_(path, ErrorKind::kCheckpoint),
      header_(parse_safetensors_header(file_.bytes(), file_.size(), path.string())) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].tensor.name] = i;
}

const SafetensorsHeader::Entry& SafetensorsFile::at(const std::string& name) const {
  const auto found = index_.find(name);
  DISTCA_THROW_IF(found == index_.end(), ErrorKind::kCheckpoint, "{}: has no tensor {}",
                  path_.string(), name);
  return header_.tensors[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsHeader::Entry& entry) const {
  return file_.bytes().subspan(entry.place.begin, entry.place.size());
}

SafetensorsMetadata read_safetensors_metadata(const std::filesystem::path& path) {
  try {
    return SafetensorsFile(path).metadata();
  } catch (const Error&) {
    return {};
  }
}

}  // namespace distca
