#pragma once
// Reads a JSON file that may have been written by somebody else: a JsonField knows its place in the
// file (tasks[3].q[0], for example), and errors name this place. The visitors below read and write
// a struct, so that its fields are listed only once:
//
//   template <typename Visit, typename T>
//   void visit_fields(Visit visit, T& link) {
//     visit("latency_ns", link.latency_ns, 0, kMost);
//   }
//   visit_fields(JsonWriter{json}, link);
//   visit_fields(JsonReader{field}, link);
//
// Any thread may use them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "distca/base/json.h"
#include "distca/base/scalar_type.h"

namespace distca {

/// A value of a JSON file that knows its place there. It borrows the whole value that it was made
/// of, the file's name and the name of that value's place. All methods throw Error(kind) in one
/// line, "FILE: FIELD must be WHAT, not VALUE", or say which field is missing. Only then is the
/// place named, by a search for the value.
class JsonField {
 public:
  JsonField(const Json& json, std::string_view file, ErrorKind kind, std::string_view name = "")
      : JsonField(json, json, file, kind, name) {}

  /// The field `key` of an object. It must exist.
  JsonField operator[](const std::string& key) const;
  /// Returns true if an object has the field `key`.
  bool has(const std::string& key) const;
  /// The element `index` of a list.
  JsonField at(size_t index) const;
  size_t size() const;  // the length of a list

  /// The value as an integer, a list of integers or of strings, a number, a flag or a string.
  /// Integers must lie in [least, most].
  int64_t integer(int64_t least = INT64_MIN, int64_t most = INT64_MAX) const;
  std::vector<int64_t> integers(int64_t least = INT64_MIN, int64_t most = INT64_MAX) const;
  std::vector<std::string> texts() const;
  /// An integer that may be written as 4096.0 or 4.096e3, as some programs do.
  int64_t whole(int64_t least, int64_t most) const;
  double number() const;
  bool flag() const;
  /// The number type that is written as the bytes of one number.
  ScalarType type_of_bytes() const;
  const std::string& text() const;

  /// Throws if `right` is false. `what` says what the value must be.
  void expect(bool right, std::string_view what) const;
  /// Throws if an object has a field that is not in `known`, because a misspelt field would
  /// otherwise be ignored without a word. `version` is the format's, for the message.
  void only(const std::vector<std::string_view>& known, int64_t version) const;

 private:
  JsonField(const Json& json, const Json& root, std::string_view file, ErrorKind kind,
            std::string_view root_name)
      : json_(json), root_(root), file_(file), kind_(kind), root_name_(root_name) {}
  JsonField child(const Json& json) const { return {json, root_, file_, kind_, root_name_}; }
  std::string name() const;
  std::string name_of(std::string_view key) const;

  const Json& json_;
  const Json& root_;  // that this field lies in
  std::string_view file_;
  ErrorKind kind_;
  std::string_view root_name_;
};

/// Writes the visited fields into an object.
struct JsonWriter {
  Json& json;
  template <typename T>
  void operator()(const char* name, const T& value, int64_t = 0, int64_t = 0) const {
    json[name] = value;
  }
  void operator()(const char* name, ScalarType type) const { json[name] = element_bytes(type); }
  void operator()(const char* name, const std::optional<int64_t>& value, int64_t = 0,
                  int64_t = 0) const {
    json[name] = value.value();
  }
};

/// Reads the visited fields from an object, with a check of the limits given for integers.
struct JsonReader {
  const JsonField& field;
  template <typename T>
  void operator()(const char* name, T& value, int64_t least = INT64_MIN,
                  int64_t most = INT64_MAX) const {
    value = static_cast<T>(field[name].integer(least, most));
  }
  void operator()(const char* name, bool& value) const { value = field[name].flag(); }
  void operator()(const char* name, std::string& value) const { value = field[name].text(); }
  void operator()(const char* name, ScalarType& type) const { type = field[name].type_of_bytes(); }
  void operator()(const char* name, std::vector<int64_t>& value) const {
    value = field[name].integers();
  }
  void operator()(const char* name, std::vector<std::string>& value) const {
    value = field[name].texts();
  }
};

/// Collects the names of the visited fields, for JsonField::only.
struct JsonNames {
  std::vector<std::string_view>& names;
  template <typename T>
  void operator()(const char* name, const T&, int64_t = 0, int64_t = 0) const {
    names.emplace_back(name);
  }
};

}  // namespace distca
