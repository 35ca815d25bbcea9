#pragma once
// The settings of bench/overlap. Plain values, any thread.

#include <string>
#include <string_view>
#include <vector>

#include "distca/model/llama_config.h"

namespace distca::bench {

/// The length that each exchange is meant to have, compared with the operations it runs under.
enum class ExchangeLength { kShorter, kBetween, kLonger };
std::string_view length_name(ExchangeLength length);  // "shorter"

struct OverlapSetting {
  double mb_per_s = 0;  // limit of each direction of the wire. 0 means no limit.
  ExchangeLength length = ExchangeLength::kShorter;
  bool judged = false;
  std::string name() const;  // "25 MB/s shorter"
};
/// 8 layers whose core attention and linear work take about as long.
LlamaConfig overlap_model();

/// Every setting of a run: shorter and longer at each of `rates`, in between at the first, and
/// shorter at `fast` rates.
std::vector<OverlapSetting> overlap_settings(const std::vector<double>& rates,
                                             const std::vector<double>& fast);

}  // namespace distca::bench
