#include "distca/comm/gloo_loop.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

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

/// A thread that waits, started as Gloo's is, by one of `policy`.
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
          setpriority(PRIO_PROCESS, static_cast<id_t>(id), 1);
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

 private:
  std::latch end_{1};
  std::thread thread_;
};

TEST(GlooLoop, is_held_back_for_the_scope_and_keeps_its_priority) {
  const WaitingThread thread(SCHED_OTHER);
  ASSERT_EQ(thread.loop.threads(), std::vector{thread.id});
  {
    const GlooLoop::HeldBack held_back(thread.loop);
    EXPECT_EQ(thread.policy(), SCHED_BATCH);
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER) << "others are not";
  }
  EXPECT_EQ(thread.policy(), SCHED_OTHER);
  EXPECT_EQ(getpriority(PRIO_PROCESS, static_cast<id_t>(thread.id)), 1);
}

TEST(GlooLoop, a_thread_under_another_policy_is_left_alone) {
  const WaitingThread thread(SCHED_IDLE);
  const GlooLoop::HeldBack held_back(thread.loop);
  EXPECT_EQ(thread.policy(), SCHED_IDLE);
}

/// Of a thread of this process named as Gloo names its loop.
bool a_loop_is_held_back() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(entry.path() / "comm");
    std::string name;
    std::getline(file, name);
    if (name == "gloo_tcp_loop" &&
        sched_getscheduler(std::stoi(entry.path().filename())) == SCHED_BATCH) {
      return true;
    }
  }
  return false;
}

TEST(GlooLoop, of_a_group_is_held_back_while_it_posts) {
  std::atomic<bool> end = false;
  bool seen = false;
  std::thread observer([&] {
    const Stopwatch watch;
    while (!seen && watch.seconds() < 20) seen = a_loop_is_held_back();
    end = true;
  });
  run_on(Backend::kGloo, 2, {}, [&](Communicator& group) {
    std::byte in{}, out{};
    for (bool last = false; !last;) {
      // Rank 0 says whether this was the last exchange.
      out = end ? std::byte{1} : std::byte{0};
      const Message send{.peer = 1 - group.rank(), .tag = 1, .data = &out, .bytes = 1};
      const Message receive{.peer = 1 - group.rank(), .tag = 1, .data = &in, .bytes = 1};
      group.exchange({&send, 1}, {&receive, 1}, "one byte")->wait();
      last = (group.rank() == 0 ? out : in) != std::byte{0};
    }
  });
  observer.join();
  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace distca
