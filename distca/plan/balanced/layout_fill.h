#pragma once
// One construction of layout `balanced`. It fills workers one after another, each up to its tokens
// and its load at once. Any thread may call it.
//
//   const Layout layout = fill_workers(filling, {.heavy_permille = 1000});  // Filling filling

#include <cstdint>
#include <vector>

#include "distca/cost/task_price.h"
#include "distca/plan/plan.h"

namespace distca {

/// Parameters that do not follow from the request. balanced_layout tries several choices. All are
/// in thousandths.
struct FillChoice {
  /// A document is cut over several workers if its tokens cost on average more than half of this
  /// times the mean of all tokens.
  int64_t heavy_permille = 1500;
  /// Such a document's own first rows serve as filler, up to the row that costs this times the
  /// mean.
  int64_t prefix_permille = 900;
  int64_t slack_permille = 980;  // part of the tolerance that may be used
  /// How much the load of filler counts compared with the keys that it makes travel.
  int64_t load_permille = 400;
  /// The part that is divided among the servers of a document, of the rows that all of them read.
  /// It is above 0 only with options.spread.
  int64_t spread_permille = 0;
};

/// The input of all constructions. Borrows the request and the price.
struct Filling {
  const PlanRequest& request;
  const TaskPrice& price;
  std::vector<int64_t> shares;      // [worker] load, before the tolerance
  std::vector<Document> by_length;  // shortest first, without the empty ones
  int64_t mean_load = 0;            // load of a token
};

/// Places every token. Each worker holds the mean number of tokens to within 128 and, as nearly as
/// that allows, a load of up to its share x (1 + tolerance).
///
/// Where queries are computed at home, the keys of a document travel to a worker once, up to the
/// last query there. So a long document is cut from its end, in as few pieces as the load allows.
/// The other tokens of its worker (the filler) are short documents, or the document's own first
/// rows, which cost little and are read by this worker anyway. Cuts of other documents are rare and
/// small.
Layout fill_workers(const Filling& filling, const FillChoice& choice);

}  // namespace distca
