#include "distca/torch_ops/ranks.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <map>
#include <numeric>

#include "distca/base/error.h"
#include "distca/comm/c10d_group.h"

namespace distca::torch_ops {
namespace {

constexpr size_t kMostKinds = 60;  // of layers: each is a group of its own (Communicator::split)
constexpr size_t kRememberedPlans = 8;
constexpr size_t kRememberedForwards = 4;  // two nano-batches of two steps

/// A group of one rank, which sends nothing.
class Alone : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<PendingExchange> exchange(std::span<const Message> sends,
                                            std::span<const Message> receives,
                                            std::string_view operation) override {
    DISTCA_CHECK(sends.empty() && receives.empty(), "messages of a single rank: {}", operation);
    return std::make_unique<Nothing>();
  }
  void set_step(int64_t) override {}

 private:
  struct Nothing : PendingExchange {
    void wait_received() override {}
    void wait() override {}
  };
};

struct Open {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Ranks>> by_name = {
      {"", std::make_shared<Ranks>(std::make_unique<Alone>())}};
};
/// Never destroyed: tensors, and with them handles, may outlive static objects.
Open& opened() {
  static Open* const open = new Open;
  return *open;
}

bool same(const api::BatchRequest& a, const api::BatchRequest& b) {
  return a.cu_seqlens == b.cu_seqlens && a.num_ranks == b.num_ranks && a.shape == b.shape &&
         a.window_left == b.window_left && a.tokens == b.tokens && a.linear_work == b.linear_work;
}

void add_missing(LayerKinds& kinds, const LayerKinds& more) {
  for (const LayerKind& kind : more) {
    if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
  }
}

}  // namespace

void Ranks::open(const std::string& name, const CommOptions& options) {
  {
    const std::scoped_lock lock(opened().mutex);
    DISTCA_THROW_IF(opened().by_name.contains(name), ErrorKind::kUsage, "process group {} is open",
                    name);
  }
  const auto theirs = c10d::resolve_process_group(name);
  const auto backend = theirs->getBackend(c10::DeviceType::CPU);
  const auto store = c10::make_intrusive<c10d::PrefixStore>("distca", theirs->getStore());
  auto ranks = std::make_shared<Ranks>(make_c10d_group(*backend, *store, options));
  const std::scoped_lock lock(opened().mutex);
  opened().by_name[name] = std::move(ranks);
}

std::shared_ptr<Ranks> Ranks::find(const std::string& name) {
  const std::scoped_lock lock(opened().mutex);
  const auto found = opened().by_name.find(name);
  DISTCA_THROW_IF(found == opened().by_name.end(), ErrorKind::kUsage,
                  "process group {} is not open", name);
  return found->second;
}

void Ranks::close_all() {
  std::map<std::string, std::shared_ptr<Ranks>> closed;
  const std::scoped_lock lock(opened().mutex);
  std::erase_if(opened().by_name, [&](auto& one) {
    if (one.first.empty()) return false;
    closed.insert(one);
    return true;
  });
}

api::CoreAttention& Ranks::attention(const Kind& kind) {
  const auto known = std::ranges::find(made_, kind, &Made::kind);
  if (known != made_.end()) return *known->attention;
  DISTCA_THROW_IF(
      made_.size() >= kMostKinds, ErrorKind::kUsage,
      "more than {} kinds of layers: heads, head_dim, dtype and softmax_scale make a kind",
      kMostKinds);
  std::vector<int> all(comm_->size());
  std::iota(all.begin(), all.end(), 0);
  auto comm = comm_->split(all);
  auto attention = std::make_unique<api::CoreAttention>(
      *comm, kind.shape,
      api::CoreAttentionOptions{.softmax_scale = kind.softmax_scale,
                                .threads = at::get_num_threads()});
  made_.push_back({.kind = kind, .comm = std::move(comm), .attention = std::move(attention)});
  return *made_.back().attention;
}

api::BatchPlan Ranks::plan(const api::BatchRequest& request) {
  const auto known = std::ranges::find_if(
      planned_, [&](const Planned& one) { return same(one.request, request); });
  if (known != planned_.end()) {
    std::rotate(known, known + 1, planned_.end());
    return planned_.back().plan;
  }
  api::BatchPlan made = api::plan_batch(request);
  ++plans_;
  if (planned_.size() >= kRememberedPlans) planned_.erase(planned_.begin());
  planned_.push_back({.request = request, .plan = made});
  return made;
}

void Ranks::note_forward(std::shared_ptr<LayerKinds> kinds) {
  if (forwards_.size() >= kRememberedForwards) forwards_.erase(forwards_.begin());
  forwards_.push_back(std::move(kinds));
}

LayerKinds Ranks::usual_kinds() const {
  LayerKinds usual;
  for (const auto& of_forward : forwards_) add_missing(usual, *of_forward);
  return usual;
}

LayerKinds Ranks::usual_kinds(const LayerKind& first) const {
  LayerKinds usual{first};
  for (const auto& of_forward : forwards_) {
    if (std::ranges::find(*of_forward, first) != of_forward->end()) add_missing(usual, *of_forward);
  }
  return usual;
}

Counts Ranks::counts() const {
  Counts counts{.forwards = forwards, .backwards = backwards, .plans = plans_};
  for (const Made& made : made_) counts.sent_bytes += made.attention->sent_bytes();
  return counts;
}

}  // namespace distca::torch_ops
