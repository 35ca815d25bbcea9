#pragma once
// The wires between ranks, as the player takes them (sim/player.h): each rank has a port to the
// other ranks of its node and one to all others. A port sends and receives at once, each at its
// whole rate. Plain values, any thread.

#include <cstdint>
#include <limits>
#include <numeric>

namespace distca {

inline constexpr int64_t kPsPerS = 1'000'000'000'000;

struct Port {
  int64_t latency_ps = 0;   // added to each message, however small
  int64_t bytes_per_s = 0;  // in each direction; with 0, bytes take no time

  /// How many bytes go through at once after the port has been idle for long enough, as a token
  /// bucket's (tc tbf) do.
  int64_t burst_bytes = 0;

  /// How long this many bytes take without latency and burst, rounded up.
  int64_t time_ps(int64_t bytes) const {
    if (bytes_per_s == 0) return 0;
    const Wide product = static_cast<Wide>(bytes) * kPsPerS;
    return static_cast<int64_t>((product + bytes_per_s - 1) / bytes_per_s);
  }

 private:
  __extension__ using Wide = __int128;  // a gigabyte times picoseconds a second is over 2^63
};

/// Port::time_ps() of one port for many messages: its rate is a fraction in lowest terms, so that
/// mostly no number is longer than 64 bits.
class PortTime {
 public:
  PortTime() = default;  // bytes take no time
  explicit PortTime(const Port& port) : port_(port) {
    if (port.bytes_per_s == 0) return;
    const int64_t common = std::gcd(kPsPerS, port.bytes_per_s);
    ps_ = kPsPerS / common;
    bytes_ = port.bytes_per_s / common;
    most_ = (std::numeric_limits<int64_t>::max() - bytes_) / ps_;
  }
  int64_t operator()(int64_t bytes) const {
    if (bytes > most_) return port_.time_ps(bytes);
    return bytes_ == 1 ? bytes * ps_ : (bytes * ps_ + bytes_ - 1) / bytes_;
  }

 private:
  Port port_;
  int64_t ps_ = 0, bytes_ = 1;                          // so many picoseconds for so many bytes
  int64_t most_ = std::numeric_limits<int64_t>::max();  // bytes whose product with ps_ fits
};

struct Wire {
  Port inside, between;    // two ranks of a node, two ranks of different nodes
  int ranks_per_node = 1;  // ranks n * ranks_per_node and those after it are node n
  /// A rank's communications are under way one at a time, in the order in which they were started,
  /// as with NCCL. Otherwise all that were started are, as with Gloo.
  bool in_order = false;
};

}  // namespace distca
