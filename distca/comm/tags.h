#pragma once
// Who uses which message tags. Gloo takes tags as a positive int, so they end below 2^31.

#include <cstdint>

namespace distca {

/// Exchanges of the runtime: a running number in [0, kExchangeTags), the same on both sides.
inline constexpr uint32_t kExchangeTags = 1u << 30;

/// Collectives built on point-to-point. One tag for each is enough: messages of one pair and tag
/// arrive in order, and all ranks call collectives in the same order.
inline constexpr uint32_t kReduceTag = kExchangeTags + 0;
inline constexpr uint32_t kGatherTag = kExchangeTags + 1;
inline constexpr uint32_t kAllGatherTag = kExchangeTags + 2;
inline constexpr uint32_t kBarrierTag = kExchangeTags + 3;
/// Measurement of the wire (train/bandwidth.h): nothing else is under way meanwhile.
inline constexpr uint32_t kBandwidthTag = kExchangeTags + 4;

}  // namespace distca
