#pragma once
// Parts of the validator (validate.h). ProgramOrder says what is over when an operation of a
// program begins, on a machine with a compute and a communication stream. The functions below it
// check one kind of fault each. Objects belong to one thread.

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "distca/program/program.h"

namespace distca {

/// The name of an operation in a fault: "operation 12 (forward layer 0 dispatch of nano-batch 1)".
std::string numbered(const Program& program, int32_t op);

/// Adds a line for a fault.
template <typename... Args>
void report(std::vector<std::string>& wrong, fmt::format_string<Args...> text, Args&&... args) {
  wrong.push_back(fmt::format(text, std::forward<Args>(args)...));
}
/// Adds a line that begins with the name of the operation.
template <typename... Args>
void report_op(std::vector<std::string>& wrong, const Program& program, int32_t op,
               fmt::format_string<Args...> text, Args&&... args) {
  report(wrong, "{} {}", numbered(program, op), fmt::format(text, std::forward<Args>(args)...));
}

/// Operations of the compute stream follow one another. A communication begins when all in its
/// `wait_for` and `wait_sends` is over, and after everything before it in the list has begun. The
/// program must be such that operations wait only for earlier ones.
class ProgramOrder {
 public:
  explicit ProgramOrder(const Program& program);

  /// Has the compute operation `a` ended when `b`, which comes after it in the list, begins?
  bool ended(int32_t a, int32_t b) const;
  /// Has everything landed that the communication `a` receives when `b`, which comes after it,
  /// begins?
  bool landed(int32_t a, int32_t b) const;
  /// Has everything left that the communication `a` sends when `b`, which comes after it, begins?
  bool left(int32_t a, int32_t b) const;
  /// Has `a` ended or, if it communicates, landed when `b`, which comes after it, begins?
  bool is_over(int32_t a, int32_t b) const;

 private:
  const Program& program_;
  /// [op] The last compute operation that has ended before it, or -1.
  std::vector<int32_t> computed_before_;
  /// [op] For a communication, the first compute operation that begins after all its receives, and
  /// the first one that begins after all its sends.
  std::vector<int32_t> landed_by_;
  std::vector<int32_t> left_by_;
};

/// The parts that the classes share that check a program.
class Checker {
 public:
  Checker(const Program& program, const ProgramOrder& order, std::vector<std::string>& wrong)
      : program_(program), order_(order), wrong_(wrong) {}

 protected:
  template <typename... Args>
  void say(int32_t op, fmt::format_string<Args...> text, Args&&... args) {
    report_op(wrong_, program_, op, text, std::forward<Args>(args)...);
  }
  std::string numbered(int32_t op) const { return distca::numbered(program_, op); }

  const Program& program_;
  const ProgramOrder& order_;
  std::vector<std::string>& wrong_;
};

// Each of these functions adds a line to `wrong` for each fault.

/// Every operation comes after what it needs, and none is there twice.
void check_order(const Program& program, const ProgramOrder& order,
                 std::vector<std::string>& wrong);
/// The messages of its exchange that a kCoreAttention needs for its tasks, and those it fills.
struct AttentionNeeds {
  bool received = false;  // Q, K, V; in backward, it adds to gradients that are returned
  bool returned = false;  // some of its queries were received
  bool fills(Pass pass) const { return pass == Pass::kForward ? returned : received; }
};
AttentionNeeds attention_needs(const Program& program, const Op& op);
/// The parts in which core attention of a layer step is played have all rows of all tasks once, and
/// write what they fill.
void check_parts(const Program& program, std::vector<std::string>& wrong);
/// The ranks of a server start their communications in the same order, but for gradients: a combine
/// stands at the same place of a turn on all of them.
void check_order_in_servers(std::span<const Program> programs, std::vector<std::string>& wrong);
/// Every nano-batch has all phases of the stage, and every exchange all its layer steps.
void check_complete(const Program& program, std::vector<std::string>& wrong);
/// Every buffer is written by the right operation before it is read, and is free when it is written
/// again.
void check_buffers(const Program& program, const ProgramOrder& order,
                   std::vector<std::string>& wrong);
/// Messages lie inside their buffers, aligned and apart. No two operations have the same tag.
void check_messages(const Program& program, std::vector<std::string>& wrong);
/// Every bucket of gradients is summed once, after all that adds to it and before what uses the
/// sum, and nothing of it is written while it is sent or received.
void check_gradients(const Program& program, const ProgramOrder& order,
                     std::vector<std::string>& wrong);
/// The stages have the layers of the model, one after another, and as many nano-batches. Ranks that
/// only serve have none.
void check_stages(std::span<const Program> programs, std::vector<std::string>& wrong);
/// Ranks that hold the same weights have the same buckets, every element of the gradients is added
/// up by exactly one of them, and messages carry each rank's slice to it and its sum back to where
/// it came from, apart from others.
void check_slices(std::span<const Program> programs, std::vector<std::string>& wrong);
/// Each pair of ranks has equal messages in equal order, and no ranks wait for each other in a
/// circle.
void check_ranks(std::span<const Program> programs, std::vector<std::string>& wrong);

}  // namespace distca
