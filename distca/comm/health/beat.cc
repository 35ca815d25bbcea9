#include "distca/comm/health/beat.h"

#include <sstream>

#include "distca/base/clock.h"
#include "distca/base/json.h"

namespace distca {

std::string encode_beat(const RankNews& mine, int64_t number) {
  return Json{{"awaits", mine.awaits},
              {"beat", number},
              {"operation", mine.last.operation},
              {"state", static_cast<int>(mine.state)},
              {"step", mine.last.step},
              {"wall_s", wall_seconds()}}
      .dump(-1, ' ', true, Json::error_handler_t::replace);
}

Beat decode_beat(const std::string& text) {
  const Json json = parse_json(text, "a heartbeat", ErrorKind::kComm);
  return {.number = json.at("beat"),
          .wall_s = json.at("wall_s"),
          .news = {.state = static_cast<RankState>(json.at("state").get<int>()),
                   .last = {.step = json.at("step"), .operation = json.at("operation")},
                   .awaits = json.at("awaits")}};
}

void read_deaths(const std::string& text, std::vector<Beat>& beats) {
  std::istringstream lines(text);
  int rank = -1;
  std::string how;
  while (lines >> rank && std::getline(lines >> std::ws, how)) {
    if (rank < 0 || rank >= static_cast<int>(beats.size())) continue;
    beats[rank].news.state = RankState::kDead;
    beats[rank].news.death = how;
  }
}

}  // namespace distca
