#pragma once
// ExchangeBuffers is the memory of a program's buffers. The program says how large they are. They
// are allocated once and reused over layers, nano-batches and steps; they grow if a later program
// has larger ones. Memory is given back in one case only: a program that dispatches keys again,
// because memory is short, frees what earlier programs kept received Q, K and V in.
//
// Threads. One thread uses an object. No exchange may be under way during prepare().

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "distca/program/program.h"

namespace at {
class Tensor;
}

namespace distca {

class ExchangeBuffers {
 public:
  /// `cuda_device` says where the buffers lie; -1 is the CPU.
  explicit ExchangeBuffers(int cuda_device) : cuda_device_(cuda_device) {}

  /// Makes room for every buffer of the program. A buffer that grows loses its contents. A program
  /// with kRedispatch frees the kQkvIn buffers beyond its own. The program of an evaluation has no
  /// kRedispatch, so it does not cost the next step its buffers.
  void prepare(const Program& program);

  // The next three are about a buffer of the prepared program. Its memory is aligned to
  // kMessageAlignment, is not initialised, and is valid until the next prepare().
  std::byte* data(int32_t buffer) const { return prepared_.at(buffer).data; }
  int64_t bytes(int32_t buffer) const { return prepared_.at(buffer).buffer.bytes; }
  BufferRole role(int32_t buffer) const { return prepared_.at(buffer).buffer.role; }

  /// The bytes of all buffers that are held.
  int64_t allocated_bytes() const;
  /// How often a buffer had to be allocated so far.
  int64_t allocations() const { return allocations_; }
  int cuda_device() const { return cuda_device_; }

 private:
  struct Prepared {
    Buffer buffer;
    std::byte* data;
  };

  const int cuda_device_;
  /// The n-th buffer of a role keeps its memory from program to program, wherever it stands in the
  /// lists of the programs.
  std::map<BufferRole, std::vector<std::shared_ptr<at::Tensor>>> memory_;
  std::vector<Prepared> prepared_;
  int64_t allocations_ = 0;
};

}  // namespace distca
