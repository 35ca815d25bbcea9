// The reader of trace/chrome.h.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "distca/base/file.h"
#include "distca/base/json.h"
#include "distca/trace/chrome.h"

namespace distca {
namespace {

constexpr std::array kKinds = {TraceKind::kStep,   TraceKind::kCompute, TraceKind::kCopy,
                               TraceKind::kLaunch, TraceKind::kWait,    TraceKind::kFlight};
/// 2^53 ns are 104 days: beyond them microseconds in a double lose nanoseconds.
constexpr double kMostMicroseconds = 9e12;

/// What is wrong with a value; the reader adds where.
Error fault(const std::string& what) { return Error(ErrorKind::kData, "{}", what); }

const Json& member(const Json& object, const char* key) {
  if (!object.is_object())
    throw fault(fmt::format("expected an object, found {}", object.type_name()));
  const auto found = object.find(key);
  if (found == object.end()) throw fault(fmt::format("no \"{}\"", key));
  return *found;
}

std::string text(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (!value.is_string()) {
    throw fault(fmt::format("\"{}\" is a {}: expected a string", key, value.type_name()));
  }
  return value.get<std::string>();
}

double number(const Json& object, const char* key, double least, double most) {
  const Json& value = member(object, key);
  const double read = value.is_number() ? value.get<double>() : std::nan("");
  if (!(read >= least && read <= most)) {
    throw fault(fmt::format("\"{}\" is {}: expected a number from {:g} to {:g}", key, value.dump(),
                            least, most));
  }
  return read;
}

template <typename Integer>
Integer integer(const Json& value, const char* key, int64_t least) {
  const auto most = static_cast<int64_t>(
      std::min<uint64_t>(std::numeric_limits<Integer>::max(), std::numeric_limits<int64_t>::max()));
  if (!value.is_number_integer() || value.get<int64_t>() < least || value.get<int64_t>() > most) {
    throw fault(
        fmt::format("\"{}\" is {}: expected an integer from {} on", key, value.dump(), least));
  }
  return value.get<Integer>();
}

template <typename Integer>
Integer integer_or(const Json& object, const char* key, Integer absent) {
  const auto found = object.find(key);
  return found == object.end() ? absent : integer<Integer>(*found, key, 0);
}

std::vector<int> peers(const Json& arguments, const char* key) {
  std::vector<int> peers;
  if (!arguments.contains(key)) return peers;
  const Json& value = arguments[key];
  if (!value.is_array()) throw fault(fmt::format("\"{}\" is no list of ranks", key));
  for (const Json& peer : value) peers.push_back(integer<int>(peer, key, 0));
  return peers;
}

TraceKind kind_of(const std::string& name) {
  for (TraceKind kind : kKinds) {
    if (name == trace_kind_name(kind)) return kind;
  }
  throw fault(fmt::format("\"cat\" is \"{}\": no kind of event", name));
}

TraceEvent event_of(const Json& json) {
  TraceEvent event;
  event.kind = kind_of(text(json, "cat"));
  event.name = text(json, "name");
  // Whole nanoseconds, so that the two roundings of a time cancel.
  const double begin = std::round(number(json, "ts", 0, kMostMicroseconds) * 1e3);
  const double duration = std::round(number(json, "dur", 0, kMostMicroseconds) * 1e3);
  event.begin_s = begin / 1e9;
  event.end_s = (begin + duration) / 1e9;
  const Json& arguments = member(json, "args");
  event.step = integer<int64_t>(member(arguments, "step"), "step", 0);
  event.layer = integer_or(arguments, "layer", -1);
  event.micro_batch = integer_or(arguments, "micro_batch", -1);
  event.nano_batch = integer_or(arguments, "nano_batch", -1);
  event.tag = integer_or<uint32_t>(arguments, "tag", 0);
  event.bytes = integer_or<int64_t>(arguments, "bytes", 0);
  event.received_bytes = integer_or<int64_t>(arguments, "received_bytes", 0);
  if (arguments.contains("flops")) event.flops = number(arguments, "flops", 0, 1e300);
  event.from = peers(arguments, "from");
  event.to = peers(arguments, "to");
  return event;
}

/// Takes the events out of a text as it is parsed, so that they never all lie there as JSON.
class EventReader {
 public:
  /// nlohmann's callback: false drops the value.
  bool operator()(int depth, Json::parse_event_t what, Json& value) {
    if (what == Json::parse_event_t::key && depth == 1) {
      in_events_ = value == "traceEvents";
    } else if (in_events_ && what == Json::parse_event_t::object_end && depth == 2) {
      take(value);
      return false;
    }
    return true;
  }

  std::vector<std::pair<int, TraceEvent>> events;  // by rank, in the file's order
  std::string first_fault;                         // empty: none

 private:
  void take(const Json& value) {
    const int64_t index = next_++;
    if (!first_fault.empty()) return;
    try {
      const std::string phase = text(value, "ph");
      if (phase == "M" || phase == "s" || phase == "f") return;  // names and arrows
      if (phase != "X") {
        throw fault(fmt::format("\"ph\" is \"{}\": expected X, M, s or f", phase));
      }
      const int rank = integer<int>(member(value, "pid"), "pid", 0);
      events.emplace_back(rank, event_of(value));
    } catch (const Error& error) {
      first_fault = fmt::format("traceEvents[{}]: {}", index, error.what());
    }
  }

  bool in_events_ = false;
  int64_t next_ = 0;
};

TraceRank rank_of(const Json& json) {
  TraceRank rank;
  const std::string role = text(json, "role");
  if (role != "worker" && role != "server") {
    throw fault(fmt::format("\"role\" is \"{}\": expected worker or server", role));
  }
  rank.server = role == "server";
  rank.clock_offset_s = number(json, "clock_offset_s", -1e18, 1e18);
  rank.clock_drift = number(json, "clock_drift", -1, 1);
  rank.clock_uncertainty_s = number(json, "clock_uncertainty_s", 0, 1e18);
  return rank;
}

Trace assemble(const Json& root, EventReader reader) {
  if (!reader.first_fault.empty()) throw fault(reader.first_fault);
  const Json& left = member(root, "traceEvents");
  if (!left.is_array() || !left.empty()) throw fault("\"traceEvents\" is no list of objects");
  const Json& other = member(root, "otherData");
  if (text(other, "program") != "distca") throw fault("of another program");
  Trace trace{.version = text(other, "version"),
              .commit = text(other, "commit"),
              .overlap = text(other, "overlap"),
              .ranks = {}};
  const Json& ranks = member(other, "ranks");
  if (!ranks.is_array()) throw fault("\"ranks\" is no list");
  for (const Json& rank : ranks) trace.ranks.push_back(rank_of(rank));
  for (auto& [rank, event] : reader.events) {
    if (rank >= static_cast<int>(trace.ranks.size())) {
      throw fault(fmt::format("an event of rank {}, \"otherData\" names {} ranks", rank,
                              trace.ranks.size()));
    }
    trace.ranks[rank].events.push_back(std::move(event));
  }
  return trace;
}

}  // namespace

Trace trace_from_chrome_json(std::string_view text, const std::string& name) {
  EventReader reader;
  // By reference: nlohmann copies its callback.
  const Json root = parse_json(
      text, name, ErrorKind::kData,
      [&](int depth, Json::parse_event_t what, Json& value) { return reader(depth, what, value); });
  try {
    return assemble(root, std::move(reader));
  } catch (const Error& error) {
    throw Error(ErrorKind::kData, "{}: not a trace that `distca train --trace` wrote: {}", name,
                error.what());
  }
}

Trace read_trace(const std::filesystem::path& path) {
  return trace_from_chrome_json(read_file(path, ErrorKind::kData), path.string());
}

}  // namespace distca
