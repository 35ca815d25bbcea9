#pragma once
// A heartbeat (heartbeat.h) as the text that lies in the store. Any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "distca/comm/health/diagnosis.h"

namespace distca {

struct Beat {
  int64_t number = 0;  // a running number of this rank's heartbeats
  double wall_s = 0;   // by its machine's clock
  RankNews news;
};

std::string encode_beat(const RankNews& mine, int64_t number);
/// Throws Error(kComm) for a text that is none.
Beat decode_beat(const std::string& text);
/// Marks the ranks [rank] that are lost; `text` has a line "RANK how" for each that was seen to
/// end.
void read_deaths(const std::string& text, std::vector<Beat>& beats);

}  // namespace distca
