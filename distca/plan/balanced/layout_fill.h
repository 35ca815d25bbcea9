#pragma once
// One construction of layout `balanced`: workers are filled one after another, each up to its
// tokens and its load at once. Any thread.

#include <cstdint>
#include <vector>

#include "distca/cost/task_price.h"
#include "distca/plan/plan.h"

namespace distca {

/// What the construction does not derive from the request; balanced_layout tries several.
struct FillChoice {
  // A document is cut over workers if a token of it costs more than half this x the mean, ...
  int64_t heavy_permille = 1500;
  // ... and its own first rows are filler up to the row that costs this x the mean.
  int64_t prefix_permille = 900;
  int64_t slack_permille = 980;  // of the tolerance that may be used
  int64_t load_permille = 400;   // what filler's load counts for beside the keys it makes travel
  int64_t spread_permille = 0;   // of the rows that all its servers read, shared by them
};

/// Where queries are computed at home, keys travel to (worker, document) once, up to the last query
/// there: so a long document is cut from its end in as few pieces as the load allows, the tokens
/// beside such a piece are short documents or the document's own first rows (cheap to attend, and
/// read by this worker anyway), and cuts of other documents are rare and small.
class WorkerFiller {
 public:
  /// `shares`: load per worker, before the tolerance. Keeps references to the request and the
  /// price.
  WorkerFiller(const PlanRequest& request, const TaskPrice& price, std::vector<int64_t> shares);
  /// Every token, each worker the mean number of tokens to within 128 and, as nearly as that
  /// allows, load up to its share x (1 + tolerance).
  Layout fill(const FillChoice& choice) const;

 private:
  const PlanRequest& request_;
  const TaskPrice& price_;
  const std::vector<int64_t> shares_;
  std::vector<Document> by_length_;  // without the empty ones
  int64_t mean_load_ = 0;            // of a token
};

}  // namespace distca
