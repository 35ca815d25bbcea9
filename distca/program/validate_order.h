#pragma once
// What is over when an operation of a program begins, on a machine with a compute and a
// communication stream: parts of the validator. Thread rule: values, one thread.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "distca/program/program.h"

namespace distca {

/// "operation 12 (forward layer 0 dispatch of nano-batch 1)"
std::string numbered(const Program& program, int32_t op);

/// Operations of the compute stream follow one another; a communication begins when its `wait_for`
/// and `wait_sends` are met, after whatever stands before it has begun. Needs waits for what stands
/// before.
class ProgramOrder {
 public:
  explicit ProgramOrder(const Program& program);

  /// Has compute operation `a` ended when `b`, after it in the list, begins?
  bool ended(int32_t a, int32_t b) const;
  /// Has all landed that communication `a` receives when `b`, after it in the list, begins?
  bool landed(int32_t a, int32_t b) const;
  /// Has all left that communication `a` sends when `b`, after it in the list, begins?
  bool left(int32_t a, int32_t b) const;

 private:
  const Program& program_;
  std::vector<int32_t> computed_before_;  // [op] the last compute operation that has ended; -1
  std::vector<int32_t>
      landed_by_;  // [op] the first compute operation that a communication's receives
  std::vector<int32_t> left_by_;  // or sends are over for
};

// Both add a line to `wrong` for each fault.

/// Operations after what they need, none twice, none missing.
void check_order(const Program& program, const ProgramOrder& order,
                 std::vector<std::string>& wrong);
/// Every buffer written before it is read, by whom it should be, and free when it is written again.
void check_buffers(const Program& program, const ProgramOrder& order,
                   std::vector<std::string>& wrong);
/// Messages within their buffers, aligned and apart; tags.
void check_messages(const Program& program, std::vector<std::string>& wrong);
/// Each pair of ranks: equal messages in equal order; nobody waits in a circle.
void check_ranks(std::span<const Program> programs, std::vector<std::string>& wrong);

}  // namespace distca
