#include <ATen/ATen.h>

#include "distca/train/tensor_messages.h"

#include <numeric>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/tags.h"
#include "distca/program/tensor_rows.h"

namespace distca {
namespace {

/// Where the rows of a rank of the server begin among those of all.
int64_t begin_of(std::span<const int64_t> counts, int index) {
  return std::accumulate(counts.begin(), counts.begin() + index, int64_t{0});
}

}  // namespace

TensorMessages::TensorMessages(const Program& program, const ExchangeBuffers& buffers,
                               Communicator& comm, const LlamaConfig& model,
                               TraceRecorder* recorder)
    : program_(program),
      buffers_(buffers),
      model_(model),
      under_way_(program, comm),
      of_loss_(comm, kTracedTags + 3 * kTracedTagsEach) {
  if (comm.cuda_device() < 0) of_loss_.set_recorder(recorder);
}

/// No rows lie nowhere.
at::Tensor TensorMessages::view(int32_t buffer, int64_t rows, int64_t columns) const {
  const auto options =
      at::dtype(aten_type(model_.dtype)).device(aten_device(buffers_.cuda_device()));
  if (buffer < 0) return at::empty({rows, columns}, options);
  return at::from_blob(buffers_.data(buffer), {rows, columns}, options);
}

void TensorMessages::pack(const Op& op, const at::Tensor& rows, const at::Tensor& second) {
  const int64_t width = model_.hidden_size, vectors = gathers_pairs(op) ? 2 : 1;
  DISTCA_CHECK_EQ(second.defined() ? 2 : 1, vectors);
  const TensorRows& lists = program_.tensor_rows[op.nano_batch];
  const Range own = place().part(lists.rows);
  DISTCA_CHECK(rows.size(0) == own.size(), "{}: {} rows, the program has {}", describe(op),
               rows.size(0), own.size());
  if (own.empty()) return;
  const at::Tensor there =
      view(op.out, lists.rows, vectors * width).narrow(0, own.begin, own.size());
  there.narrow(1, 0, width).copy_(rows);
  if (vectors > 1) there.narrow(1, width, width).copy_(second);
  bytes_.packed += vectors * own.size() * lists.row_bytes;
}

at::Tensor TensorMessages::rows(const Op& phase, bool second) const {
  const int64_t width = model_.hidden_size;
  const bool pairs = phase.pass == Pass::kBackward && phase.kind != OpKind::kEmbed;
  const int32_t buffer = phase.reads.empty() ? -1 : phase.reads[0];
  const at::Tensor all =
      view(buffer, program_.tensor_rows[phase.nano_batch].rows, pairs ? 2 * width : width);
  return pairs ? all.narrow(1, second ? width : 0, width) : all;
}

at::Tensor TensorMessages::parts(const Op& phase) const {
  return view(phase.writes.empty() ? -1 : phase.writes[0],
              program_.tensor_rows[phase.nano_batch].rows, model_.hidden_size);
}

at::Tensor TensorMessages::ordered_sum(const at::Tensor& own, const at::Tensor& others) const {
  const at::ScalarType wide = own.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum;
  for (int index = 0; index < place().size; ++index) {
    const at::Tensor part =
        index == place().index ? own : others.select(0, index < place().index ? index : index - 1);
    sum.defined() ? sum.add_(part) : sum = part.to(wide, /*non_blocking=*/false, /*copy=*/true);
  }
  return sum.to(own.scalar_type());
}

at::Tensor TensorMessages::sum(const Op& op) const {
  const int64_t all = program_.tensor_rows[op.nano_batch].rows, width = model_.hidden_size;
  const Range own = place().part(all);
  const int64_t peers = place().size - 1;
  return ordered_sum(view(op.out, all, width).narrow(0, own.begin, own.size()),
                     view(op.in, peers * own.size(), width).view({peers, own.size(), width}));
}

void TensorMessages::issue(const Op& op) {
  bytes_.sent += program_.sends(op).bytes;
  bytes_.received += program_.receives(op).bytes;
  const auto data = [&](int32_t buffer) { return buffer < 0 ? nullptr : buffers_.data(buffer); };
  under_way_.issue(op, data(op.out), data(op.in));
}

/// Sends every other rank of the server `own` or, where it does not gather, its rows of `all`, and
/// receives as much of it: its rows of `all`, or one after another in `received`.
void TensorMessages::exchange(const at::Tensor& all, std::span<const int64_t> counts,
                              const at::Tensor& own, bool gathers, const at::Tensor& received) {
  std::vector<Message> sends, receives;
  int64_t next = 0;
  for (int index = 0; index < place().size; ++index) {
    if (index == place().index) continue;
    const auto add = [&](std::vector<Message>& to, const at::Tensor& rows) {
      if (rows.numel() == 0) return;
      to.push_back({.peer = program_.server * place().size + index,
                    .tag = kTensorLossTag,
                    .data = static_cast<std::byte*>(rows.data_ptr()),
                    .bytes = static_cast<int64_t>(rows.nbytes())});
    };
    const at::Tensor theirs = all.narrow(0, begin_of(counts, index), counts[index]);
    add(sends, gathers ? own : theirs);
    add(receives, gathers ? theirs : received.select(0, next++));
  }
  for (const Message& message : sends) bytes_.sent += message.bytes;
  for (const Message& message : receives) bytes_.received += message.bytes;
  if (sends.empty() && receives.empty()) return;
  const auto issued = of_loss_.exchange(sends, receives, "loss rows");
  const Stopwatch watch;
  issued->wait();
  if (of_loss_.cuda_device() < 0) loss_waited_s_ += watch.seconds();
}

at::Tensor TensorMessages::gather_rows(const at::Tensor& rows, std::span<const int64_t> counts) {
  const int64_t total = begin_of(counts, place().size);
  const at::Tensor own = rows.contiguous();
  at::Tensor all = at::empty({total, rows.size(1)}, rows.options());
  exchange(all, counts, own, /*gathers=*/true, {});
  all.narrow(0, begin_of(counts, place().index), counts[place().index]).copy_(own);
  return all;
}

at::Tensor TensorMessages::gather_statistics(const at::Tensor& statistics) {
  const int64_t rows = statistics.size(0), columns = statistics.size(1);
  const std::vector<int64_t> counts(place().size, rows);
  return gather_rows(statistics, counts).view({place().size, rows, columns});
}

at::Tensor TensorMessages::sum_rows(const at::Tensor& parts, std::span<const int64_t> counts) {
  const at::Tensor all = parts.contiguous();
  const int64_t own = counts[place().index];
  const at::Tensor received = at::empty({place().size - 1, own, parts.size(1)}, parts.options());
  exchange(all, counts, {}, /*gathers=*/false, received);
  return ordered_sum(all.narrow(0, begin_of(counts, place().index), own), received);
}

}  // namespace distca
