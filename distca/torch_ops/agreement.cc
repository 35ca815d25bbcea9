#include "distca/torch_ops/agreement.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <map>
#include <span>
#include <string_view>
#include <tuple>

#include "distca/base/build_info.h"
#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/comm/collectives.h"

namespace distca::torch_ops {
namespace {

constexpr int64_t kNumbersAtOnce = 48;
constexpr int64_t kGoesOn = -1;
constexpr size_t kMostCompared = 1000;  // kinds may change at every step
constexpr size_t kMostPlanned = 1000;   // likewise; that of a rank alone may serve all its forwards

/// A kind of layer, as a rank announces it. Ranks must agree on all of it.
struct SaidKind {
  int64_t on_cuda, num_heads, num_kv_heads, head_dim, head_dim_v, dtype, window_left, linear_work,
      kernel;
  double softmax_scale;
};

/// A forward, as a rank announces it. Ranks must agree on what `announce` checks.
struct Announcement {
  int64_t ended;  // kGoesOn, or how many batches the rank had and no more come: the rest is zeros
  uint64_t latest_plans;  // Ranks::latest_plans
  uint64_t inputs;        // inputs_of the plans
  int64_t compares;       // 1 if this rank wants the plans to be compared before they are followed
  int64_t in_pieces;      // RankDocuments::in_pieces
  int64_t num_numbers;    // in RankDocuments::numbers
  int64_t num_kinds;
  SaidKind first;                               // the first kind; zeros if there is none
  std::array<int64_t, kNumbersAtOnce> numbers;  // the first ones
};

/// A plan, as a rank announces it.
struct SaidPlan {
  SaidKind kind;
  std::array<char, 16> hash;
};

SaidKind said_of(const LayerKind& layer) {
  const api::Shape& shape = layer.kind.shape;
  return {.on_cuda = layer.kind.cuda_device >= 0,
          .num_heads = shape.num_heads,
          .num_kv_heads = shape.num_kv_heads,
          .head_dim = shape.head_dim,
          .head_dim_v = shape.head_dim_v,
          .dtype = static_cast<int64_t>(shape.dtype),
          .window_left = layer.window_left,
          .linear_work = layer.linear_work,
          .kernel = layer.kind.kernel,
          .softmax_scale = layer.softmax_scale};
}

void check_same(const SaidKind& theirs, const SaidKind& first, size_t rank) {
  const auto check = [&](const char* name, auto member) {
    DISTCA_THROW_IF(
        theirs.*member != first.*member, ErrorKind::kUsage,
        "rank {} calls attention with {} = {}, rank 0 with {}: all ranks call the same layer", rank,
        name, theirs.*member, first.*member);
  };
  check("a device (0: CPU, 1: CUDA)", &SaidKind::on_cuda);
  check("num_heads", &SaidKind::num_heads);
  check("num_kv_heads", &SaidKind::num_kv_heads);
  check("head_dim", &SaidKind::head_dim);
  check("head_dim of v", &SaidKind::head_dim_v);
  check("dtype (0: float64, 1: float32, 2: bfloat16)", &SaidKind::dtype);
  check("window_left", &SaidKind::window_left);
  check("linear_work", &SaidKind::linear_work);
  check("kernel (0: auto, 1: cpu, 2: aten, 3: fa4, 4: reference)", &SaidKind::kernel);
  check("softmax_scale", &SaidKind::softmax_scale);
}

/// The hash of what plans depend on, except the documents.
uint64_t inputs_of(const LayerKinds& layers) {
  Fnv1a64 hash;
  for (const LayerKind& layer : layers) {
    const SaidKind said = said_of(layer);
    hash.add({reinterpret_cast<const char*>(&said), sizeof(said)});
  }
  for (const char* part :
       {build_info::kVersion, build_info::kCommit, build_info::kCompiler, build_info::kBuildType})
    hash.add({part, std::strlen(part) + 1});
  return hash.value();
}

/// Returns what all ranks announce, in rank order. Throws if it does not fit together.
std::vector<Announcement> announce(Ranks& over, Announcement mine) {
  mine.latest_plans = over.latest_plans;
  auto said = all_gather(over.comm(), mine, "exchanging lengths of documents");
  const auto batches = [](const Announcement& one) {
    return one.ended == kGoesOn ? "goes on" : fmt::format("ended after {} batches", one.ended);
  };
  for (size_t rank = 1; rank < said.size(); ++rank) {
    DISTCA_THROW_IF(said[rank].ended != said[0].ended, ErrorKind::kUsage,
                    "the loader of rank {} {}, that of rank 0 {}: all ranks have equally many "
                    "batches (drop_last=True)",
                    rank, batches(said[rank]), batches(said[0]));
    DISTCA_THROW_IF(said[rank].latest_plans != said[0].latest_plans, ErrorKind::kPlan,
                    "rank {} planned the forward before as {:016x}, rank 0 as {:016x}: the planner "
                    "made two plans of one request, and what was computed since is wrong",
                    rank, said[rank].latest_plans, said[0].latest_plans);
    check_same(said[rank].first, said[0].first, rank);
    DISTCA_THROW_IF(said[rank].num_kinds != said[0].num_kinds, ErrorKind::kUsage,
                    "rank {} had layers of {} kinds, rank 0 of {}: all ranks call the same layers",
                    rank, said[rank].num_kinds, said[0].num_kinds);
  }
  return said;
}

void check_same(const SaidPlan& theirs, const SaidPlan& first, size_t rank) {
  check_same(theirs.kind, first.kind, rank);
  const auto text = [](const SaidPlan& plan) {
    return std::string_view(plan.hash.data(), plan.hash.size());
  };
  DISTCA_THROW_IF(theirs.hash != first.hash, ErrorKind::kPlan,
                  "rank {} has plan {}, rank 0 has {}: all ranks plan the same request", rank,
                  text(theirs), text(first));
}

/// [ranks] RankDocuments::numbers. Those that the announcements had no room for are exchanged.
std::vector<std::vector<int64_t>> all_numbers(Communicator& comm, std::vector<int64_t> mine,
                                              const std::vector<Announcement>& said) {
  const int64_t most = std::ranges::max(said, {}, &Announcement::num_numbers).num_numbers;
  std::vector<std::vector<int64_t>> all;
  for (const Announcement& one : said) {
    const int64_t first = std::min(one.num_numbers, kNumbersAtOnce);
    all.emplace_back(one.numbers.begin(), one.numbers.begin() + first);
  }
  if (most <= kNumbersAtOnce) return all;
  mine.resize(most);
  const std::vector<std::byte> bytes =
      all_gather_bytes(comm, std::as_bytes(std::span(mine).subspan(kNumbersAtOnce)),
                       "exchanging more lengths of documents");
  const auto* theirs = reinterpret_cast<const int64_t*>(bytes.data());
  for (size_t rank = 0; rank < all.size(); ++rank, theirs += most - kNumbersAtOnce) {
    const int64_t rest = std::max<int64_t>(0, said[rank].num_numbers - kNumbersAtOnce);
    all[rank].insert(all[rank].end(), theirs, theirs + rest);
  }
  return all;
}

/// The documents of all ranks, which are whole. `lengths`: [ranks][documents].
api::BatchRequest request_of_whole(const std::vector<std::vector<int64_t>>& lengths) {
  api::BatchRequest request{.cu_seqlens = {0}, .num_ranks = static_cast<int>(lengths.size())};
  for (const std::vector<int64_t>& of_rank : lengths) {
    const int64_t begin = request.cu_seqlens.back();
    for (const int64_t length : of_rank)
      request.cu_seqlens.push_back(request.cu_seqlens.back() + length);
    std::vector<Range>& tokens = request.tokens.emplace_back();
    if (request.cu_seqlens.back() > begin) tokens.push_back({begin, request.cu_seqlens.back()});
  }
  return request;
}

struct Piece {
  int64_t document;
  Range tokens;
  int rank;
};

/// Pieces of one document, ascending. Returns its length. Throws unless they are all of it.
int64_t length_of(std::span<const Piece> pieces) {
  int64_t length = 0;
  int before = 0;  // the rank of the last token so far
  for (const auto& [document, tokens, rank] : pieces) {
    DISTCA_THROW_IF(tokens.begin > length, ErrorKind::kUsage,
                    "document {}: tokens {} to {} lie on no rank, and rank {} has those from {} on",
                    document, length, tokens.begin, rank, tokens.begin);
    DISTCA_THROW_IF(tokens.begin < length, ErrorKind::kUsage,
                    "document {}: tokens {} to {} lie on rank {} and on rank {}", document,
                    tokens.begin, std::min(length, tokens.end), before, rank);
    length = tokens.end;
    before = rank;
  }
  return length;
}

/// The documents of all ranks' pieces, ascending by their numbers.
api::BatchRequest request_of_pieces(const std::vector<std::vector<int64_t>>& numbers) {
  std::vector<Piece> pieces;
  for (size_t rank = 0; rank < numbers.size(); ++rank) {
    for (size_t i = 0; i + 2 < numbers[rank].size(); i += 3) {
      const int64_t* const piece = &numbers[rank][i];
      if (piece[1] == piece[2]) continue;
      pieces.push_back({piece[0], {piece[1], piece[2]}, static_cast<int>(rank)});
    }
  }
  const std::vector<Piece> of_rows = pieces;
  std::ranges::sort(pieces, {},
                    [](const Piece& one) { return std::tie(one.document, one.tokens); });
  api::BatchRequest request{.cu_seqlens = {0}, .num_ranks = static_cast<int>(numbers.size())};
  std::map<int64_t, int64_t> begins;  // where each document begins in the batch of all ranks
  for (auto first = pieces.begin(); first != pieces.end();) {
    const auto next = std::find_if(
        first, pieces.end(), [&](const Piece& one) { return one.document != first->document; });
    begins[first->document] = request.cu_seqlens.back();
    request.cu_seqlens.push_back(request.cu_seqlens.back() + length_of({first, next}));
    first = next;
  }
  request.tokens.resize(numbers.size());
  for (const auto& [document, tokens, rank] : of_rows) {
    const int64_t begin = begins[document];
    request.tokens[rank].push_back({begin + tokens.begin, begin + tokens.end});
  }
  return request;
}

/// `numbers`: [ranks] RankDocuments::numbers. Throws unless all ranks that have documents have
/// pieces, or none has.
api::BatchRequest request_of(const std::vector<Announcement>& said,
                             const std::vector<std::vector<int64_t>>& numbers) {
  const auto first =
      std::ranges::find_if(said, [](const auto& one) { return one.num_numbers > 0; });
  const bool in_pieces = first != said.end() && first->in_pieces != 0;
  for (auto other = first; other != said.end(); ++other) {
    DISTCA_THROW_IF(other->num_numbers > 0 && (other->in_pieces != 0) != in_pieces,
                    ErrorKind::kUsage,
                    "rank {} gives {}, rank {} {}: all ranks give pieces, or none does",
                    other - said.begin(), in_pieces ? "whole documents" : "pieces of documents",
                    first - said.begin(), in_pieces ? "pieces of documents" : "whole ones");
  }
  return in_pieces ? request_of_pieces(numbers) : request_of_whole(numbers);
}

/// A plan of the request for each kind, whose fields it gets.
std::vector<Agreement::Planned> plan_kinds(Ranks& over, api::BatchRequest& request,
                                           const LayerKinds& layers) {
  std::vector<Agreement::Planned> made;
  for (const LayerKind& layer : layers) {
    request.shape = layer.kind.shape;
    request.window_left = layer.window_left;
    request.linear_work = layer.linear_work;
    made.push_back({.layer = layer, .plan = over.plan(request)});
  }
  return made;
}

/// Compares plans with those of the other ranks, which call it with equally many.
void compare(Ranks& over, const std::vector<Agreement::Planned>& plans) {
  if (plans.empty()) return;
  std::vector<SaidPlan> mine;
  for (const auto& [layer, plan] : plans) {
    mine.push_back({.kind = said_of(layer), .hash = {}});
    plan.hash().copy(mine.back().hash.data(), mine.back().hash.size());
  }
  const std::vector<std::byte> bytes =
      all_gather_bytes(over.comm(), std::as_bytes(std::span(mine)), "comparing plans");
  std::vector<SaidPlan> all(bytes.size() / sizeof(SaidPlan));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  for (size_t i = 0; i < all.size(); ++i) check_same(all[i], all[i % mine.size()], i / mine.size());
}

}  // namespace

const api::BatchPlan* Agreement::plan_of(const LayerKind& layer) const {
  const auto known = std::ranges::find(planned, layer, &Planned::layer);
  return known == planned.end() ? nullptr : &known->plan;
}

void Agreement::add(Ranks& over, const LayerKinds& layers) {
  std::vector<Planned> made = plan_kinds(over, request, layers);
  compare(over, made);
  if (planned.size() >= kMostPlanned) planned.clear();  // on all ranks at the same call
  std::ranges::move(made, std::back_inserter(planned));
}

Agreement agree(Ranks& over, const RankDocuments& mine, const LayerKinds& layers) {
  const std::scoped_lock lock(over.mutex);
  const uint64_t inputs = inputs_of(layers);
  Announcement mine_said{.ended = kGoesOn,
                         .inputs = inputs,
                         .compares = !over.compared.contains(inputs),
                         .in_pieces = mine.in_pieces,
                         .num_numbers = std::ssize(mine.numbers),
                         .num_kinds = std::ssize(layers),
                         .first = layers.empty() ? SaidKind{} : said_of(layers[0])};
  std::copy_n(mine.numbers.begin(), std::min(mine_said.num_numbers, kNumbersAtOnce),
              mine_said.numbers.begin());
  const auto said = announce(over, mine_said);

  Agreement agreed;
  agreed.request = request_of(said, all_numbers(over.comm(), mine.numbers, said));
  agreed.planned = plan_kinds(over, agreed.request, layers);
  if (std::ranges::any_of(said, [&](const Announcement& one) {
        return one.compares != 0 || one.inputs != inputs;
      })) {
    compare(over, agreed.planned);
    if (over.compared.size() >= kMostCompared) over.compared.clear();
    over.compared.insert(inputs);
  }
  Fnv1a64 latest;
  for (const Agreement::Planned& one : agreed.planned) latest.add(one.plan.hash());
  over.latest_plans = latest.value();
  return agreed;
}

void agree_on_end(Ranks& over, int64_t batches) {
  const std::scoped_lock lock(over.mutex);
  announce(over, {.ended = batches});
}

}  // namespace distca::torch_ops
