#include "distca/cost/speed_meter.h"

#include <algorithm>
#include <utility>

#include "distca/base/error.h"

namespace distca {
namespace {

__extension__ using Wide = __int128;

constexpr int64_t kPsPerNs = 1000;
constexpr int64_t kAttentionScale = 1000 * kPsPerNs;  // ns a unit of load to ps a thousand

/// Three digits that count, the rest 0.
int64_t three_digits(Wide value) {
  Wide unit = 1;
  while (value / unit >= 1000) unit *= 10;
  const Wide most = Wide{1} << 62;
  return static_cast<int64_t>(std::clamp<Wide>((value + unit / 2) / unit * unit, 1, most));
}

/// Is `value` so far off the one that was given out?
bool moved(int64_t value, int64_t given) {
  if (given == 0) return value != 0;
  return std::max(value, given) - std::min(value, given) >
         Wide{given} * SpeedMeter::kHoldPermille / 1000;
}

}  // namespace

SpeedMeter::SpeedMeter(int num_ranks, int64_t bytes_per_us)
    : linear_(num_ranks), attention_(num_ranks), steps_starved_(num_ranks, 0) {
  current_.from_step = 1;
  current_.bytes_per_us = bytes_per_us;
  before_ = current_;
}

bool SpeedMeter::above(const Rate& rate, const Rate& mean) {
  return Wide{rate.ns} * mean.work > Wide{mean.ns} * rate.work;
}

bool SpeedMeter::off(const Rate& rate, const Rate& mean) {
  const Wide a = Wide{rate.ns} * mean.work, b = Wide{mean.ns} * rate.work;
  return (a > b ? a - b : b - a) > b * kOffPermille / 1000;
}

void SpeedMeter::Smoothed::add(const Rate& sample) {
  if (sample.ns <= 0 || sample.work <= 0) return;
  if (mean.work == 0 || !off(sample, mean)) {
    held_back = {};
    num_held_back = 0;
    mean = {mean.ns - mean.ns / 8 + sample.ns, mean.work - mean.work / 8 + sample.work};
    return;
  }
  if (num_held_back > 0 && above(sample, mean) != above(held_back, mean)) {
    held_back = {};
    num_held_back = 0;
  }
  held_back = {held_back.ns + sample.ns, held_back.work + sample.work};
  if (++num_held_back < kBelieved) return;
  mean = std::exchange(held_back, {});
  num_held_back = 0;
}

void SpeedMeter::Smoothed::approach(int64_t ps_per_kload) {
  const Wide there = Wide{ps_per_kload} * mean.work / kAttentionScale;
  if (there >= mean.ns) return;
  mean.ns = static_cast<int64_t>((Wide{mean.ns} * 3 + there) / 4);
  held_back = {};
  num_held_back = 0;
}

int64_t SpeedMeter::Smoothed::rounded(int64_t scale) const {
  return mean.work == 0 ? 0 : three_digits(Wide{mean.ns} * scale / mean.work);
}

std::vector<bool> SpeedMeter::starved(std::span<const RankSample> samples) const {
  Wide servers = 0, load = 0, attention_ns = 0;
  int64_t last_ns = 0;
  for (size_t rank = 0; rank < samples.size(); ++rank) {
    const RankSample& sample = samples[rank];
    last_ns = std::max(last_ns, sample.linear_ns + sample.attention_ns);
    if (attention_[rank].mean.work == 0) continue;  // never served
    ++servers;
    load += sample.load;
    attention_ns += sample.attention_ns;
  }
  std::vector<bool> result;
  for (size_t rank = 0; rank < samples.size(); ++rank) {
    const RankSample& sample = samples[rank];
    result.push_back(attention_[rank].mean.work > 0 && servers * sample.load * 4 < load &&
                     servers * sample.attention_ns * 2 < attention_ns &&
                     (Wide{sample.linear_ns} + sample.attention_ns) * 8 < Wide{last_ns} * 7);
  }
  return result;
}

void SpeedMeter::add_attention(std::span<const RankSample> samples) {
  const std::vector<bool> without = starved(samples);
  Wide sum = 0, measured = 0;  // speeds of the others
  for (size_t rank = 0; rank < samples.size(); ++rank) {
    if (without[rank]) continue;
    steps_starved_[rank] = 0;
    attention_[rank].add({samples[rank].attention_ns, samples[rank].load});
    if (attention_[rank].mean.work == 0) continue;
    sum += attention_[rank].rounded(kAttentionScale);
    ++measured;
  }
  for (size_t rank = 0; rank < samples.size(); ++rank) {
    if (!without[rank] || measured == 0 || ++steps_starved_[rank] < kStarved) continue;
    attention_[rank].approach(static_cast<int64_t>(sum / measured));
  }
}

bool SpeedMeter::add(int64_t step, std::span<const RankSample> samples) {
  DISTCA_CHECK_EQ(samples.size(), linear_.size());
  if (++steps_ == 1) return false;
  for (size_t rank = 0; rank < samples.size(); ++rank) {
    linear_[rank].add({samples[rank].linear_ns, samples[rank].tokens});
  }
  add_attention(samples);
  if (steps_ < kFirstSteps) return false;
  bool changed = current_.ranks.empty();
  std::vector<RankSpeed> now(samples.size());
  for (size_t rank = 0; rank < samples.size(); ++rank) {
    now[rank] = {.linear_ps_per_token = linear_[rank].rounded(kPsPerNs),
                 .attention_ps_per_kload = attention_[rank].rounded(kAttentionScale)};
    if (changed) continue;
    const RankSpeed& given = current_.ranks[rank];
    changed = moved(now[rank].linear_ps_per_token, given.linear_ps_per_token) ||
              moved(now[rank].attention_ps_per_kload, given.attention_ps_per_kload);
  }
  if (!changed) return false;
  before_ = current_;
  current_.ranks = std::move(now);
  current_.from_step = step + 2;
  return true;
}

template <typename Meter, typename Visit>
void SpeedMeter::visit_state(Meter& meter, Visit visit) {
  visit(meter.steps_);
  for (auto* const rates : {&meter.linear_, &meter.attention_}) {
    for (auto& rate : *rates) {
      for (auto* const part : {&rate.mean, &rate.held_back}) {
        visit(part->ns);
        visit(part->work);
      }
      visit(rate.num_held_back);
    }
  }
  for (auto& steps : meter.steps_starved_) visit(steps);
  for (auto* const speeds : {&meter.current_, &meter.before_}) {
    visit(speeds->from_step);
    visit(speeds->bytes_per_us);
    for (auto& rank : speeds->ranks) {
      visit(rank.linear_ps_per_token);
      visit(rank.attention_ps_per_kload);
    }
  }
}

std::vector<int64_t> SpeedMeter::state() const {
  std::vector<int64_t> state = {static_cast<int64_t>(linear_.size()), !current_.ranks.empty(),
                                !before_.ranks.empty()};
  visit_state(*this, [&](int64_t value) { state.push_back(value); });
  return state;
}

bool SpeedMeter::restore(std::span<const int64_t> state) {
  const auto ranks = static_cast<int64_t>(linear_.size());
  if (state.size() < 3 || state[0] != ranks) return false;
  SpeedMeter meter(static_cast<int>(ranks), 0);
  meter.current_.ranks.resize(state[1] != 0 ? ranks : 0);
  meter.before_.ranks.resize(state[2] != 0 ? ranks : 0);
  size_t size = 3;
  visit_state(meter, [&](auto&) { ++size; });
  if (size != state.size()) return false;
  size_t next = 3;
  visit_state(meter, [&](auto& value) {
    value = static_cast<std::remove_reference_t<decltype(value)>>(state[next++]);
  });
  for (Speeds* const speeds : {&meter.current_, &meter.before_}) {
    if (speeds->bytes_per_us == 0) speeds->bytes_per_us = current_.bytes_per_us;
  }
  *this = std::move(meter);
  return true;
}

const Speeds& SpeedMeter::speeds_at(int64_t step) const {
  return step >= current_.from_step ? current_ : before_;
}

std::vector<double> seconds_waited(std::span<const RankSample> ranks) {
  const auto busy_ns = [](const RankSample& rank) { return rank.linear_ns + rank.attention_ns; };
  int64_t last_ns = 0;  // when the last rank had nothing left to compute or to wait for
  for (const RankSample& rank : ranks) last_ns = std::max(last_ns, busy_ns(rank) + rank.waited_ns);
  std::vector<double> seconds;
  for (const RankSample& rank : ranks)
    seconds.push_back(1e-9 * static_cast<double>(last_ns - busy_ns(rank)));
  return seconds;
}

}  // namespace distca
