#pragma once
// Who is to blame when a wait fails: turns what is known of all ranks into one sentence. Pure.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "distca/comm/communicator.h"

namespace distca {

/// What a rank is at, as it posts it to the others.
struct Activity {
  int64_t step = -1;           // -1: before the first
  std::string operation = {};  // "forward layer 2 attend"
  // Who is at fewer of these is behind.
  int64_t sequence = 0;    // exchanges in the step so far
  int64_t among_some = 0;  // since the last of them, those that not all ranks take part in
};

/// `activity` at its next exchange.
void advance(Activity& activity, std::string_view operation, TakePart who);

enum class RankState {
  kLive,
  kSilent,    // its heartbeat stopped: killed, stopped or cut off
  kAbsent,    // never posted anything
  kFinished,  // ended well
  kFailed,    // ended with an error of its own
  kDead,      // the launcher saw its process end
};

/// What is known of one rank.
struct RankNews {
  RankState state = RankState::kLive;
  Activity last = {};
  double silent_s = 0;     // kSilent: seconds since its last heartbeat
  std::string death = {};  // kDead: "was killed by signal 9 (SIGKILL)"
};

enum class WaitEnd { kGaveUp, kConnectionLost };

/// A wait that failed, and the rank whose it was.
struct FailedWait {
  int rank = 0;
  Activity at;
  double waited_s = 0;
  std::vector<int> peers = {};  // whose messages had not come or gone yet; may be empty
  WaitEnd end = WaitEnd::kGaveUp;
  std::string why = {};  // what the system or a library said, one line; may be empty
};

/// The first of these that there are: dead ranks, failed, silent, absent, finished ones; else the
/// one furthest behind in the order of Activity's members (among equals an awaited one). A wait
/// that failed for a reason of its own accuses nobody who is alive: the reason comes first. `news`
/// is by rank. One sentence, no newline.
std::string verdict(const FailedWait& wait, const std::vector<RankNews>& news);

/// "step 7, forward layer 2 attend".
std::string to_string(const Activity& activity);

}  // namespace distca
