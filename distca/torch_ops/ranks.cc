#include "distca/torch_ops/ranks.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <map>

#include "distca/base/error.h"
#include "distca/comm/c10d_group.h"
#include "distca/comm/collectives.h"
#include "distca/comm/local_device.h"
#include "distca/comm/nccl/nccl_group.h"

namespace distca::torch_ops {
namespace {

constexpr size_t kRememberedKinds = 16;  // kinds of layers: each has the threads of a kernel
constexpr size_t kRememberedPlans = 8;
constexpr size_t kRememberedForwards = 4;  // two nano-batches of two steps

/// A group of one rank, which sends nothing.
class Alone : public Communicator {
 public:
  explicit Alone(int cuda_device) : cuda_device_(cuda_device) {}
  int cuda_device() const override { return cuda_device_; }
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
  const int cuda_device_;
};

/// Makes the communicators that carry Q, K, V, O and gradients of ranks that have met in a store.
/// `backend`: the argument of Ranks::open(). `is_over` returns true once the program has destroyed
/// the group.
Ranks::Connect connect_in(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                          const std::string& backend, const CommOptions& options,
                          const std::function<bool()>& is_over) {
  return [=](int cuda_device) -> std::unique_ptr<Communicator> {
    const bool on_cpu = cuda_device < 0;
    if (on_cpu && backend != "nccl") return nullptr;
    DISTCA_THROW_IF(backend == "gloo", ErrorKind::kUsage,
                    "q is on cuda:{} and backend is gloo, which carries tensors on the CPU alone: "
                    "distca.init(backend=None)",
                    cuda_device);
    const NcclLibrary& nccl = nccl_library();
    DISTCA_THROW_IF(on_cpu && !nccl.host, ErrorKind::kUsage,
                    "q is on the CPU and backend is nccl, but NCCL {} carries the memory of GPUs "
                    "alone: distca.init(backend=None)",
                    nccl_version_text(nccl.version));
    NcclDevice device = on_cpu ? host_nccl_device(nccl) : cuda_nccl_device(cuda_device);
    if (!on_cpu && local_devices().may_share) device.identity.clear();
    const auto own =
        c10::make_intrusive<c10d::PrefixStore>(on_cpu ? "nccl on the CPU" : "nccl", store);
    return make_nccl_group(*own, rank, size, options, nccl, device, is_over);
  };
}

struct Open {
  std::mutex mutex;
  std::atomic<bool> failed = false;  // the process ends with an error
  std::map<std::string, std::shared_ptr<Ranks>> by_name = {
      {"", std::make_shared<Ranks>(std::make_unique<Alone>(-1), [](int cuda_device) {
         return std::make_unique<Alone>(cuda_device);
       })}};
};
/// Never destroyed: tensors, and with them handles, may outlive static objects.
Open& opened() {
  static Open* const open = new Open;
  return *open;
}

void check_same_backend(Communicator& comm, const std::string& backend) {
  const auto all = all_gather_texts(comm, backend, "comparing backends");
  const auto text = [](const std::string& one) { return one.empty() ? "None" : one.c_str(); };
  for (size_t rank = 1; rank < all.size(); ++rank) {
    DISTCA_THROW_IF(all[rank] != all[0], ErrorKind::kUsage,
                    "rank {} opens the group with backend = {}, rank 0 with {}: all ranks give the "
                    "same",
                    rank, text(all[rank]), text(all[0]));
  }
}

}  // namespace

void Ranks::open(const std::string& name, const std::string& backend, const CommOptions& options) {
  {
    const std::scoped_lock lock(opened().mutex);
    DISTCA_THROW_IF(opened().by_name.contains(name), ErrorKind::kUsage, "process group {} is open",
                    name);
  }
  const auto theirs = c10d::resolve_process_group(name);
  const auto gloo = theirs->getBackend(c10::DeviceType::CPU);
  const auto store = c10::make_intrusive<c10d::PrefixStore>("distca", theirs->getStore());
  const auto is_over = [name] {
    try {
      return !c10d::resolve_process_group(name);
    } catch (const c10::Error&) {
      return true;
    }
  };
  auto comm = make_c10d_group(*gloo, *store, options, is_over);
  check_same_backend(*comm, backend);
  auto connect = connect_in(store, comm->rank(), comm->size(), backend, options, is_over);
  auto ranks = std::make_shared<Ranks>(std::move(comm), std::move(connect));
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

void Ranks::close(const std::string& name) {
  std::shared_ptr<Ranks> closed;  // its end waits for others
  const std::scoped_lock lock(opened().mutex);
  const auto found = opened().by_name.find(name);
  if (found == opened().by_name.end()) return;
  closed = std::move(found->second);
  opened().by_name.erase(found);
}

void Ranks::close_all(bool failed) {
  std::map<std::string, std::shared_ptr<Ranks>> closed;
  {
    const std::scoped_lock lock(opened().mutex);
    std::erase_if(opened().by_name, [&](auto& one) {
      if (one.first.empty()) return false;
      closed.insert(one);
      return true;
    });
  }
  opened().failed = failed;
}

Ranks::~Ranks() {
  for (auto& [cuda_device, carrier] : carriers_) carrier.made.clear();
  if (!opened().failed) return;
  try {
    const auto comm = std::move(comm_);  // outlives what was split from it
    const auto carriers = std::move(carriers_);
    throw Error(ErrorKind::kComm, "the program ends with an error");
  } catch (const Error&) {
    // Communicators that an exception destroys tell the others so, and do not wait.
  }
}

std::shared_ptr<api::CoreAttention> Ranks::attention(const Kind& kind) {
  auto& [own, comm, made] = carrier(kind.cuda_device);
  const auto known = std::ranges::find(made, kind, &Made::kind);
  if (known != made.end()) {
    std::rotate(known, known + 1, made.end());
    return made.back().attention;
  }
  const api::CoreAttentionOptions options{.threads = at::get_num_threads(),
                                          .kernel = api::kernel_names()[kind.kernel]};
  auto attention = made.empty() ? std::make_shared<api::CoreAttention>(*comm, kind.shape, options)
                                : std::make_shared<api::CoreAttention>(*made.back().attention,
                                                                       kind.shape, options);
  // Calls under way keep the one that is forgotten.
  if (made.size() >= kRememberedKinds) made.erase(made.begin());
  made.push_back({.kind = kind, .attention = std::move(attention)});
  return made.back().attention;
}

Ranks::Carrier& Ranks::carrier(int cuda_device) {
  const auto known = carriers_.find(cuda_device);
  if (known != carriers_.end()) return known->second;
  const auto other =
      std::ranges::find_if(carriers_, [](const auto& one) { return one.first >= 0; });
  DISTCA_THROW_IF(comm_->size() > 1 && cuda_device >= 0 && other != carriers_.end(),
                  ErrorKind::kUsage,
                  "q is on cuda:{}, and this rank has called attention of this group on cuda:{}: "
                  "one device for a group",
                  cuda_device, other->first);
  Carrier made{.own = connect_ ? connect_(cuda_device) : nullptr};
  Communicator& whole = made.own ? *made.own : *comm_;
  made.comm = whole.split_first(whole.size());
  return carriers_[cuda_device] = std::move(made);
}

api::BatchPlan Ranks::plan(const api::BatchRequest& request) {
  const auto known = std::ranges::find(planned_, request, &Planned::request);
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

LayerKinds Ranks::usual_kinds(const std::optional<LayerKind>& first) const {
  LayerKinds usual;
  if (first) usual.push_back(*first);
  for (const auto& of_forward : forwards_) {
    if (first && std::ranges::find(*of_forward, *first) == of_forward->end()) continue;
    for (const LayerKind& kind : *of_forward) {
      if (std::ranges::find(usual, kind) == usual.end()) usual.push_back(kind);
    }
  }
  return usual;
}

void Ranks::throw_if_failed() const {
  comm_->throw_if_failed();
  for (const auto& [cuda_device, carrier] : carriers_) {
    if (carrier.own) carrier.own->throw_if_failed();
  }
}

Counts Ranks::counts() const {
  Counts counts{.forwards = forwards, .backwards = backwards, .plans = plans_};
  for (const auto& [cuda_device, carrier] : carriers_) {
    if (carrier.made.empty()) continue;
    counts.sent_bytes += carrier.made.back().attention->sent_bytes();  // the sum of all kinds
  }
  return counts;
}

}  // namespace distca::torch_ops
