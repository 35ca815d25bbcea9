#include "distca/comm/gloo_loop.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <latch>
#include <string>
#include <thread>

#include "distca/base/clock.h"
#include "distca/comm/test_groups.h"

namespace distca {
namespace {

/// A thread that waits, started as Gloo's is, by a thread of `policy`.
class WaitingThread {
 public:
  explicit WaitingThread(int policy) {
    std::latch started(1);
    std::thread([&] {
      const sched_param none{};
      sched_setscheduler(0, policy, &none);
      loop.start([&] {
        thread_ = std::thread([&] {
          id = gettid();
          nice = std::min(19, getpriority(PRIO_PROCESS, 0) + 1);
          setpriority(PRIO_PROCESS, 0, nice);
          started.count_down();
          end_.wait();
        });
      });
    }).join();
    started.wait();
  }
  ~WaitingThread() {
    end_.count_down();
    thread_.join();
  }
  int policy() const { return sched_getscheduler(id); }

  GlooLoop loop;
  pid_t id = 0;
  int nice = 0;

 private:
  std::latch end_{1};
  std::thread thread_;
};

TEST(GlooLoop, is_held_back_for_the_scope_and_keeps_its_priority) {
  const int own_policy = sched_getscheduler(0);
  const WaitingThread thread(SCHED_OTHER);
  ASSERT_EQ(thread.loop.threads(), std::vector{thread.id});
  {
    const GlooLoop::HeldBack held_back(thread.loop);
    EXPECT_EQ(thread.policy(), SCHED_BATCH);
    EXPECT_EQ(sched_getscheduler(0), own_policy) << "others are not";
  }
  EXPECT_EQ(thread.policy(), SCHED_OTHER);
  EXPECT_EQ(getpriority(PRIO_PROCESS, static_cast<id_t>(thread.id)), thread.nice);
}

TEST(GlooLoop, a_thread_under_another_policy_is_left_alone) {
  const WaitingThread thread(SCHED_IDLE);
  const GlooLoop::HeldBack held_back(thread.loop);
  EXPECT_EQ(thread.policy(), SCHED_IDLE);
}

/// Returns true if a thread with the name that Gloo gives its loop has this policy.
bool a_loop_has(int policy) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(entry.path() / "comm");
    std::string name;
    std::getline(file, name);
    if (name == "gloo_tcp_loop" &&
        sched_getscheduler(std::stoi(entry.path().filename())) == policy) {
      return true;
    }
  }
  return false;
}

TEST(GlooLoop, of_a_group_is_held_back_while_it_posts_and_only_then) {
  if (sched_getscheduler(0) != SCHED_OTHER) GTEST_SKIP() << "not under the ordinary policy";
  std::atomic<bool> end = false;
  bool held = false, free = false;
  std::jthread observer([&] {
    const Stopwatch watch;
    while (!(held && free) && watch.seconds() < 300) {
      held = held || a_loop_has(SCHED_BATCH);
      free = free || a_loop_has(SCHED_OTHER);
    }
    end = true;
  });
  run_on(Backend::kGloo, 2, {}, [&](Communicator& group) {
    std::byte in{}, out{};
    for (bool last = false; !last;) {
      out = end ? std::byte{1} : std::byte{0};  // rank 0 says whether this is the last exchange
      const Message send{.peer = 1 - group.rank(), .tag = 1, .data = &out, .bytes = 1};
      const Message receive{.peer = 1 - group.rank(), .tag = 1, .data = &in, .bytes = 1};
      group.exchange({&send, 1}, {&receive, 1}, "one byte")->wait();
      last = (group.rank() == 0 ? out : in) != std::byte{0};
    }
  });
  observer.join();
  EXPECT_TRUE(held) << "or Gloo names its thread otherwise";
  EXPECT_TRUE(free);
}

}  // namespace
}  // namespace distca
