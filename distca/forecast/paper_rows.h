#pragma once
// The experiments of the paper (arXiv 2510.18121) that can be played (paper_tables.h): what it
// says of them, and what it leaves open, each number with its source. And larger ones likewise.
//
//     for (const PaperRow& row : paper_rows(PaperTable::kFourDimensions))
//       fmt::print("{}: {} to {}\n", row.name(), row.published.least, row.published.most);
//
// Plain values; any thread may call the functions.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "distca/config/config.h"
#include "distca/plan/sample_workloads.h"

namespace distca {

enum class PaperTable : uint8_t {
  kThreeDimensions,  // its table 3
  kFourDimensions,   // its table 4
  kBeyond,           // larger models, longer documents and more GPUs, of which it says nothing
};
enum class PaperModel : uint8_t { k8B, k34B, k70B, k405B };

struct PaperRange {
  double least = 0, most = 0;
};

/// A training whose speed-up over WLB-ideal the paper publishes, as one of a range, or does not.
struct PaperRow {
  PaperTable table = PaperTable::kThreeDimensions;
  PaperModel model = PaperModel::k8B;
  SampleKind data = SampleKind::kPretrain;
  int64_t max_document_tokens = 0;
  int64_t sequences = 0;  // in a step; each has max_document_tokens
  int gpus = 0;
  PaperRange published = {};  // 0 to 0 if there is none

  std::string name() const;  // "34B 384K prolong 512 GPUs"
  int64_t tokens() const { return sequences * max_document_tokens; }
};

/// The rows of a table for both sources of lengths, in its order.
std::vector<PaperRow> paper_rows(PaperTable table);

/// The configuration of a row, which has nothing of a planner yet.
Config paper_config(const PaperRow& row);

/// A number or rule by which rows are played.
struct PaperConstant {
  const char* name;
  const char* value;
  const char* source;  // begins with "paper", "released code", "model" or "assumed"
};
const std::vector<PaperConstant>& paper_constants();

inline constexpr int kPaperTensor = 8;
/// The numbers of stages that are tried for each row of a table.
std::span<const int> paper_stages(PaperTable table);
/// The most nano-batches of a step in table 4.
inline constexpr int64_t kPaperNanoBatches = 32;
inline constexpr std::array<int, 5> kPaperGroups = {1, 2, 4, 8, 16};
/// The most tokens of a micro-batch on a worker under WLB-ideal, over their mean. 0 is the released
/// driver's rule: the mean, but what fits nowhere goes where least work is.
inline constexpr std::array<double, 2> kPaperMostTokens = {0, 1.17};
/// The tolerance of the paper's planner.
double paper_tolerance(const PaperRow& row);

/// Figure 3a: the share of all-gathers in a step of per-document context parallelism, by nodes.
struct AllGatherPoint {
  int nodes;
  double published;
};
inline constexpr std::array<AllGatherPoint, 5> kAllGatherShares{
    {{2, .027}, {4, .062}, {8, .135}, {16, .265}, {32, .397}}};
inline constexpr int64_t kAllGatherDocument = 32'768;  // tokens of every document
inline constexpr int64_t kAllGatherNodeTokens = 131'072;

/// Figure 11: by how much steps are longer whose messages do not travel under compute.
inline constexpr PaperRange kOneStream = {.10, .17};

}  // namespace distca
