#pragma once
// Values of a file that somebody else may have written: each knows by which name errors call it, as
// in tasks[3].q[0]. And the numbers and words of a struct, listed once for writing and reading:
//
//   template <typename Visit, typename T>
//   void visit_fields(Visit visit, T& link) {
//     visit("latency_ns", link.latency_ns, 0, kMost);
//   }
//   visit_fields(JsonWriter{json}, link);
//   visit_fields(JsonReader{field}, link);
//
// Any thread.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "distca/base/json.h"

namespace distca {

/// Borrows the value and the name of the file. What is wrong is an Error(kind) in one line: "FILE:
/// FIELD must be WHAT, not VALUE".
class JsonField {
 public:
  JsonField(const Json& json, std::string_view file, ErrorKind kind, std::string name = "")
      : json_(json), file_(file), kind_(kind), name_(std::move(name)) {}

  JsonField operator[](const char* key) const;
  JsonField at(size_t index) const;
  size_t size() const;  // of a list

  int64_t integer(int64_t least = INT64_MIN, int64_t most = INT64_MAX) const;
  std::vector<int64_t> integers(int64_t least = INT64_MIN, int64_t most = INT64_MAX) const;
  bool flag() const;
  std::string text() const;

  void expect(bool right, std::string_view what) const;
  /// Refuses other fields than these: a misspelt one would be lost without a word.
  void only(const std::vector<std::string_view>& known, int64_t version) const;

 private:
  std::string child(std::string_view key) const;

  const Json& json_;
  std::string_view file_;
  ErrorKind kind_;
  std::string name_;
};

struct JsonWriter {
  Json& json;
  template <typename T>
  void operator()(const char* name, const T& value, int64_t = 0, int64_t = 0) const {
    json[name] = value;
  }
};

struct JsonReader {
  const JsonField& field;
  template <typename T>
  void operator()(const char* name, T& value, int64_t least = INT64_MIN,
                  int64_t most = INT64_MAX) const {
    value = static_cast<T>(field[name].integer(least, most));
  }
  void operator()(const char* name, bool& value) const { value = field[name].flag(); }
  void operator()(const char* name, std::string& value) const { value = field[name].text(); }
  void operator()(const char* name, std::vector<int64_t>& value) const {
    value = field[name].integers();
  }
};

struct JsonNames {
  std::vector<std::string_view>& names;
  template <typename T>
  void operator()(const char* name, const T&, int64_t = 0, int64_t = 0) const {
    names.emplace_back(name);
  }
};

}  // namespace distca
