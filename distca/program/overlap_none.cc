// One operation after another.

#include "distca/program/program_builder.h"

namespace distca {
namespace {

void play(ProgramBuilder& builder, std::span<const Visit> visits) {
  for (const Visit& visit : visits) builder.begin_visit(visit);
  for (int turn = 0; turn < builder.layer_steps(visits.front()); ++turn) {
    for (const Visit& visit : visits) {
      builder.start_layer(visit, turn);
      builder.redispatch(visit, turn);
      builder.dispatch(visit, turn);
      builder.core_attention(visit, turn, TaskSet::kAll);
      builder.combine(visit, turn);
      builder.end_layer(visit, turn);
      builder.weight_gradients(visit, turn);
    }
  }
  for (const Visit& visit : visits) builder.end_visit(visit);
  if (builder.layer_steps(visits.front()) == 0) builder.weight_gradients(visits.front(), 0);
}

}  // namespace

Program build_none(const ProgramRequest& request) {
  ProgramBuilder builder(request, /*slots=*/1, ProgramBuilder::Waiting::kForThePrevious);
  const size_t visits = builder.visits(0).size();
  for (size_t first = 0; first < visits; first += builder.beside(0, first).size())
    play(builder, builder.beside(0, first));
  return builder.take();
}

}  // namespace distca
