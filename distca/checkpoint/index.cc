#include "distca/checkpoint/index.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/json_field.h"

namespace distca {
namespace {

constexpr int64_t kVersion = 1;
constexpr const char* kFormat = "distca checkpoint";

int64_t volume(const std::vector<Range>& box) {
  int64_t product = 1;
  for (const Range& side : box) product *= side.size();
  return product;
}

/// The field `key` of the index, `json`: text by name.
std::map<std::string, std::string> texts(const JsonField& root, const Json& json, const char* key) {
  const JsonField field = root[key];
  field.expect(json[key].is_object(), "an object");
  std::map<std::string, std::string> texts;
  for (const auto& [name, value] : json[key].items()) texts[name] = field[name].text();
  return texts;
}

Range range_of(const JsonField& field, int64_t most) {
  field.expect(field.size() == 2, "a begin and a later end");
  const Range range{field.at(0).integer(0, most), field.at(1).integer(0, most)};
  field.expect(!range.empty(), "a begin and a later end");
  return range;
}

StoredTensor tensor_of(const JsonField& field) {
  StoredTensor tensor{.name = field["name"].text(),
                      .shape = field["shape"].integers(1, kMostTensorElements)};
  const auto type = scalar_type(field["type"].text());
  field["type"].expect(type.has_value(), "float64, float32 or bfloat16");
  tensor.type = *type;
  field["shape"].expect(tensor.shape.size() == 1 || tensor.shape.size() == 2, "one or two sizes");
  field["shape"].expect(
      tensor.shape.size() == 1 || tensor.shape[0] <= kMostTensorElements / tensor.shape[1],
      "of at most 2^48 elements");
  return tensor;
}

StoredPiece piece_of(const JsonField& field, const CheckpointIndex& index) {
  StoredPiece piece;
  const JsonField tensor_field = field["tensor"], part_field = field["part"], box = field["box"];
  tensor_field.expect(!index.tensors.empty(), "one of the tensors");
  piece.tensor = tensor_field.integer(0, static_cast<int64_t>(index.tensors.size()) - 1);
  const StoredTensor& tensor = index.tensors[piece.tensor];
  const auto named = std::ranges::find(kStateParts, part_field.text(), part_name);
  part_field.expect(named != kStateParts.end(), "weight, exp_avg or exp_avg_sq");
  piece.part = *named;
  box.expect(box.size() == tensor.shape.size(), "as many sides as the tensor has");
  for (size_t side = 0; side < box.size(); ++side)
    piece.box.push_back(range_of(box.at(side), tensor.shape[side]));
  piece.range = range_of(field["range"], volume(piece.box));
  const JsonField file = field["file"], hash_field = field["hash"];
  piece.file = file.text();
  file.expect(index.files.contains(piece.file), "one of the files");
  piece.hash = std::strtoull(hash_field.text().c_str(), nullptr, 16);
  hash_field.expect(hash_field.text() == fmt::format("{:016x}", piece.hash),
                    "16 hexadecimal digits");
  return piece;
}

std::string describe(const std::vector<Range>& box) {
  std::string sides;
  for (const Range& side : box)
    sides += fmt::format("{}{}:{}", sides.empty() ? "" : ",", side.begin, side.end);
  return fmt::format("[{}]", sides);
}

using Box = std::vector<Range>;

/// Why boxes of one or two sides, each with the ranges that pieces hold of it, overlap; "" if they
/// do not. In the order of their first sides, a box is compared with its neighbours among those
/// that have not ended yet.
std::string overlap_of(const std::map<Box, std::vector<Range>>& boxes) {
  std::map<int64_t, const Box*> open;           // by the begin of the last side
  std::multimap<int64_t, int64_t> open_by_end;  // the keys of `open`, by the end of the first side
  for (const auto& [box, _] : boxes) {
    const auto last_side = [](const Box& b) { return b.size() == 1 ? Range{0, 1} : b[1]; };
    while (!open_by_end.empty() && open_by_end.begin()->first <= box[0].begin) {
      open.erase(open_by_end.begin()->second);
      open_by_end.erase(open_by_end.begin());
    }
    const Range columns = last_side(box);
    auto other = open.lower_bound(columns.begin);
    if (other == open.end() || other->first >= columns.end)
      other = other == open.begin() ? open.end() : std::prev(other);
    if (other != open.end() && !intersect(last_side(*other->second), columns).empty())
      return fmt::format("boxes {} and {} overlap", describe(*other->second), describe(box));
    open[columns.begin] = &box;
    open_by_end.emplace(box[0].end, columns.begin);
  }
  return "";
}

/// Why ranges do not fill [0, size) exactly once; "" if they do.
std::string gap_in(std::vector<Range> ranges, int64_t size) {
  std::ranges::sort(ranges);
  int64_t end = 0;
  for (const Range& range : ranges) {
    if (range.begin > end) return fmt::format("element {} is in no piece", end);
    if (range.begin < end) return fmt::format("element {} is in two pieces", range.begin);
    end = range.end;
  }
  return end < size ? fmt::format("element {} is in no piece", end) : "";
}

/// Why the boxes, with the ranges that pieces hold of each, do not fill a tensor exactly once.
std::string gap_in(const std::map<Box, std::vector<Range>>& boxes, int64_t numel) {
  if (std::string overlap = overlap_of(boxes); !overlap.empty()) return overlap;
  int64_t held = 0;
  for (const auto& [box, ranges] : boxes) {
    if (const std::string gap = gap_in(ranges, volume(box)); !gap.empty())
      return fmt::format("of box {}, {}", describe(box), gap);
    held += volume(box);
  }
  return held < numel ? fmt::format("{} of {} elements are in no piece", numel - held, numel) : "";
}

}  // namespace

std::string_view part_name(StatePart part) {
  constexpr std::array<std::string_view, 3> kNames = {"weight", "exp_avg", "exp_avg_sq"};
  return kNames[static_cast<size_t>(part)];
}

std::vector<Range> whole_box(const StoredTensor& tensor) {
  std::vector<Range> box;
  for (const int64_t size : tensor.shape) box.push_back({0, size});
  return box;
}

std::string stored_name(const CheckpointIndex& index, const StoredPiece& piece) {
  const StoredTensor& tensor = index.tensors[piece.tensor];
  std::string name = tensor.name;
  if (piece.part != StatePart::kWeight) name += fmt::format(".{}", part_name(piece.part));
  if (piece.box != whole_box(tensor)) name += describe(piece.box);
  if (piece.range != Range{0, volume(piece.box)})
    name += fmt::format("({}:{})", piece.range.begin, piece.range.end);
  return name;
}

StoredTensor stored_tensor(const CheckpointIndex& index, const StoredPiece& piece) {
  StoredTensor stored{.name = stored_name(index, piece), .type = index.tensors[piece.tensor].type};
  if (piece.range == Range{0, volume(piece.box)}) {
    for (const Range& side : piece.box) stored.shape.push_back(side.size());
  } else {
    stored.shape = {piece.range.size()};
  }
  return stored;
}

std::vector<StoredPiece> owned_pieces(const std::vector<StoredTensor>& tensors, int owner,
                                      int num_owners, const std::string& file) {
  int64_t total = 0;
  std::vector<int64_t> begins;
  for (const StoredTensor& tensor : tensors) {
    begins.push_back(total);
    total += tensor.numel();
  }
  const int64_t each = round_up(ceil_div(total, num_owners), kOwnedBlock);
  const Range owned{owner * each, (owner + 1) * each};
  std::vector<StoredPiece> pieces;
  add_pieces(tensors, begins, owned, file, pieces);
  return pieces;
}

void add_pieces(const std::vector<StoredTensor>& tensors, const std::vector<int64_t>& begins,
                const Range& owned, const std::string& file, std::vector<StoredPiece>& pieces) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Range held = intersect(owned, {begins[i], begins[i] + tensors[i].numel()});
    if (held.empty()) continue;
    for (const StatePart part : kStateParts) {
      pieces.push_back({.tensor = static_cast<int64_t>(i),
                        .part = part,
                        .box = whole_box(tensors[i]),
                        .range = {held.begin - begins[i], held.end - begins[i]},
                        .file = file});
    }
  }
}

void check_coverage(const CheckpointIndex& index, std::string_view name) {
  std::map<std::pair<int64_t, StatePart>, std::map<Box, std::vector<Range>>> held;
  for (const StoredPiece& piece : index.pieces)
    held[{piece.tensor, piece.part}][piece.box].push_back(piece.range);
  for (size_t i = 0; i < index.tensors.size(); ++i) {
    const StoredTensor& tensor = index.tensors[i];
    for (const StatePart part : kStateParts) {
      const std::string gap = gap_in(held[{static_cast<int64_t>(i), part}], tensor.numel());
      DISTCA_THROW_IF(!gap.empty(), ErrorKind::kCheckpoint, "{}: {} ({}): {}", name, tensor.name,
                      part_name(part), gap);
    }
  }
}

Json to_json(const CheckpointIndex& index) {
  Json json = {{"format", kFormat},        {"version", kVersion},
               {"step", index.step},       {"updates", index.updates},
               {"run_id", index.run_id},   {"config", index.config},
               {"machine", index.machine}, {"data", index.data},
               {"trainer", index.trainer}, {"hugging_face", index.hugging_face},
               {"tensors", Json::array()}, {"pieces", Json::array()},
               {"files", index.files}};
  for (const StoredTensor& tensor : index.tensors) {
    json["tensors"].push_back(
        {{"name", tensor.name}, {"type", long_name(tensor.type)}, {"shape", tensor.shape}});
  }
  for (const StoredPiece& piece : index.pieces) {
    Json box = Json::array();
    for (const Range& side : piece.box) box.push_back({side.begin, side.end});
    json["pieces"].push_back({{"tensor", piece.tensor},
                              {"part", part_name(piece.part)},
                              {"box", box},
                              {"range", {piece.range.begin, piece.range.end}},
                              {"file", piece.file},
                              {"hash", fmt::format("{:016x}", piece.hash)}});
  }
  return json;
}

CheckpointIndex parse_checkpoint_index(std::string_view text, std::string_view name) {
  const Json json = parse_json(text, name, ErrorKind::kCheckpoint);
  const JsonField root(json, name, ErrorKind::kCheckpoint);
  root.expect(json.is_object() && json.value("format", Json()) == kFormat,
              "a checkpoint's index of distca");
  root["version"].expect(json["version"] == kVersion,
                         fmt::format("{}, the one that this distca reads", kVersion));
  constexpr int64_t kMost = int64_t{1} << 53;
  CheckpointIndex index{.step = root["step"].integer(1, kMost),
                        .updates = root["updates"].integer(0, kMost),
                        .run_id = root["run_id"].text(),
                        .config = texts(root, json, "config"),
                        .machine = texts(root, json, "machine"),
                        .data = root["data"].text()};
  for (const char* const key : {"trainer", "hugging_face"})
    root[key].expect(json[key].is_object(), "an object");
  index.trainer = json["trainer"];
  index.hugging_face = json["hugging_face"];
  root["files"].expect(json["files"].is_object(), "an object");
  for (const auto& [file, bytes] : json["files"].items()) {
    const JsonField field = root["files"][file];
    const bool has_folder = file.find_first_of(std::string_view("/\0", 2)) != std::string::npos;
    field.expect(!file.empty() && !has_folder && !file.starts_with('.'),
                 "of a file in the checkpoint's folder");
    index.files[file] = field.integer(0, kMost);
  }
  const JsonField tensors = root["tensors"], pieces = root["pieces"];
  for (size_t i = 0; i < tensors.size(); ++i) index.tensors.push_back(tensor_of(tensors.at(i)));
  for (size_t i = 0; i < pieces.size(); ++i) index.pieces.push_back(piece_of(pieces.at(i), index));
  return index;
}

CheckpointIndex read_checkpoint_index(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kIndexFile;
  CheckpointIndex index =
      parse_checkpoint_index(read_file(path, ErrorKind::kCheckpoint), path.string());
  check_coverage(index, path.string());
  return index;
}

}  // namespace distca
