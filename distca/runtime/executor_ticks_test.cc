// The executor plays a two-stage pipeline (program/ticks_testing.h) as it is.

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "distca/program/ticks_testing.h"
#include "distca/runtime/executor.h"

namespace distca::testing {
namespace {

/// Messages between the stages: a number each, by sender and tag.
class Mailbox {
 public:
  void put(int from, uint32_t tag, double value) {
    const std::lock_guard lock(mutex_);
    messages_[{from, tag}] = value;
    arrived_.notify_all();
  }
  double take(int from, uint32_t tag, const std::string& what) {
    std::unique_lock lock(mutex_);
    const auto is_there = [&] { return messages_.contains({from, tag}); };
    if (!arrived_.wait_for(lock, std::chrono::seconds(20), is_there)) {
      throw std::runtime_error(what + ": nothing came from stage " + std::to_string(from));
    }
    return messages_.extract({from, tag}).mapped();
  }
  bool empty() const { return messages_.empty(); }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<int, uint32_t>, double> messages_;
};

/// A model whose layers add 1 to the activation, and to its gradient.
class StagePlayer final : public OpPlayer {
 public:
  StagePlayer(const Program& program, int stage, Mailbox& mailbox)
      : stage_(stage), mailbox_(mailbox), buffers_(program.buffers.size()) {}

  void play(const Op& op) override {
    double& value = running(op);
    const bool forward = op.pass == Pass::kForward;
    if (op.kind == OpKind::kEmbed && forward) value = 100.0 * op.nano_batch;
    if (op.kind == OpKind::kLoss && !forward) value = 1;
    if (op.kind == (forward ? OpKind::kPost : OpKind::kPre)) value += 1;
    if (op.kind == (forward ? OpKind::kLoss : OpKind::kEmbed)) results[op.nano_batch] = value;
    if (op.kind == OpKind::kAttend && !op.writes.empty()) {
      buffers_[op.writes[0]] = buffers_[op.reads[0]] + 0.5;  // a server's answer
      ++tasks_served;
    }
  }
  void pack(const Op& op) override {
    if (op.kind == OpKind::kHandOver && op.out >= 0) buffers_[op.out] = running(op);
    if (op.kind == OpKind::kEnter || op.kind == OpKind::kResend) {
      asked_ = op.tag;
      if (op.out >= 0) buffers_[op.out] = op.tag;
    }
  }
  void post(const Op& op) override {
    for (const OpMessage& message : op.sends) {
      EXPECT_EQ(message.bytes, TickStage::kMessageBytes);
      mailbox_.put(stage_, op.tag, buffers_[op.out]);
    }
  }
  void wait(const Op& op) override {
    for (const OpMessage& message : op.receives) {
      buffers_[op.in] = mailbox_.take(message.peer, op.tag, describe(op));
    }
  }
  void land(const Op& op) override {
    if (op.receives.empty()) return;
    if (op.kind == OpKind::kHandOver) running(op) = buffers_[op.in];
    if (op.kind != OpKind::kLeave) return;
    // Of what this stage has asked for last: by resend, one tag before enter, in backward.
    EXPECT_EQ(buffers_[op.in], asked_ - (op.pass == Pass::kBackward ? 1 : 0) + 0.5) << describe(op);
  }
  void wait_sent(const Op&) override {}

  std::map<int, double> results;  // [nano-batch] the loss, or the embedding's gradient
  int tasks_served = 0;

 private:
  double& running(const Op& op) { return running_[{op.pass, op.nano_batch}]; }

  int stage_;
  Mailbox& mailbox_;
  std::vector<double> buffers_;
  std::map<std::pair<Pass, int>, double> running_;
  double asked_ = 0;
};

TEST(Executor, plays_a_two_stage_pipeline_as_it_is) {
  const std::vector<Program> programs = tick_programs();
  Mailbox mailbox;
  StagePlayer first(programs[0], 0, mailbox), second(programs[1], 1, mailbox);
  OpTimes times[2];
  std::thread other([&] { EXPECT_NO_THROW(distca::play(programs[1], second, &times[1])); });
  EXPECT_NO_THROW(distca::play(programs[0], first, &times[0]));
  other.join();
  EXPECT_TRUE(mailbox.empty());
  EXPECT_EQ(second.results, (std::map<int, double>{{0, 4}, {1, 104}})) << "four layers";
  EXPECT_EQ(first.results, (std::map<int, double>{{0, 5}, {1, 5}}));
  // Each stage serves the other's two micro-batches, two layers, both passes, idle or not.
  EXPECT_EQ(first.tasks_served, 8);
  EXPECT_EQ(second.tasks_served, 8);
}

}  // namespace
}  // namespace distca::testing
