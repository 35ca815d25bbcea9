#include "distca/comm/board.h"

#include <sys/wait.h>
#include <csignal>
#include <cstring>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <sstream>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/base/json.h"

namespace distca {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int kBeatsToSilence = 3;
constexpr double kJudgePause = 0.05;  // seconds between two looks at the board
constexpr double kFarewell = 0.5;     // seconds a rank that ends gives its last post

double wall_seconds() {
  return Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

struct Post {
  int64_t beat = 0;
  double wall_s = 0;
  RankNews news;
};

std::string encode(const Activity& at, RankState state, int64_t beat) {
  return Json{{"among_some", at.among_some},      {"beat", beat},
              {"operation", at.operation},        {"sequence", at.sequence},
              {"state", static_cast<int>(state)}, {"step", at.step},
              {"wall_s", wall_seconds()}}
      .dump(-1, ' ', true, Json::error_handler_t::replace);
}

Post decode(const std::string& text) {
  const Json json = parse_json(text, "the board", ErrorKind::kComm);
  return {.beat = json.at("beat"),
          .wall_s = json.at("wall_s"),
          .news = {.state = static_cast<RankState>(json.at("state").get<int>()),
                   .last = {.step = json.at("step"),
                            .operation = json.at("operation"),
                            .sequence = json.at("sequence"),
                            .among_some = json.at("among_some")}}};
}

/// c10d prints a page of stack for every lost connection; what matters of it we say in one line.
void hush_c10d() {
  constexpr int kFatal = 3;
  if (!env_string("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = kFatal;
}

}  // namespace

double heartbeat_s(const CommOptions& options) { return std::min(1.0, options.timeout_s / 10); }

std::string deaths_key(const std::string& prefix) { return prefix + "deaths"; }

std::string verdict_key(const std::string& prefix) { return prefix + "verdict"; }

std::string board_key(const std::string& prefix, int rank) {
  return fmt::format("{}board/{}", prefix, rank);
}

std::string death_line(int rank, const std::string& how) {
  return fmt::format("{} {}\n", rank, how);
}

std::string describe_exit(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("exited with code {}", WEXITSTATUS(status));
  const char* name = sigabbrev_np(WTERMSIG(status));
  return fmt::format("was killed by signal {} (SIG{})", WTERMSIG(status), name ? name : "?");
}

/// What the owner and the heartbeat thread share; the members above the mutex never change.
struct Board::State {
  Rendezvous rendezvous;
  CommOptions options;
  std::function<void()> on_alarm;
  c10::intrusive_ptr<c10d::TCPStore> store;  // the heartbeat thread's alone

  std::mutex mutex;
  std::condition_variable changed;
  Activity mine;
  RankState mine_state = RankState::kLive;
  bool all_here = false;
  bool alarmed = false;
  bool ended = false;  // the heartbeat thread has
  std::optional<FailedWait> question;
  std::optional<std::string> verdict;

  // The heartbeat thread's own.
  int64_t beat = 0;
  double last_post = 0;
  std::vector<Post> seen;  // [size]

  void run();
  void post();
  void post_if_due();
  void look_for_ranks();
  void look_for_alarm();
  void answer();
  std::vector<RankNews> read_board();
  void read_deaths(std::vector<RankNews>& news);
  void raise_alarm(std::optional<std::string> text);
  void lose_store(const std::string& why);

  std::string board_key(int rank) const { return distca::board_key(rendezvous.prefix, rank); }
  std::string get(const std::string& name) {
    const std::vector<uint8_t> bytes = store->get(name);
    return {bytes.begin(), bytes.end()};
  }
};

void Board::State::run() {
  try {
    while (true) {
      post();
      look_for_ranks();
      look_for_alarm();
      std::unique_lock lock(mutex);
      if (mine_state != RankState::kLive) break;
      if (question && !verdict) {
        lock.unlock();
        answer();
        continue;
      }
      const Seconds pause(all_here ? heartbeat_s(options) : kJudgePause);
      changed.wait_for(lock, pause,
                       [&] { return mine_state != RankState::kLive || (question && !verdict); });
    }
    post();
  } catch (const std::exception& error) {
    lose_store(error.what());
  }
  std::lock_guard lock(mutex);
  ended = true;
  changed.notify_all();
}

void Board::State::post() {
  std::unique_lock lock(mutex);
  const std::string text = encode(mine, mine_state, ++beat);
  lock.unlock();
  store->set(board_key(rendezvous.rank), std::vector<uint8_t>(text.begin(), text.end()));
  last_post = steady_seconds();
}

void Board::State::post_if_due() {
  if (steady_seconds() - last_post >= heartbeat_s(options) / 2) post();
}

void Board::State::look_for_ranks() {
  {
    std::lock_guard lock(mutex);
    if (all_here) return;
  }
  std::vector<std::string> keys;
  for (int rank = 0; rank < rendezvous.size; ++rank) keys.push_back(board_key(rank));
  if (!store->check(keys)) return;
  std::lock_guard lock(mutex);
  all_here = true;
  changed.notify_all();
}

void Board::State::look_for_alarm() {
  {
    std::lock_guard lock(mutex);
    if (verdict) return;
  }
  if (store->check({verdict_key(rendezvous.prefix)}))
    return raise_alarm(get(verdict_key(rendezvous.prefix)));
  if (store->check({deaths_key(rendezvous.prefix)})) raise_alarm(std::nullopt);
}

void Board::State::raise_alarm(std::optional<std::string> text) {
  bool first = false;
  {
    std::lock_guard lock(mutex);
    if (text && !verdict) verdict = std::move(text);
    first = !std::exchange(alarmed, true);
    changed.notify_all();
  }
  if (first) on_alarm();
}

/// Without a heartbeat the others will take us for silent: we end too, and say why.
void Board::State::lose_store(const std::string& why) {
  std::string text;
  {
    std::lock_guard lock(mutex);
    if (mine_state != RankState::kLive) return;  // the store may end before our last post
    if (question) text = distca::verdict(*question, {}) + "; ";
    text += fmt::format("rank {} lost the store at {}:{} in {}: {}", rendezvous.rank,
                        rendezvous.address, rendezvous.port, to_string(mine),
                        why.substr(0, why.find('\n')));  // c10d goes on with a stack
  }
  raise_alarm(std::move(text));
}

std::vector<RankNews> Board::State::read_board() {
  std::vector<RankNews> news(rendezvous.size);
  seen.resize(rendezvous.size);
  for (int rank = 0; rank < rendezvous.size; ++rank) {
    if (!store->check({board_key(rank)})) {
      news[rank].state = RankState::kAbsent;
      continue;
    }
    seen[rank] = decode(get(board_key(rank)));
    news[rank] = seen[rank].news;
  }
  read_deaths(news);
  return news;
}

void Board::State::read_deaths(std::vector<RankNews>& news) {
  if (!store->check({deaths_key(rendezvous.prefix)})) return;
  std::istringstream lines(get(deaths_key(rendezvous.prefix)));
  int rank = -1;
  std::string how;
  while (lines >> rank && std::getline(lines >> std::ws, how)) {
    if (rank < 0 || rank >= rendezvous.size) continue;
    news[rank].state = RankState::kDead;
    news[rank].death = how;
  }
}

/// Looks at the board until it shows who ended, or long enough to tell who is silent.
void Board::State::answer() {
  const double start = steady_seconds();
  const double patience = kBeatsToSilence * heartbeat_s(options);
  std::vector<RankNews> news = read_board();
  const std::vector<Post> before = seen;
  auto someone_ended = [&] {
    return std::any_of(news.begin(), news.end(), [](const RankNews& one) {
      return one.state == RankState::kDead || one.state == RankState::kFailed;
    });
  };
  while (!someone_ended() && steady_seconds() - start < patience) {
    std::this_thread::sleep_for(Seconds(kJudgePause));
    post_if_due();
    look_for_alarm();
    {
      std::lock_guard lock(mutex);
      if (verdict) return;
    }
    news = read_board();
  }
  const double watched = steady_seconds() - start;
  for (int rank = 0; rank < rendezvous.size && watched >= patience; ++rank) {
    if (news[rank].state != RankState::kLive || seen[rank].beat != before[rank].beat) continue;
    news[rank].state = RankState::kSilent;
    // The clocks of two machines may differ; what we watched ourselves is sure.
    news[rank].silent_s = std::max(watched, wall_seconds() - seen[rank].wall_s);
  }
  const std::string text = distca::verdict(*question, news);
  const std::vector<uint8_t> bytes(text.begin(), text.end());
  const std::vector<uint8_t> holds = store->compareSet(verdict_key(rendezvous.prefix), {}, bytes);
  raise_alarm(std::string(holds.begin(), holds.end()));
}

Board::Board(const Rendezvous& rendezvous, const CommOptions& options,
             std::function<void()> on_alarm)
    : state_(std::make_shared<State>()) {
  state_->rendezvous = rendezvous;
  state_->options = options;
  state_->on_alarm = std::move(on_alarm);
  hush_c10d();
  c10d::TCPStoreOptions store_options;
  store_options.port = rendezvous.port;
  store_options.waitWorkers = false;
  store_options.timeout =
      std::chrono::milliseconds(static_cast<int64_t>(options.startup_timeout_s * 1e3));
  try {
    state_->store = c10::make_intrusive<c10d::TCPStore>(rendezvous.address, store_options);
  } catch (const std::exception&) {
    throw Error(
        ErrorKind::kComm,
        "rank {} of {} (from {}) found no store at {}:{} within {} s; does rank 0 run there?",
        rendezvous.rank, rendezvous.size, rendezvous.source, rendezvous.address, rendezvous.port,
        options.startup_timeout_s);
  }
  state_->store->setTimeout(
      std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1e3)));
  std::thread([state = state_] { state->run(); }).detach();
}

Board::~Board() {
  std::unique_lock lock(state_->mutex);
  state_->mine_state =
      std::uncaught_exceptions() > exceptions_ ? RankState::kFailed : RankState::kFinished;
  state_->changed.notify_all();
  // A store that hangs keeps the thread, which holds its own share of the state.
  state_->changed.wait_for(lock, Seconds(kFarewell), [&] { return state_->ended; });
}

void Board::wait_for_all() {
  {
    std::unique_lock lock(state_->mutex);
    state_->mine.operation = "start-up";
    const bool in_time =
        state_->changed.wait_for(lock, Seconds(state_->options.startup_timeout_s),
                                 [&] { return state_->all_here || state_->alarmed; });
    if (in_time && state_->all_here) return;
  }
  throw Error(ErrorKind::kComm, "{}",
              judge({.rank = state_->rendezvous.rank,
                     .at = {.operation = "start-up"},
                     .waited_s = state_->options.startup_timeout_s}));
}

void Board::set_step(int64_t step) {
  std::lock_guard lock(state_->mutex);
  state_->mine = {.step = step, .operation = state_->mine.operation};
}

Activity Board::begin(std::string_view operation, TakePart who) {
  std::lock_guard lock(state_->mutex);
  advance(state_->mine, operation, who);
  return state_->mine;
}

bool Board::alarmed() const {
  std::lock_guard lock(state_->mutex);
  return state_->alarmed;
}

std::string Board::judge(const FailedWait& wait) {
  std::unique_lock lock(state_->mutex);
  if (!state_->question) state_->question = wait;
  state_->changed.notify_all();
  const double patience = kBeatsToSilence * heartbeat_s(state_->options);
  state_->changed.wait_for(lock, Seconds(patience + state_->options.grace_s),
                           [&] { return state_->verdict || state_->ended; });
  if (state_->verdict) return *state_->verdict;
  return fmt::format("{}, and the store at {}:{} does not answer", distca::verdict(wait, {}),
                     state_->rendezvous.address, state_->rendezvous.port);
}

}  // namespace distca
