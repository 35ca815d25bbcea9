#include "distca/comm/health/heartbeat.h"

#include <c10/util/Logging.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/comm/health/beat.h"
#include "distca/comm/launch/own_address.h"
#include "distca/comm/launch/run_store.h"
#include "distca/comm/launch/store_keys.h"

namespace distca {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int kBeatsToSilence = 3;
constexpr int kBeatsToSuspicion = 6;  // beats the next rank misses at start-up until it is lost
constexpr double kFirstPause = 0.05;  // seconds between the first two looks at the store
constexpr double kShortPause = 1e-3;  // seconds likewise, while ranks connect
constexpr double kExitReport = 2;     // seconds a rank that ends gives its last heartbeat, at most

/// c10d prints a page of stack for every lost connection; what matters of it we say in one line.
void hush_c10d() {
  constexpr int kFatal = 3;
  if (!env_string("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = kFatal;
}

}  // namespace

double heartbeat_s(const CommOptions& options) { return std::min(1.0, options.timeout_s / 10); }

/// A point that all ranks reach: each counts itself, and the last one says so.
struct Heartbeat::Meeting {
  const char* count_key;
  const char* all_key;
  double pause;          // until the next look: the heartbeat thread's own, as is the next one
  bool counted = false;  // this rank
  bool all = false;      // only the heartbeat thread writes it, under the mutex
};

/// The state that owner and heartbeat thread share; the members above the mutex never change.
struct Heartbeat::State {
  Rendezvous rendezvous;
  CommOptions options;
  std::function<void()> on_alarm;
  std::function<bool()> is_over;  // Null means never.
  double startup_deadline = steady_seconds() + options.startup_timeout_s;
  std::string address = {};  // our interface's towards the store; empty for a store made elsewhere
  std::unique_ptr<RunStore> store = {};  // the heartbeat thread's, but for keys_handled()

  std::mutex mutex;
  std::condition_variable changed;
  Activity mine;
  std::vector<int> awaits;  // ranks
  std::atomic<RankState> mine_state = RankState::kLive;
  std::atomic<bool> starting = true;
  std::atomic<bool> connected = false;
  std::atomic<bool> alarmed = false;
  std::optional<FailedWait> question;
  std::atomic<bool> neighbour_lost = false;
  // Only the heartbeat thread writes these, so it reads them without the mutex.
  Meeting here{"arrived", "here", kFirstPause};
  Meeting connection{"connected", "all connected", kShortPause};
  bool several_networks = false;
  std::optional<std::string> outside;  // an address of another machine
  std::optional<std::string> diagnosis;
  bool ended = false;  // the heartbeat thread has

  // The heartbeat thread's own.
  int64_t number = 0;  // the number of our last heartbeat
  double last_beat = 0;
  int64_t neighbour_beat = -1;
  int same_beat = 0;     // looks at the next rank that found no new heartbeat
  double last_look = 0;  // at it

  void run();
  void beat();
  void beat_if_due();
  void report_exit();
  void report_network();
  void look_for_ranks();
  void look_for_connected();
  bool have_met(Meeting& meeting);
  double pause() const;
  void look_at_neighbour();
  void look_for_alarm();
  void answer();
  bool linger(double& pause);
  bool wait_for_diagnosis();
  void diagnose_all();
  std::vector<Beat> read_all();
  void raise_alarm(std::optional<std::string> text);
  void lose_store(const std::string& why);

  std::string key(std::string_view name) const { return rendezvous.prefix + std::string(name); }
  bool is_connecting() const { return connected && !connection.all; }
  double silence_s() const { return kBeatsToSilence * heartbeat_s(options); }
};

void Heartbeat::State::run() {
  try {
    while (!is_over || !is_over()) {
      if (here.all && !is_connecting())
        beat();
      else
        beat_if_due();
      look_for_ranks();
      look_for_connected();
      look_at_neighbour();
      look_for_alarm();
      std::unique_lock lock(mutex);
      if (mine_state != RankState::kLive) {
        lock.unlock();
        beat();
        report_exit();
        break;
      }
      if (question && !diagnosis) {
        lock.unlock();
        answer();
        continue;
      }
      changed.wait_for(lock, Seconds(pause()), [&] {
        return mine_state != RankState::kLive || (question && !diagnosis) ||
               (connected && !connection.counted);
      });
    }
  } catch (const std::exception& error) {
    lose_store(first_line(error));
  }
  std::lock_guard lock(mutex);
  ended = true;
  changed.notify_all();
}

void Heartbeat::State::beat() {
  std::unique_lock lock(mutex);
  const RankNews news{.state = mine_state, .last = mine, .awaits = awaits};
  lock.unlock();
  const std::string text = encode_beat(news, ++number);
  store->set(heartbeat_key(rendezvous.prefix, rendezvous.rank), text);
  last_beat = steady_seconds();
}

void Heartbeat::State::beat_if_due() {
  if (steady_seconds() - last_beat >= heartbeat_s(options) / 2) beat();
}

double Heartbeat::State::pause() const {
  if (!here.all) return here.pause;
  return is_connecting() ? connection.pause : heartbeat_s(options);
}

/// Returns true if all ranks are known to have come to the meeting. This one has.
bool Heartbeat::State::have_met(Meeting& meeting) {
  if (!std::exchange(meeting.counted, true) &&
      store->add(key(meeting.count_key), 1) == rendezvous.size)
    store->set(key(meeting.all_key), "1");
  meeting.pause = std::min(2 * meeting.pause, heartbeat_s(options));
  return store->has(key(meeting.all_key));
}

/// The last rank to say it takes away what the ranks have left in a store that lives on.
void Heartbeat::State::report_exit() {
  // All look for this key. NCCL has been seen not to tell ranks that share a device.
  if (mine_state == RankState::kFailed) store->set_first(deaths_key(rendezvous.prefix), "\n");
  if (store->add(exit_reports_key(rendezvous.prefix), 1) == rendezvous.size)
    store->forget(keys_of_run(rendezvous.prefix, rendezvous.size));
}

void Heartbeat::State::look_for_ranks() {
  if (here.all) return;
  if (!here.counted && !address.empty()) report_network();
  if (!have_met(here)) return;
  const bool several = store->has(key("networks"));
  std::optional<std::string> address;
  if (several) address = store->find(key("outside"));
  std::lock_guard lock(mutex);
  several_networks = several;
  outside = std::move(address);
  here.all = true;
  changed.notify_all();
}

void Heartbeat::State::look_for_connected() {
  if (!is_connecting() || !have_met(connection)) return;
  std::lock_guard lock(mutex);
  connection.all = true;
  changed.notify_all();
}

/// Says whether this rank reaches the store as the first one does, so that all know when some are
/// on other machines.
void Heartbeat::State::report_network() {
  const std::string own = network_id();
  if (store->set_first(key("network"), own) != own) store->set(key("networks"), "1");
  if (!is_loopback(address)) store->set_first(key("outside"), address);
}

/// A rank that dies before all are connected may have nobody who waits for a message of it.
void Heartbeat::State::look_at_neighbour() {
  const int next = (rendezvous.rank + 1) % rendezvous.size;
  if (!starting || next == rendezvous.rank) return;
  if (steady_seconds() - last_look < heartbeat_s(options)) return;
  last_look = steady_seconds();
  const std::string its_key = heartbeat_key(rendezvous.prefix, next);
  if (!here.all && !store->has(its_key)) return;
  const Beat beat = decode_beat(store->get(its_key));
  same_beat = beat.number == neighbour_beat ? same_beat + 1 : 0;
  neighbour_beat = beat.number;
  // One that has ended well was connected to all ranks, though this one may not know it yet.
  const bool silent = same_beat >= kBeatsToSuspicion && beat.news.state != RankState::kFinished;
  std::lock_guard lock(mutex);
  neighbour_lost = silent || beat.news.state == RankState::kFailed;
  if (neighbour_lost) changed.notify_all();
}

void Heartbeat::State::look_for_alarm() {
  if (diagnosis) return;
  if (auto text = store->find(diagnosis_key(rendezvous.prefix))) return raise_alarm(text);
  if (store->has(deaths_key(rendezvous.prefix))) raise_alarm(std::nullopt);
}

void Heartbeat::State::raise_alarm(std::optional<std::string> text) {
  std::unique_lock lock(mutex);
  if (text && !diagnosis) diagnosis = std::move(text);
  const bool first = !alarmed.exchange(true);
  changed.notify_all();
  lock.unlock();
  if (first) on_alarm();
}

/// Without a heartbeat the others will take us for silent: we end too, and say why.
void Heartbeat::State::lose_store(const std::string& why) {
  std::unique_lock lock(mutex);
  if (mine_state != RankState::kLive) return;  // the store may end before our last heartbeat
  std::string text = question ? distca::diagnosis(*question, {}) + "; " : "";
  text += fmt::format("rank {} lost {} in {}: {}", rendezvous.rank, store_name(rendezvous),
                      to_string(mine), why);
  lock.unlock();
  raise_alarm(std::move(text));
}

/// [rank]
std::vector<Beat> Heartbeat::State::read_all() {
  std::vector<std::string> keys;
  for (int rank = 0; rank < rendezvous.size; ++rank)
    keys.push_back(heartbeat_key(rendezvous.prefix, rank));
  std::vector<Beat> beats;
  for (const auto& text : store->get_each(keys, here.all))
    beats.push_back(text ? decode_beat(*text) : Beat{.news = {.state = RankState::kAbsent}});
  read_deaths(store->find(deaths_key(rendezvous.prefix)).value_or(""), beats);
  return beats;
}

/// One rank reads all heartbeats for the others, unless it is lost itself.
void Heartbeat::State::answer() {
  const std::string own = std::to_string(rendezvous.rank);
  if (store->set_first(key("diagnosing_rank"), own) == own || !wait_for_diagnosis()) diagnose_all();
}

/// Sleeps, longer each time, and lives on. True once the diagnosis has come.
bool Heartbeat::State::linger(double& pause) {
  std::this_thread::sleep_for(Seconds(pause));
  pause = std::min(2 * pause, heartbeat_s(options) / 2);
  beat_if_due();
  look_for_alarm();
  return diagnosis.has_value();
}

/// True when the diagnosis has come, or nobody asks any more.
bool Heartbeat::State::wait_for_diagnosis() {
  const Stopwatch watch;
  double pause = kFirstPause;
  while (watch.seconds() < 2 * silence_s()) {
    if (linger(pause) || mine_state != RankState::kLive) return true;
  }
  return false;
}

/// Looks at the heartbeats until they show who ended, or long enough to see who is silent. What a
/// live rank was at counts as of the first look: a late one may arrive while we look, and then
/// waits for ranks that have given up.
void Heartbeat::State::diagnose_all() {
  const Stopwatch watch;
  const double patience = silence_s();
  double pause = kFirstPause;
  const std::vector<Beat> first = read_all();
  std::vector<Beat> last = first;
  auto someone_ended = [&] {
    return std::ranges::any_of(last, [](const Beat& one) {
      return one.news.state == RankState::kDead || one.news.state == RankState::kFailed;
    });
  };
  while (!someone_ended() && watch.seconds() < patience) {
    if (linger(pause)) return;
    last = read_all();
  }
  const double watched = watch.seconds();
  std::vector<RankNews> news;
  for (int rank = 0; rank < rendezvous.size; ++rank) {
    RankNews& one = news.emplace_back(last[rank].news);
    if (one.state != RankState::kLive) continue;
    if (watched >= patience && last[rank].number == first[rank].number) {
      one.state = RankState::kSilent;
      // The clocks of two machines may differ; what we watched ourselves is sure.
      one.silent_s = std::max(watched, wall_seconds() - last[rank].wall_s);
    } else if (first[rank].news.state == RankState::kLive) {
      one = first[rank].news;
    }
  }
  const std::string text = distca::diagnosis(*question, news);
  raise_alarm(store->set_first(diagnosis_key(rendezvous.prefix), text));
}

Heartbeat::Heartbeat(const Rendezvous& rendezvous, const CommOptions& options,
                     std::function<void()> on_alarm, c10d::Store* made,
                     std::function<bool()> is_over)
    : state_(new State{rendezvous, options, std::move(on_alarm), std::move(is_over)}) {
  if (!made) hush_c10d();  // a program that has made its store reads c10d's messages
  state_->store = std::make_unique<RunStore>(rendezvous, options, made);
  // Only now: a name may become known while its machine starts.
  if (!made) {
    state_->address =
        address_towards(rendezvous.address, rendezvous.port).value_or(rendezvous.address);
  }
  std::thread([state = state_] { state->run(); }).detach();
}

Heartbeat::~Heartbeat() {
  std::unique_lock lock(state_->mutex);
  state_->mine_state =
      std::uncaught_exceptions() > exceptions_ ? RankState::kFailed : RankState::kFinished;
  state_->changed.notify_all();
  // A store that hangs keeps the thread, which holds its own share of the state.
  state_->changed.wait_for(lock, Seconds(kExitReport), [&] { return state_->ended; });
}

/// Returns when all ranks have met; throws the diagnosis of `wait` if they do not by the deadline.
void Heartbeat::wait_for(const Meeting& meeting, FailedWait wait) {
  const Stopwatch watch;
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, Seconds(state_->startup_deadline - steady_seconds()), [&] {
    return meeting.all || state_->alarmed || state_->neighbour_lost;
  });
  if (meeting.all) return;
  lock.unlock();
  wait.waited_s = watch.seconds();
  throw Error(ErrorKind::kComm, "{}", diagnose(wait));
}

void Heartbeat::wait_for_all() {
  wait_for(state_->here, {.rank = state_->rendezvous.rank, .at = begin("start-up")});
}

void Heartbeat::wait_for_all_connected() {
  FailedWait wait{.rank = state_->rendezvous.rank};
  for (int peer = 0; peer < state_->rendezvous.size; ++peer) {
    if (peer != wait.rank) wait.peers.push_back(peer);
  }
  await(wait.peers);
  {
    std::lock_guard lock(state_->mutex);
    wait.at = state_->mine;
    state_->connected = true;
    state_->changed.notify_all();
  }
  wait_for(state_->connection, std::move(wait));
  await({});
}

std::string Heartbeat::own_address() const {
  std::lock_guard lock(state_->mutex);
  if (!state_->several_networks || !is_loopback(state_->address)) return state_->address;
  if (state_->outside) {
    const auto address = address_towards(*state_->outside, state_->rendezvous.port);
    if (address && !is_loopback(*address)) return *address;
  }
  throw Error(ErrorKind::kConfig,
              "rank {} knows no address of its own that other machines reach: {} leads it to {}; "
              "set GLOO_SOCKET_IFNAME to the interface that leads to them, of {}",
              state_->rendezvous.rank, state_->rendezvous.address, state_->address,
              list_interfaces());
}

double Heartbeat::startup_deadline() const { return state_->startup_deadline; }

bool Heartbeat::neighbour_lost() const { return state_->starting && state_->neighbour_lost; }

void Heartbeat::end_startup() { state_->starting = false; }

int64_t Heartbeat::keys_handled() const { return state_->store->keys_handled(); }

void Heartbeat::set_step(int64_t step) {
  std::lock_guard lock(state_->mutex);
  state_->mine.step = step;
}

Activity Heartbeat::begin(std::string_view operation) {
  std::lock_guard lock(state_->mutex);
  state_->mine.operation = operation;
  return state_->mine;
}

void Heartbeat::await(std::span<const int> ranks) {
  std::lock_guard lock(state_->mutex);
  state_->awaits.assign(ranks.begin(), ranks.end());
}

bool Heartbeat::alarmed() const { return state_->alarmed; }

std::string Heartbeat::diagnose(const FailedWait& wait) {
  std::unique_lock lock(state_->mutex);
  if (!state_->question) state_->question = wait;
  state_->changed.notify_all();
  const double patience = 3 * state_->silence_s();  // for another's diagnosis, then for our own
  state_->changed.wait_for(lock, Seconds(patience + state_->options.grace_s),
                           [&] { return state_->diagnosis || state_->ended; });
  if (state_->diagnosis) return *state_->diagnosis;
  return fmt::format("{}, and {} does not answer", distca::diagnosis(wait, {}),
                     store_name(state_->rendezvous));
}

}  // namespace distca
