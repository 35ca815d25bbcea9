#pragma once
// Checks a plan, sharing no code with any scheduler, layout or accounting: all is recounted from
// the documents, the layout and the tasks (validate_load.h). One thing is shared: the nanoseconds
// of a task are TaskPrice's (cost/task_price.h), which has tests of its own. Any thread.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "distca/plan/plan.h"

namespace distca {

struct ValidateOptions {
  bool capacities = true;   // a server of capacity 0 computes nothing
  bool even_tokens = true;  // every worker holds the mean number of tokens to within 128
  /// Refuse a max/mean of load over capacity above 1 + this, in millionths; nothing: any.
  std::optional<int64_t> tolerance_ppm;
  size_t max_violations = 20;  // then one line says that there are more
  /// What the plan was priced with: then load is time_ns, recounted too. None: load is pairs.
  const AttentionProfile* profile = nullptr;
};

/// One line each; empty for a valid plan. Checks that
///  - the layout holds every token of every document exactly once;
///  - every (query, key) pair that the documents' causal mask allows, within shape.window_left, is
///    computed exactly once, none that it forbids;
///  - a task's queries lie in one segment, its server exists, tasks are sorted;
///  - without options.split_kv a task has all the keys that its queries see;
///  - documents are cut at multiples of 128 from their start;
///  - the loads, bytes and memory claimed are right and within the cluster's caps, each named;
///  - and what the options say.
/// Time: O(n log n) in segments and tasks, times the tasks of a document that share a query range.
std::vector<std::string> validate(const Plan& plan, const ValidateOptions& options = {});

}  // namespace distca
