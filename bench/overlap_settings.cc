#include "bench/overlap_settings.h"

#include <fmt/format.h>

#include "distca/base/error.h"

namespace distca::bench {

std::string_view length_name(ExchangeLength length) {
  constexpr const char* kNames[] = {"shorter", "between", "longer"};
  return kNames[static_cast<int>(length)];
}

std::string OverlapSetting::name() const {
  return fmt::format("{} {}", mb_per_s == 0 ? "unlimited" : fmt::format("{:g} MB/s", mb_per_s),
                     length_name(length));
}

LlamaConfig overlap_model() {
  return {.vocab_size = 256,
          .hidden_size = 256,
          .intermediate_size = 256,
          .num_hidden_layers = 8,
          .num_attention_heads = 8,
          .num_key_value_heads = 2,
          .head_dim = 64};
}

std::vector<OverlapSetting> overlap_settings(const std::vector<double>& rates,
                                             const std::vector<double>& fast) {
  DISTCA_CHECK(!rates.empty(), "no rates");
  std::vector<OverlapSetting> settings;
  for (const ExchangeLength length : {ExchangeLength::kShorter, ExchangeLength::kLonger}) {
    for (const double rate : rates) settings.push_back({rate, length, true});
  }
  settings.push_back({rates[0], ExchangeLength::kBetween, false});
  for (const double rate : fast) settings.push_back({rate, ExchangeLength::kShorter, false});
  return settings;
}

}  // namespace distca::bench
