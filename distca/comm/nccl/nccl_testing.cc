#include "distca/comm/nccl/nccl_testing.h"

#include <ATen/ATen.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/device_stream.h"
#include "distca/comm/late_messages_testing.h"
#include "distca/comm/local_device.h"
#include "distca/comm/nccl/nccl_group.h"
#include "distca/comm/test_groups.h"

namespace distca {
namespace {

constexpr int64_t kMemory = 1 << 20;  // bytes of a rank's messages
constexpr int64_t kPauseUs = 300;     // before what a stream is given
constexpr auto kLook = std::chrono::milliseconds(1);

template <typename Function>
Function* standin_function(const char* name) {
  void* const library = dlopen(DISTCA_NCCL_STANDIN, RTLD_NOW);
  DISTCA_CHECK(library != nullptr, "{}", DISTCA_NCCL_STANDIN);
  auto* const found = reinterpret_cast<Function*>(dlsym(library, name));
  DISTCA_CHECK(found != nullptr, "{}", name);
  return found;
}

void set_faults(const std::string& text) {
  standin_function<void(const char*)>("distcaStandinFaults")(text.c_str());
}

/// Makes the stream wait for the mark, which is of any stream, before what it is given from now on.
void follow(void* stream, const DeviceMark& mark) {
  standin_function<int(void*, void*)>("distcaHostStreamFollow")(stream, mark.get());
}

using Seen = void (*)(void*, int, int, int);

void watch(Seen seen, void* argument) {
  standin_function<void(Seen, void*)>("distcaStandinWatch")(seen, argument);
}

at::Tensor bytes_at(const std::byte* from, int64_t bytes, const at::Device& device) {
  return at::from_blob(const_cast<std::byte*>(from), {bytes},
                       at::TensorOptions(at::kByte).device(device));
}

NcclDevice real_device(int rank) {
  const LocalDevices devices = local_devices();
  NcclDevice device = cuda_nccl_device(local_device(rank, devices));
  if (devices.may_share) device.identity.clear();
  return device;
}

}  // namespace

bool nccl_is_real() { return env_string("DISTCA_TEST_NCCL") == "cuda"; }

std::string nccl_cannot_run() {
  if (!nccl_is_real()) return "";
  const LocalDevices devices = local_devices();
  if (devices.visible == 0) return "no CUDA device on this machine";
  return nccl_ranks(2) == 2 ? "" : "one device, and DISTCA_NCCL_SAME_DEVICE=1 is not set";
}

int nccl_ranks(int wanted) {
  if (!nccl_is_real()) return wanted;
  const LocalDevices devices = local_devices();
  return std::min(wanted, std::max(devices.visible, devices.may_share ? 2 : 0));
}

/// The calling thread's stream: of a CUDA device, or one of the stand-in's. None: host memory.
struct NcclTestRank::Current {
  ~Current() {
    if (host_stream) host.destroy(host_stream);
  }
  DeviceMark mark() const {
    void* made = nullptr;
    host.mark(host_stream, &made);
    return {made, [host = host](void* one) { host.free_mark(one); }};
  }

  std::shared_ptr<void> of_thread = {};
  testing::Streams cuda = {};
  HostStreams host = {};
  void* host_stream = nullptr;
};

NcclTestRank::NcclTestRank(int rank, bool late)
    : rank(rank),
      nccl(nccl_is_real() ? nccl_library() : nccl_standin()),
      device(nccl_is_real() ? real_device(rank) : host_nccl_device(nccl)),
      current_(std::make_unique<Current>()) {
  if (nccl_is_real()) {
    current_->of_thread = cuda_thread_device(device.cuda_device).begin_rank();
    current_->cuda = testing::cuda_streams(device.cuda_device);
  } else if (late) {
    current_->host = *nccl.host;
    current_->host.create(&current_->host_stream);
    const Current* const current = current_.get();
    device.mark = [current] { return current->mark(); };
    device.communicate_behind = [to = device.stream](const DeviceMark& mark) { follow(to, mark); };
    device.follow = [current](const DeviceMark& mark, double) {
      follow(current->host_stream, mark);
      return true;
    };
  }
  memory_ = device.allocate(kMemory);
  if (!nccl_is_real()) return;
  // Kernels that are loaded while NCCL waits on the device for another rank of this process may
  // wait for it in turn. So what tests compute is computed once before.
  const at::Tensor one = number(memory_.get()), other = number(memory_.get() + sizeof(int64_t));
  one.fill_(1).mul_(3).add_(other.fill_(1));
  other.copy_(one).mul_(5).add_(1).remainder_(2);
  delay(1);
  wait();
}
NcclTestRank::~NcclTestRank() = default;

std::unique_ptr<Communicator> NcclTestRank::join(uint16_t port, int size,
                                                 const CommOptions& options) const {
  return make_nccl_group(at_port(port, rank, size), options, nccl, device);
}

std::byte* NcclTestRank::take(int64_t bytes) {
  constexpr int64_t kAligned = 64;
  DISTCA_CHECK(bytes <= kMemory / 4, "{} bytes of one message", bytes);
  if (taken_ + bytes > kMemory) taken_ = 0;
  std::byte* const at = memory_.get() + taken_;
  taken_ += (bytes + kAligned - 1) / kAligned * kAligned;
  return at;
}

void NcclTestRank::fill(std::byte* to, const std::vector<std::byte>& bytes) const {
  const auto count = static_cast<int64_t>(bytes.size());
  bytes_at(to, count, aten_device(device.cuda_device))
      .copy_(bytes_at(bytes.data(), count, at::kCPU));
}

std::vector<std::byte> NcclTestRank::read(const std::byte* from, int64_t bytes) const {
  std::vector<std::byte> host(static_cast<size_t>(bytes));
  bytes_at(host.data(), bytes, at::kCPU)
      .copy_(bytes_at(from, bytes, aten_device(device.cuda_device)));
  return host;
}

at::Tensor NcclTestRank::number(std::byte* at) const {
  return at::from_blob(at, {1},
                       at::TensorOptions(at::kLong).device(aten_device(device.cuda_device)));
}

void NcclTestRank::give(std::function<void()> work) const {
  if (!current_->host_stream) {
    delay(kPauseUs);
    return work();
  }
  standin_function<int(void*, void (*)(void*), void*)>("distcaHostStreamCall")(
      current_->host_stream,
      [](void* given) {
        const std::unique_ptr<std::function<void()>> one(
            static_cast<std::function<void()>*>(given));
        std::this_thread::sleep_for(std::chrono::microseconds(kPauseUs));
        (*one)();
      },
      new std::function<void()>(std::move(work)));
}

void NcclTestRank::delay(int64_t microseconds) const {
  if (current_->cuda.spin) current_->cuda.spin(microseconds);
}

void NcclTestRank::wait(const Communicator* group) const {
  const DeviceMark end = device.mark();
  while (!device.has_passed(end)) {
    if (group) group->throw_if_failed();
    std::this_thread::sleep_for(kLook);
  }
  if (group) group->throw_if_failed();
}

void NcclTestRank::wait(const Communicator& group, PendingExchange& pending) const {
  pending.wait();
  wait(&group);
}

void run_nccl_ranks(int size, const CommOptions& options,
                    const std::function<void(Communicator&, NcclTestRank&)>& body) {
  run_with_store(size, [&](uint16_t port, int number) {
    NcclTestRank rank(number);
    body(*rank.join(port, size, options), rank);
  });
}

StandinFaults::StandinFaults(const std::string& text) { set_faults(text); }
StandinFaults::~StandinFaults() { set_faults(""); }

StandinGroups::StandinGroups(std::function<void(int rank, int sends, int receives)> seen)
    : seen_(std::move(seen)) {
  watch([](void* self, int rank, int sends,
           int receives) { static_cast<StandinGroups*>(self)->seen_(rank, sends, receives); },
        this);
}
StandinGroups::~StandinGroups() { watch(nullptr, nullptr); }

}  // namespace distca
