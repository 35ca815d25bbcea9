#pragma once
// The arguments of a kernel with the C interface of TVM FFI, read and checked one after another as
// a compiled kernel does, for standin.cc alone. What is wrong is a std::runtime_error. Thread rule:
// one thread.

#include <bit>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace distca::standin {

struct DlTensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct Value {
  int32_t kind;
  uint32_t zero;
  union {
    int64_t integer;
    double number;
    void* pointer;
  };
};
struct List {
  uint64_t references;
  int32_t kind;
  uint32_t zero;
  void* deleter;
  Value* data;
  int64_t size;
};

void want(bool is_right, const char* what) {
  if (!is_right) throw std::runtime_error(what);
}
void want(bool is_right, const std::string& what) { want(is_right, what.c_str()); }

enum class Type : uint8_t { kBfloat16, kFloat, kInt };

/// A tensor, whose numbers are read and written as doubles.
class Tensor {
 public:
  Tensor(const Value& value, Type type, std::vector<int64_t> sizes, bool is_packed,
         const std::string& name)
      : type_(type) {
    want(value.kind == 7 && value.zero == 0, name + " is no tensor");
    tensor_ = static_cast<const DlTensor*>(value.pointer);
    const uint8_t code = type == Type::kBfloat16 ? 4 : type == Type::kFloat ? 2 : 0;
    want(tensor_->code == code && tensor_->bits == (type == Type::kBfloat16 ? 16 : 32) &&
             tensor_->lanes == 1 && tensor_->byte_offset == 0,
         name + " has another type");
    want(tensor_->device_type == 1 && tensor_->device_id == 0, name + " is elsewhere");
    want(tensor_->ndim == static_cast<int32_t>(sizes.size()), name + " has other dimensions");
    int64_t next = 1;
    for (size_t i = sizes.size(); i-- > 0;) {
      want(sizes[i] < 0 || tensor_->shape[i] == sizes[i], name + " has another size");
      if (is_packed && tensor_->shape[i] > 1) want(tensor_->strides[i] == next, name + " has gaps");
      next *= tensor_->shape[i];
    }
    const int64_t alignment = type == Type::kBfloat16 ? 16 : 4;
    want(reinterpret_cast<uintptr_t>(tensor_->data) % static_cast<uintptr_t>(alignment) == 0,
         name + " is not aligned");
    if (type != Type::kBfloat16) return;
    want(tensor_->strides[2] == 1, name + " has gaps in a row");
    for (const int i : {0, 1})
      want(tensor_->shape[i] <= 1 || tensor_->strides[i] % 8 == 0, name + " has rows off 16 bytes");
  }
  int64_t size(int i) const { return tensor_->shape[i]; }
  double at(int64_t i, int64_t j = 0, int64_t l = 0) const {
    const int64_t place = place_of(i, j, l);
    if (type_ == Type::kInt) return static_cast<const int32_t*>(tensor_->data)[place];
    if (type_ == Type::kFloat) return static_cast<const float*>(tensor_->data)[place];
    const uint32_t bits = static_cast<const uint16_t*>(tensor_->data)[place];
    return std::bit_cast<float>(bits << 16);
  }
  void put(double number, int64_t i, int64_t j = 0, int64_t l = 0) const {
    const int64_t place = place_of(i, j, l);
    const auto single = static_cast<float>(number);
    if (type_ == Type::kFloat) {
      static_cast<float*>(tensor_->data)[place] = single;
      return;
    }
    uint32_t bits = std::bit_cast<uint32_t>(single);
    if (single == single) bits += 0x7FFF + ((bits >> 16) & 1);  // to the nearest, ties to even
    static_cast<uint16_t*>(tensor_->data)[place] = static_cast<uint16_t>(bits >> 16);
  }
  void add(double number, int64_t i, int64_t j) const { put(at(i, j) + number, i, j); }
  /// For a tensor without gaps, of 4 bytes a number.
  void want_zeros(const std::string& name) const {
    int64_t numbers = 1;
    for (int i = 0; i < tensor_->ndim; ++i) numbers *= tensor_->shape[i];
    for (int64_t i = 0; i < numbers; ++i)
      want(static_cast<const int32_t*>(tensor_->data)[i] == 0, name + " does not begin at zero");
  }

 private:
  int64_t place_of(int64_t i, int64_t j, int64_t l) const {
    const int64_t of[3] = {i, j, l};
    int64_t place = 0;
    for (int d = 0; d < tensor_->ndim; ++d) {
      if (d >= 3) break;
      want(of[d] >= 0 && of[d] < tensor_->shape[d], "a row outside its tensor");
      place += of[d] * tensor_->strides[d];
    }
    return place;
  }
  const DlTensor* tensor_;
  Type type_;
};

/// The arguments of a call, taken one after another.
class Arguments {
 public:
  Arguments(const Value* values, int32_t count) : values_(values), count_(count) {}
  Tensor rows(const std::string& name) {
    return {next(), Type::kBfloat16, {-1, -1, -1}, false, name};
  }
  Tensor packed(Type type, std::vector<int64_t> sizes, const std::string& name) {
    return {next(), type, std::move(sizes), true, name};
  }
  bool is_none() const { return values_[at_].kind == 0; }
  double number() {
    want(values_[at_].kind == 3, "no number");
    return next().number;
  }
  int64_t integer() {
    want(values_[at_].kind == 1, "no integer");
    return next().integer;
  }
  void none(int count = 1) {
    for (; count > 0; --count) want(next().kind == 0, "something where nothing is wanted");
  }
  void list_of_none(int64_t count) {
    const Value& value = next();
    const auto* list = static_cast<const List*>(value.pointer);
    want(value.kind == 71 && list->kind == 71 && list->references > 0 && list->size == count,
         "no list");
    for (int64_t i = 0; i < count; ++i) want(list->data[i].kind == 0, "something in a list");
  }
  void end() const { want(at_ == count_, "too many arguments"); }

 private:
  const Value& next() {
    want(at_ < count_, "too few arguments");
    return values_[at_++];
  }
  const Value* values_;
  int32_t count_, at_ = 0;
};

}  // namespace distca::standin
