#pragma once
// The message tags and what uses them. Gloo takes tags as a positive int, so they end below 2^31.

#include <cstdint>

namespace distca {

/// Tags of one group. Of the groups that two ranks share, the n-th that they split off has its tags
/// n * kGroupTags further on (Communicator::split); the whole group is n = 0.
inline constexpr uint32_t kGroupTags = 1u << 25;
inline constexpr uint32_t kMostGroups = (1u << 31) / kGroupTags;

/// Exchanges of the runtime: a running number in [0, kExchangeTags), the same on both sides.
inline constexpr uint32_t kExchangeTags = kGroupTags - 16;

/// Collectives built on point-to-point. One tag for each is enough: messages of one pair and tag
/// arrive in order, and all ranks call collectives in the same order.
inline constexpr uint32_t kReduceTag = kExchangeTags + 0;
inline constexpr uint32_t kGatherTag = kExchangeTags + 1;
inline constexpr uint32_t kAllGatherTag = kExchangeTags + 2;
inline constexpr uint32_t kBarrierTag = kExchangeTags + 3;
inline constexpr uint32_t kGatherToTag = kExchangeTags + 4;
inline constexpr uint32_t kClockTag = kExchangeTags + 5;
/// Measurement of the wire (train/bandwidth.h).
inline constexpr uint32_t kBandwidthTag = kExchangeTags + 6;
/// Rows that are dealt over ranks (torch_ops/rows.cc).
inline constexpr uint32_t kRowsTag = kExchangeTags + 7;
/// The loss of ranks that divide the vocabulary (train/tensor_messages.h).
inline constexpr uint32_t kTensorLossTag = kExchangeTags + 8;

/// From here on: exchanges of collectives as traces number them, each apart (comm/traced.h). No
/// message has such a tag.
inline constexpr uint32_t kTracedTags = (1u << 30) + 16;
/// How many one communicator may number.
inline constexpr uint32_t kTracedTagsEach = 1u << 24;

}  // namespace distca
