#pragma once
// Plays the phases of train/tensor_nano_phases.h on paper, which the ranks of a server divide, and
// the messages between them that tensors are made for (train/tensor_messages.h). The names of its
// methods are those of these classes and of model/tensor_phases.h; what each takes and gives back
// stands in their order. Thread rule: as ProgramWalk.

#include "distca/forecast/program_walk.h"

namespace distca {

class TensorWalk final : public ProgramWalk {
 public:
  TensorWalk(const Config& config, const Program& program, int64_t multiprocessors);

 private:
  void play(const Op& op, Nano& nano) override;
  void land_sum(const Op& op, Nano& nano) override;
  void play_forward(const Op& op, Nano& nano);
  void play_backward(const Op& op, Nano& nano);
  void gather_rows(const Op& op, const Nano& nano);

  void embed(const Nano& nano);
  void norm(const Nano& nano);
  void pre_attention(const Nano& nano);
  void out_projection(Nano& nano);
  void post_attention(const Nano& nano);
  void loss(const Nano& nano);
  void post_attention_backward(const Nano& nano, bool leaves);
  void mlp_norm_backward(const Nano& nano);
  void out_projection_backward(const Nano& nano, bool leaves);
  void pre_attention_backward(Nano& nano, bool leaves);
  void attention_norm_backward(const Nano& nano);

  /// Q, K and V of all rows.
  void projections(const Nano& nano, bool keeps);
  void mlp_rows_backward(double rows, bool keeps, MemoryPart part, bool leaves);
  /// The sum of so many rows that all ranks have computed parts of, without its result.
  void ordered_sum(double rows);
  bool goes_by_chunks(const Nano& nano) const { return full() && has_chunks(nano); }
  /// Calls work(count) for rows that go through a phase together.
  template <typename Work>
  void for_chunks(const Nano& nano, const Work& work) const;

  const TensorPlace& place() const { return program_.stage.tensor; }
};

}  // namespace distca
