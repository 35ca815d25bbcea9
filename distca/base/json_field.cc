#include "distca/base/json_field.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace distca {
namespace {

/// Returns true if `wanted` lies in `json`, and puts its path from there, such as ".tasks[3].q", in
/// front of `place`.
bool find_place(const Json& json, const Json& wanted, std::string& place) {
  if (&json == &wanted) return true;
  size_t index = 0;
  for (auto item = json.begin(); json.is_structured() && item != json.end(); ++item, ++index) {
    if (!find_place(*item, wanted, place)) continue;
    place = (json.is_object() ? "." + item.key() : fmt::format("[{}]", index)) + place;
    return true;
  }
  return false;
}

}  // namespace

JsonField JsonField::operator[](const std::string& key) const {
  expect(json_.is_object(), "an object");
  const auto found = json_.find(key);
  DISTCA_THROW_IF(found == json_.end(), kind_, "{}: {} is missing", file_, name_of(key));
  return child(*found);
}

bool JsonField::has(const std::string& key) const {
  expect(json_.is_object(), "an object");
  return json_.contains(key);
}

JsonField JsonField::at(size_t index) const { return child(json_.at(index)); }

size_t JsonField::size() const {
  expect(json_.is_array(), "a list");
  return json_.size();
}

int64_t JsonField::integer(int64_t least, int64_t most) const {
  const bool right = json_.is_number_integer() &&
                     !(json_.is_number_unsigned() && json_.get<uint64_t>() > INT64_MAX) &&
                     json_.get<int64_t>() >= least && json_.get<int64_t>() <= most;
  if (!right) {
    const bool any = least == INT64_MIN && most == INT64_MAX;
    expect(false, any ? "an integer" : fmt::format("an integer in {} .. {}", least, most));
  }
  return json_.get<int64_t>();
}

std::vector<int64_t> JsonField::integers(int64_t least, int64_t most) const {
  std::vector<int64_t> values;
  for (size_t i = 0; i < size(); ++i) values.push_back(at(i).integer(least, most));
  return values;
}

std::vector<std::string> JsonField::texts() const {
  std::vector<std::string> values;
  for (size_t i = 0; i < size(); ++i) values.push_back(at(i).text());
  return values;
}

int64_t JsonField::whole(int64_t least, int64_t most) const {
  const double value = json_.is_number_float() ? json_.get<double>() : 0.5;
  const bool is_whole = value == std::floor(value) && std::abs(value) <= 0x1p53;
  if (!is_whole) return integer(least, most);
  expect(value >= static_cast<double>(least) && value <= static_cast<double>(most),
         fmt::format("an integer in {} .. {}", least, most));
  return static_cast<int64_t>(value);
}

double JsonField::number() const {
  expect(json_.is_number(), "a number");
  return json_.get<double>();
}

bool JsonField::flag() const {
  expect(json_.is_boolean(), "true or false");
  return json_.get<bool>();
}

const std::string& JsonField::text() const {
  expect(json_.is_string(), "a string");
  return json_.get_ref<const std::string&>();
}

ScalarType JsonField::type_of_bytes() const {
  const std::optional<ScalarType> type = distca::type_of_bytes(integer());
  expect(type.has_value(), "2, 4 or 8");
  return *type;
}

void JsonField::expect(bool right, std::string_view what) const {
  if (right) return;
  const std::string place = name();
  throw Error(kind_, "{}: {} must be {}, not {}", file_, place.empty() ? "it" : place, what,
              json_.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 60));
}

void JsonField::only(const std::vector<std::string_view>& known, int64_t version) const {
  expect(json_.is_object(), "an object");
  for (const auto& [key, value] : json_.items()) {
    DISTCA_THROW_IF(std::ranges::find(known, key) == known.end(), kind_,
                    "{}: {} is not a field of version {}", file_, name_of(key), version);
  }
}

std::string JsonField::name() const {
  std::string place;
  find_place(root_, json_, place);
  if (root_name_.empty() && place.starts_with('.')) place.erase(0, 1);
  return fmt::format("{}{}", root_name_, place);
}

std::string JsonField::name_of(std::string_view key) const {
  const std::string place = name();
  return place.empty() ? std::string(key) : fmt::format("{}.{}", place, key);
}

}  // namespace distca
