#include "distca/base/json_field.h"

#include <algorithm>
#include <cmath>

namespace distca {

JsonField JsonField::operator[](const std::string& key) const {
  DISTCA_THROW_IF(!has(key), kind_, "{}: {} is missing", file_, child(key));
  return {json_.at(key), file_, kind_, child(key)};
}

bool JsonField::has(const std::string& key) const {
  expect(json_.is_object(), "an object");
  return json_.contains(key);
}

JsonField JsonField::at(size_t index) const {
  return {json_.at(index), file_, kind_, fmt::format("{}[{}]", name_, index)};
}

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

std::string JsonField::text() const {
  expect(json_.is_string(), "a string");
  return json_.get<std::string>();
}

void JsonField::expect(bool right, std::string_view what) const {
  if (right) return;
  throw Error(kind_, "{}: {} must be {}, not {}", file_, name_.empty() ? "it" : name_, what,
              json_.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 60));
}

void JsonField::only(const std::vector<std::string_view>& known, int64_t version) const {
  expect(json_.is_object(), "an object");
  for (const auto& [key, value] : json_.items()) {
    DISTCA_THROW_IF(std::ranges::find(known, key) == known.end(), kind_,
                    "{}: {} is not a field of version {}", file_, child(key), version);
  }
}

std::string JsonField::child(std::string_view key) const {
  return name_.empty() ? std::string(key) : fmt::format("{}.{}", name_, key);
}

}  // namespace distca
