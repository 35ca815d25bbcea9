#pragma once
// The diagnosis of a failed wait: one sentence that says who is to blame, made of what is known of
// all ranks. Pure.

#include <cstdint>
#include <string>
#include <vector>

namespace distca {

/// The step and the exchange that a rank is at, as its heartbeat shows them.
struct Activity {
  int64_t step = -1;           // -1 means before the first one.
  std::string operation = {};  // its latest exchange: "forward layer 2 core_attention"
};

enum class RankState {
  kLive,
  kSilent,    // its heartbeat stopped: killed, stopped or cut off
  kAbsent,    // never sent a heartbeat
  kFinished,  // ended well
  kFailed,    // ended with an error of its own
  kDead,      // the launcher saw its process end
};

/// The state of one rank, as far as it is known.
struct RankNews {
  RankState state = RankState::kLive;
  Activity last = {};
  std::vector<int> awaits = {};  // Ranks that it waits for. A rank that computes has none.
  double silent_s = 0;           // kSilent: seconds since its last heartbeat
  std::string death = {};        // kDead: "was killed by signal 9 (SIGKILL)"
};

enum class WaitEnd { kGaveUp, kConnectionLost };

/// A wait that failed, and the rank whose it was.
struct FailedWait {
  int rank = 0;
  Activity at;
  double waited_s = 0;
  // Ranks whose messages had not come or gone yet. Empty means that they are not known.
  std::vector<int> peers = {};
  WaitEnd end = WaitEnd::kGaveUp;
  std::string why = {};  // the words of the system or a library, one line; may be empty
};

/// Blames the first of these that there are: dead ranks, failed, silent, absent ones. Else it
/// follows whom each rank awaits, from the peers of the wait on (from all others, where these are
/// not known), to a rank that has ended, or to one that awaits nobody and so is behind (of several
/// the one at the earliest step), or else to ranks that await each other in a circle. What ranks do
/// that the wait does not hang on is no matter. A wait that failed for a reason of its own blames
/// nobody who is alive: the reason comes first. `news` is by rank. One sentence, no newline.
std::string diagnosis(const FailedWait& wait, std::vector<RankNews> news);

/// "step 7, forward layer 2 core_attention".
std::string to_string(const Activity& activity);

}  // namespace distca
