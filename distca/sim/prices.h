#pragma once
// Prices of operations for a rank's thread, as the player asks for them (sim/player.h). All times
// are integers, so that a step that is played has the same bits everywhere. Any thread may ask.

#include <cstdint>
#include <functional>

#include "distca/program/program.h"

namespace distca {

/// The time that a communication takes of the thread that starts it, waits excluded, in
/// picoseconds.
struct CommunicationPrice {
  int64_t pack_ps = 0;   // copying what travels into its buffer, before it leaves
  int64_t issue_ps = 0;  // handing the messages to the network, before they leave
  /// What the network's own threads take of the core while messages are under way. It is added
  /// right behind the issue. So it costs nothing where the rank waits anyway.
  int64_t core_ps = 0;
  int64_t land_ps = 0;  // putting what has arrived in its place, once it is waited for
};

class OpPrices {
 public:
  virtual ~OpPrices() = default;
  /// The time of an operation of the compute stream, in picoseconds.
  virtual int64_t compute_ps(int rank, const Op& op) const = 0;
  /// The price of a communication. One that sends and receives nothing is never asked for.
  virtual CommunicationPrice communication(int rank, const Op& op, const MessageList& sends,
                                           const MessageList& receives) const = 0;
};

/// The time that every communication takes of a rank's thread.
struct ThreadRates {
  int64_t issue_ps = 0;          // for each communication
  int64_t copy_bytes_per_s = 0;  // packing and putting in place; with 0, copies take no time
  int64_t core_bytes_per_s = 0;  // the core's part of bytes; with 0, bytes take none of it
};

/// Prices of a function and of rates.
class RatePrices : public OpPrices {
 public:
  /// The seconds of an operation of the compute stream. They are rounded to picoseconds.
  using Seconds = std::function<double(int rank, const Op& op)>;
  explicit RatePrices(Seconds seconds, const ThreadRates& rates = {});
  int64_t compute_ps(int rank, const Op& op) const override;
  CommunicationPrice communication(int rank, const Op& op, const MessageList& sends,
                                   const MessageList& receives) const override;

 private:
  const Seconds seconds_;
  const ThreadRates rates_;
};

/// The bytes that a rank copies into a buffer before they leave. Gradients and weights are sent
/// from where they are, and so are parts of rows; of a kGatherRows, all peers get the same bytes.
int64_t packed_bytes(const Op& op, const MessageList& sends);
/// The bytes that a rank copies or adds up once they have arrived (program/op_events.h, lands()).
int64_t landed_bytes(const Op& op, const MessageList& receives);

}  // namespace distca
