#include "bench/attention_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "distca/base/error.h"

namespace distca::bench {
namespace {

using kernels::Isa;

constexpr int64_t kAlign = 128;
constexpr int64_t kLengths[] = {512, 2048, kContext};
constexpr int64_t kHeadDims[] = {64, 128};
constexpr ScalarType kTypes[] = {ScalarType::kFloat32, ScalarType::kBFloat16};

/// (query, key) pairs of one measurement, summed over heads: from 2,048 tokens on fewer heads.
constexpr int64_t kMostPairs = 9 << 20;

std::vector<Isa> available(std::initializer_list<Isa> isas) {
  std::vector<Isa> found;
  std::copy_if(isas.begin(), isas.end(), std::back_inserter(found), kernels::isa_available);
  return found;
}

Isa best_isa(ScalarType type) {
  return type == ScalarType::kBFloat16
             ? available({Isa::kAvx512Bf16, Isa::kAvx512, Isa::kAvx2, Isa::kPortable})[0]
             : available({Isa::kAvx512, Isa::kAvx2, Isa::kPortable})[0];
}

Heads fitting_heads(int64_t heads, int64_t length) {
  Heads fitting{heads, heads, heads};
  const int64_t pairs = length * (length + 1) / 2;
  while (fitting.kv_used > 1 && fitting.used() * pairs > kMostPairs) fitting.kv_used /= 2;
  return fitting;
}

void add_lengths(ScalarType type, std::vector<RowSpec>& rows) {
  for (const int64_t head_dim : kHeadDims) {
    for (const int64_t length : kLengths) {
      RowSpec& row = rows.emplace_back(RowSpec{.kind = RowKind::kLength,
                                               .type = type,
                                               .head_dim = head_dim,
                                               .heads = fitting_heads(8, length),
                                               .length = length,
                                               .isas = {best_isa(type)}});
      if (type == ScalarType::kFloat32 && row.isas[0] == Isa::kAvx512)
        row.isas = available({Isa::kAvx512, Isa::kAvx2});
    }
  }
}

void add_shards(std::vector<RowSpec>& rows) {
  for (const ScalarType type : kTypes) {
    for (const int64_t heads : {4, 1}) {
      for (const int64_t head_dim : kHeadDims) {
        rows.push_back({.kind = RowKind::kShards,
                        .type = type,
                        .head_dim = head_dim,
                        .heads = {heads, 1, 1},
                        .length = kContext,
                        .isas = {best_isa(type)}});
      }
    }
  }
}

void add_threads(std::vector<RowSpec>& rows) {
  for (const ScalarType type : kTypes) {
    for (const int64_t head_dim : kHeadDims) {
      for (const int64_t length : kLengths) {
        rows.push_back({.kind = RowKind::kThreads,
                        .type = type,
                        .head_dim = head_dim,
                        .heads = {8, 8, length > 2048 ? 2 : 8},
                        .length = length,
                        .isas = {best_isa(type)}});
      }
    }
  }
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

}  // namespace

std::string RowSpec::name() const {
  constexpr const char* kKinds[] = {"lengths", "shards", "threads"};
  return fmt::format("{} {} d{} {}:{} {}", kKinds[static_cast<int>(kind)],
                     type == ScalarType::kFloat32 ? "fp32" : "bf16", head_dim, heads.heads,
                     heads.kv_heads, length);
}

std::vector<RowSpec> all_rows() {
  std::vector<RowSpec> rows;
  for (const ScalarType type : kTypes) add_lengths(type, rows);
  add_shards(rows);
  add_threads(rows);
  return rows;
}

std::vector<RowSpec> selected_rows(const std::vector<RowSpec>& rows, const std::string& words) {
  std::vector<RowSpec> selected;
  for (const RowSpec& row : rows) {
    const std::vector<std::string> of_row = words_of(row.name());
    const std::vector<std::string> wanted = words_of(words);
    if (std::all_of(wanted.begin(), wanted.end(), [&](const std::string& word) {
          return std::find(of_row.begin(), of_row.end(), word) != of_row.end();
        })) {
      selected.push_back(row);
    }
  }
  if (selected.empty()) {
    throw Error(ErrorKind::kUsage, "--only '{}': no row has all these words; one is called '{}'",
                words, rows.at(0).name());
  }
  return selected;
}

std::vector<QueryRun> shards_of(int64_t queries) {
  constexpr int kSpread = 4;  // contexts differ by up to so many times kAlign
  Random random(1, static_cast<uint64_t>(queries));
  const int64_t begin = (kContext - queries) / kAlign * kAlign;
  const double wanted = static_cast<double>(kContext) * (kContext + 1) / 2;
  std::vector<QueryRun> shards;
  double pairs = 0;
  while (pairs < wanted) {
    const auto shift = static_cast<int64_t>(random.below(2 * kSpread + 1)) - kSpread;
    const QueryRun shard{begin + shift * kAlign, queries};
    const auto of_shard =
        static_cast<double>(queries * shard.position + queries * (queries + 1) / 2);
    if (!shards.empty() && pairs + of_shard / 2 > wanted) break;
    shards.push_back(shard);
    pairs += of_shard;
  }
  return shards;
}

}  // namespace distca::bench
