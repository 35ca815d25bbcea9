#include "distca/comm/launch/run_store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/comm/hushed_cerr.h"
#include "distca/comm/launch/own_address.h"
#include "distca/comm/launch/store_keys.h"

namespace distca {
namespace {

constexpr double kRetry = 0.1;    // seconds between two looks at a store whose run is over
constexpr double kUntilGone = 1;  // seconds a process takes to end, beyond the grace period

std::string random_number() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

[[noreturn]] void refuse(const Rendezvous& rendezvous, const std::string& why) {
  if (rendezvous.address.empty()) {
    throw Error(ErrorKind::kConfig,
                "the store is another communicator's: {}; give each a c10d::PrefixStore of its own",
                why);
  }
  throw Error(ErrorKind::kConfig,
              "{}:{} belongs to another run: {}; wait for its end, or choose another port "
              "(MASTER_PORT)",
              rendezvous.address, rendezvous.port, why);
}

}  // namespace

std::string store_name(const Rendezvous& rendezvous) {
  if (rendezvous.address.empty()) return "the store";
  return fmt::format("the store at {}:{}", rendezvous.address, rendezvous.port);
}

std::shared_ptr<c10d::Store> keep_store(c10d::Store& store) {
  const auto kept = c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(&store);
  return {&store, [kept](c10d::Store*) {}};
}

std::shared_ptr<c10d::Store> connect_to_store(const Rendezvous& rendezvous, double timeout_s,
                                              const std::string& part) {
  const c10d::TCPStoreOptions options{.port = rendezvous.port,
                                      .waitWorkers = false,
                                      .timeout = to_milliseconds(std::max(timeout_s, 0.001))};
  c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<c10d::TCPStore>(rendezvous.address, options);
  if (!part.empty())
    store = c10::make_intrusive<c10d::PrefixStore>(rendezvous.prefix + part, store);
  return keep_store(*store);
}

struct RunStore::Question {
  c10d::Store* operator->() const { return store; }

  const std::unique_ptr<HushedCerr> hushed;  // null for a store of ours
  c10d::Store* const store;
};

RunStore::RunStore(const Rendezvous& rendezvous, const CommOptions& options, c10d::Store* made)
    : is_ours_(made == nullptr) {
  const Stopwatch watch;
  double over_since = -1;
  if (made) {
    store_ = keep_store(*made->clone());
  } else {
    check_address(rendezvous);
  }
  while (!made && !connect(rendezvous, options, options.startup_timeout_s - watch.seconds())) {
    if (over_since < 0) over_since = watch.seconds();
    if (watch.seconds() - over_since > options.grace_s + kUntilGone) {
      refuse(rendezvous, "it is over, and its store still there");
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(kRetry));
  }
  store_->setTimeout(to_milliseconds(options.timeout_s));
  claim(rendezvous);
}

/// False if the store that is there belongs to a run that is over.
bool RunStore::connect(const Rendezvous& rendezvous, const CommOptions& options, double timeout_s) {
  const Stopwatch watch;
  try {
    store_ = connect_to_store(rendezvous, timeout_s);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kComm,
                "rank {} of {} (from {}) found no store at {}:{} within {:.1f} s: {}; does rank 0 "
                "run there?",
                rendezvous.rank, rendezvous.size, rendezvous.source, rendezvous.address,
                rendezvous.port, options.startup_timeout_s - timeout_s + watch.seconds(),
                first_line(error));
  }
  try {
    return !has(kOverKey);
  } catch (const std::exception&) {
    return false;  // it went in this moment
  }
}

void RunStore::claim(const Rendezvous& rendezvous) {
  const std::string owner = set_first(kOwnerKey, rendezvous.run);
  if (owner != rendezvous.run) {
    refuse(rendezvous, fmt::format("it is of {}, this one of {}", owner, rendezvous.run));
  }
  const std::string size = set_first(size_key(rendezvous.prefix), std::to_string(rendezvous.size));
  if (size != std::to_string(rendezvous.size)) {
    refuse(rendezvous, fmt::format("it has {} ranks, this one {}", size, rendezvous.size));
  }
  const std::string mine = random_number();
  if (set_first(claim_key(rendezvous.prefix, rendezvous.rank), mine) != mine) {
    refuse(rendezvous, fmt::format("another process is its rank {}", rendezvous.rank));
  }
}

RunStore::Question RunStore::ask(size_t keys) {
  keys_handled_ += static_cast<int64_t>(keys);
  return {is_ours_ ? nullptr : std::make_unique<HushedCerr>(), store_.get()};
}

bool RunStore::has(const std::string& key) { return ask()->check({key}); }

std::string RunStore::get(const std::string& key) { return ask()->get_to_str(key); }

std::optional<std::string> RunStore::find(const std::string& key) {
  if (!has(key)) return std::nullopt;
  return get(key);
}

std::vector<std::optional<std::string>> RunStore::get_each(const std::vector<std::string>& keys,
                                                           bool all_there) {
  std::vector<std::optional<std::string>> values;
  values.reserve(keys.size());
  if (all_there) {
    for (const auto& bytes : ask(keys.size())->multiGet(keys))
      values.emplace_back(std::in_place, bytes.begin(), bytes.end());
    return values;
  }
  for (const std::string& key : keys) values.push_back(find(key));
  return values;
}

void RunStore::set(const std::string& key, const std::string& value) { ask()->set(key, value); }

std::string RunStore::set_first(const std::string& key, const std::string& value) {
  return ask()->compareSet(key, "", value);
}

int64_t RunStore::add(const std::string& key, int64_t amount) { return ask()->add(key, amount); }

void RunStore::forget(const std::vector<std::string>& keys) {
  if (is_ours_) return;  // it ends with its run
  for (const std::string& key : keys) ask()->deleteKey(key);
}

}  // namespace distca
