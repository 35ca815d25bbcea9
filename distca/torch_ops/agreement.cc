#include "distca/torch_ops/agreement.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "distca/base/error.h"
#include "distca/comm/collectives.h"

namespace distca::torch_ops {
namespace {

constexpr int64_t kLengthsAtOnce = 48;

/// What a rank says of a forward. Ranks must agree on all but the documents.
struct Announcement {
  int64_t documents;
  int64_t num_kinds;
  int64_t num_heads, num_kv_heads, head_dim, head_dim_v, dtype, window_left;  // of the first kind
  double softmax_scale;
  int64_t linear_work;
  std::array<int64_t, kLengthsAtOnce> lengths;  // of the first documents
};

void check_same(const std::vector<Announcement>& all) {
  const auto check = [&](const char* name, auto member) {
    for (size_t rank = 1; rank < all.size(); ++rank) {
      DISTCA_THROW_IF(
          all[rank].*member != all[0].*member, ErrorKind::kUsage,
          "rank {} calls attention with {} = {}, rank 0 with {}: all ranks call the same layer",
          rank, name, all[rank].*member, all[0].*member);
    }
  };
  check("num_heads", &Announcement::num_heads);
  check("num_kv_heads", &Announcement::num_kv_heads);
  check("head_dim", &Announcement::head_dim);
  check("head_dim of v", &Announcement::head_dim_v);
  check("dtype (0: fp64, 1: fp32, 2: bf16)", &Announcement::dtype);
  check("window_left", &Announcement::window_left);
  check("softmax_scale", &Announcement::softmax_scale);
  check("linear_work", &Announcement::linear_work);
  check("kinds of layers", &Announcement::num_kinds);
}

Announcement announcement(const std::vector<int64_t>& lengths, const std::vector<LayerKind>& layers,
                          int64_t linear_work) {
  Announcement said{};
  said.documents = static_cast<int64_t>(lengths.size());
  said.num_kinds = static_cast<int64_t>(layers.size());
  if (!layers.empty()) {
    const api::Shape& shape = layers[0].kind.shape;
    said.num_heads = shape.num_heads;
    said.num_kv_heads = shape.num_kv_heads;
    said.head_dim = shape.head_dim;
    said.head_dim_v = shape.head_dim_v;
    said.dtype = static_cast<int64_t>(shape.dtype);
    said.window_left = layers[0].window_left;
    said.softmax_scale = layers[0].kind.softmax_scale;
  }
  said.linear_work = linear_work;
  std::copy_n(lengths.begin(), std::min(said.documents, kLengthsAtOnce), said.lengths.begin());
  return said;
}

/// [ranks][documents] Those that the announcements had no room for.
std::vector<std::vector<int64_t>> other_lengths(Communicator& comm, std::vector<int64_t> mine,
                                                const std::vector<Announcement>& said) {
  const int64_t most = std::ranges::max(said, {}, &Announcement::documents).documents;
  std::vector<std::vector<int64_t>> all(said.size());
  if (most <= kLengthsAtOnce) return all;
  mine.resize(most);
  const std::vector<std::byte> bytes =
      all_gather_bytes(comm, std::as_bytes(std::span(mine).subspan(kLengthsAtOnce)),
                       "telling more lengths of documents");
  const auto* theirs = reinterpret_cast<const int64_t*>(bytes.data());
  for (size_t rank = 0; rank < all.size(); ++rank, theirs += most - kLengthsAtOnce) {
    const int64_t rest = std::max<int64_t>(0, said[rank].documents - kLengthsAtOnce);
    all[rank].assign(theirs, theirs + rest);
  }
  return all;
}

}  // namespace

const api::BatchPlan* Agreement::plan_of(const LayerKind& layer) const {
  const auto known = std::ranges::find_if(planned, [&](const Planned& one) {
    return one.layer.kind.shape == layer.kind.shape && one.layer.window_left == layer.window_left;
  });
  return known == planned.end() ? nullptr : &known->plan;
}

const api::BatchPlan& Agreement::add(Ranks& over, const LayerKind& layer) {
  request.shape = layer.kind.shape;
  request.window_left = layer.window_left;
  planned.push_back({.layer = layer, .plan = over.plan(request)});
  const api::BatchPlan& plan = planned.back().plan;
  api::compare_plans(over.comm(), {&plan, 1});
  return plan;
}

Agreement agree(Ranks& over, const std::vector<int64_t>& cu_seqlens,
                const std::vector<LayerKind>& layers, int64_t linear_work) {
  const std::scoped_lock lock(over.mutex);
  Communicator& comm = over.comm();
  std::vector<int64_t> lengths;
  for (size_t i = 1; i < cu_seqlens.size(); ++i)
    lengths.push_back(cu_seqlens[i] - cu_seqlens[i - 1]);
  const auto said =
      all_gather(comm, announcement(lengths, layers, linear_work), "telling lengths of documents");
  check_same(said);
  const auto others = other_lengths(comm, std::move(lengths), said);

  Agreement agreed;
  api::BatchRequest& request = agreed.request;
  request.num_ranks = comm.size();
  request.linear_work = linear_work;
  request.cu_seqlens = {0};
  for (size_t rank = 0; rank < said.size(); ++rank) {
    const int64_t begin = request.cu_seqlens.back();
    const auto append = [&](int64_t length) {
      request.cu_seqlens.push_back(request.cu_seqlens.back() + length);
    };
    const int64_t first = std::min(said[rank].documents, kLengthsAtOnce);
    std::for_each_n(said[rank].lengths.begin(), first, append);
    std::ranges::for_each(others[rank], append);
    std::vector<Range>& tokens = request.tokens.emplace_back();
    if (request.cu_seqlens.back() > begin) tokens.push_back({begin, request.cu_seqlens.back()});
  }
  std::vector<api::BatchPlan> plans;
  for (const LayerKind& layer : layers) {
    request.shape = layer.kind.shape;
    request.window_left = layer.window_left;
    agreed.planned.push_back({.layer = layer, .plan = over.plan(request)});
    plans.push_back(agreed.planned.back().plan);
  }
  api::compare_plans(comm, plans);
  return agreed;
}

}  // namespace distca::torch_ops
