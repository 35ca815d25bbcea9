#include "distca/base/normal.h"

#include <array>
#include <bit>
#include <cmath>
#include <numbers>

#include "distca/base/error.h"
#include "distca/base/random.h"

namespace distca {
namespace {

/// Coefficients, the constant first, of a numerator and a denominator (Wichura, AS 241, PPND7).
struct Ratio {
  std::array<double, 4> above, below;

  double operator()(double x) const { return value(above, x) / value(below, x); }
  static double value(const std::array<double, 4>& c, double x) {
    return ((c[3] * x + c[2]) * x + c[1]) * x + c[0];
  }
};
constexpr Ratio kCentre{{3.3871327179, 50.434271938, 159.29113202, 59.109374720},
                        {1.0, 17.895169469, 78.757757664, 67.187563600}};
constexpr Ratio kTail{{1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103},
                      {1.0, 0.73700164250, 0.12021132975, 0.0}};
constexpr Ratio kFarTail{{6.6579051150, 3.0812263860, 0.42868294337, 0.017337203997},
                         {1.0, 0.24197894225, 0.012258202635, 0.0}};
constexpr double kCentreEnd = 0.425;  // the largest |p - 1/2| of kCentre

/// ln x to 1e-12, of a normal x > 0.
double logarithm(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  auto exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m > std::numbers::sqrt2) {
    m *= 0.5;
    ++exponent;
  }
  // ln m = 2 artanh s, |s| < 0.172: the first term left out is s^15 / 15.
  const double s = (m - 1.0) / (m + 1.0), t = s * s;
  double series = 1.0 / 13;
  for (const double over : {11.0, 9.0, 7.0, 5.0, 3.0, 1.0}) series = series * t + 1.0 / over;
  return static_cast<double>(exponent) * std::numbers::ln2 + 2.0 * s * series;
}

double centre(double q) { return q * kCentre(kCentreEnd * kCentreEnd - q * q); }

double tail(double p) {
  const double r = std::sqrt(-logarithm(p < 0.5 ? p : 1.0 - p));
  const double z = r <= 5.0 ? kTail(r - 1.6) : kFarTail(r - 5.0);
  return p < 0.5 ? -z : z;
}

}  // namespace

double normal_quantile(double p) {
  DISTCA_CHECK(0 < p && p < 1, "{} has no quantile", p);
  const double q = p - 0.5;
  return std::abs(q) <= kCentreEnd ? centre(q) : tail(p);
}

void draw_normal_chunk(uint64_t seed, uint64_t chunk, double std_dev, std::span<float> out) {
  DISTCA_CHECK(static_cast<int64_t>(out.size()) <= kNormalChunk, "{} draws of a chunk", out.size());
  Random random(seed, chunk);
  // Pieces: the centre's formula for all of one, which compilers make vectors of, then the tails.
  constexpr size_t kPiece = 512;
  std::array<double, kPiece> p, z;
  std::array<uint16_t, kPiece> in_tail;
  for (size_t begin = 0; begin < out.size(); begin += kPiece) {
    const size_t count = std::min(kPiece, out.size() - begin);
    // Middles of 2^52 equal parts of (0, 1): exact, and neither end.
    for (size_t i = 0; i < count; ++i)
      p[i] = (static_cast<double>(static_cast<int64_t>(random.next() >> 12)) + 0.5) * 0x1p-52;
    for (size_t i = 0; i < count; ++i) z[i] = centre(p[i] - 0.5);
    size_t tails = 0;
    for (size_t i = 0; i < count; ++i) {
      in_tail[tails] = static_cast<uint16_t>(i);
      tails += std::abs(p[i] - 0.5) > kCentreEnd ? 1 : 0;
    }
    for (size_t i = 0; i < tails; ++i) z[in_tail[i]] = tail(p[in_tail[i]]);
    for (size_t i = 0; i < count; ++i) out[begin + i] = static_cast<float>(z[i] * std_dev);
  }
}

}  // namespace distca
