#pragma once
// Checks a plan. The validator shares no code with any scheduler, layout or accounting: it counts
// everything again from the documents, the layout and the tasks (check_load in validate_parts.h).
// It shares one thing, the nanoseconds of a task, which are those of TaskPrice (cost/task_price.h)
// with its own tests.
//
//   for (const std::string& violation : validate(plan)) fmt::print("{}\n", violation);
//
// Any thread may call the function. For the options that suit a scheduler: checks_of (scheduler.h).

#include <cstdint>
#include <string>
#include <vector>

#include "distca/plan/plan.h"

namespace distca {

struct ValidateOptions {
  /// Check that a server of capacity 0 computes nothing. Off for schedulers that ignore capacities.
  bool capacities = true;
  /// Check that every worker holds the mean number of tokens to within 128. Off for uneven layouts.
  bool even_tokens = true;
  /// Check that the layout cuts documents at multiples of 128 only. Off for layouts of the caller's
  /// own, whose cuts tasks may then have, too.
  bool whole_blocks = true;
  size_t max_violations = 20;  // lines that are returned; one more counts the others
  /// The profile by which the plan was priced. Then time_ns is counted again too.
  const AttentionProfile* profile = nullptr;
};

/// Returns one line for each violation, and nothing for a valid plan. Checks that
///  - the layout holds every token of every document exactly once;
///  - shape.mask is causal; every (query, key) pair that it allows is computed exactly once, and no
///    pair that it forbids;
///  - a task's queries lie in one segment, its server exists, and tasks are sorted;
///  - without options.split_kv, a task has all keys that its queries see;
///  - tasks are cut at multiples of 128 from the document's start, at its end, or where the layout
///    cuts it;
///  - the claimed loads, bytes and memory are right and within the cluster's caps, each named;
///  - the conditions that `options` adds hold.
/// Time: O(n log n) in segments and tasks, times the tasks of a document that share a query range.
std::vector<std::string> validate(const Plan& plan, const ValidateOptions& options = {});

}  // namespace distca
