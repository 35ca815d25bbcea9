// A fault is written as KIND,rank=R,group=N; several are separated by ';'. KIND is delay, hang,
// error, refuse, block or start. Without rank=, every rank has it, without group=, every group. A
// delay has us=MICROSECONDS: each takes a random part of it.
#include "distca/comm/test_nccl/faults.h"

#include <cstdlib>
#include <mutex>
#include <random>
#include <sstream>
#include <vector>

#include "distca/base/env.h"

namespace standin {
namespace {

struct Rule {
  std::string kind;
  int rank = -1;
  int64_t group = -1;
  int64_t us = 0;
};

std::vector<Rule> parse(const std::string& text) {
  std::vector<Rule> rules;
  std::istringstream all(text);
  for (std::string one; std::getline(all, one, ';');) {
    std::istringstream words(one);
    Rule rule;
    std::getline(words, rule.kind, ',');
    for (std::string word; std::getline(words, word, ',');) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos) std::abort();  // a test's own mistake
      const std::string name = word.substr(0, equals);
      const int64_t value = std::atoll(word.c_str() + equals + 1);
      if (name == "rank") rule.rank = static_cast<int>(value);
      if (name == "group") rule.group = value;
      if (name == "us") rule.us = value;
    }
    rules.push_back(rule);
  }
  return rules;
}

struct Rules {
  std::mutex mutex;
  std::vector<Rule> rules;
};

Rules& rules() {
  static Rules* const all = [] {
    auto* made = new Rules;  // threads that were left behind may ask until the process is gone
    made->rules = parse(distca::env_string("DISTCA_NCCL_STANDIN").value_or(""));
    return made;
  }();
  return *all;
}

FaultKind kind_of(const std::string& word) {
  if (word == "delay") return FaultKind::kDelay;
  if (word == "hang") return FaultKind::kHang;
  if (word == "error") return FaultKind::kError;
  if (word == "refuse") return FaultKind::kRefuse;
  if (word == "block") return FaultKind::kBlock;
  return FaultKind::kNone;
}

}  // namespace

Fault fault_of(int rank, int64_t group) {
  thread_local std::mt19937 random(17u + static_cast<unsigned>(rank));
  std::lock_guard lock(rules().mutex);
  for (const Rule& rule : rules().rules) {
    if (rule.kind == "start" || (rule.rank >= 0 && rule.rank != rank)) continue;
    if (rule.group >= 0 && rule.group != group) continue;
    const int64_t delay =
        rule.us > 0 ? static_cast<int64_t>(random() % static_cast<uint64_t>(rule.us + 1)) : 0;
    return {.kind = kind_of(rule.kind), .delay_us = delay};
  }
  return {};
}

bool hangs_at_start(int rank) {
  std::lock_guard lock(rules().mutex);
  for (const Rule& rule : rules().rules) {
    if (rule.kind == "start" && (rule.rank < 0 || rule.rank == rank)) return true;
  }
  return false;
}

}  // namespace standin

/// Replaces what the environment variable DISTCA_NCCL_STANDIN asked for.
extern "C" void distcaStandinFaults(const char* text) {
  std::lock_guard lock(standin::rules().mutex);
  standin::rules().rules = standin::parse(text);
}
