#pragma once
// The planner as C functions, for python/distca/plan.py: what libdistca_planner.so exports. The
// library needs no PyTorch. docs/python.md shows how it is used.
//
// A function that can fail returns 0, or the exit code that docs/errors.md gives for the failure: 2
// for bad input, 1 for a failure of the machine, 70 for a bug of ours. It then sets `answer` to one
// line that says what is wrong. Texts are UTF-8 and end with a zero byte; the caller gives them
// back by distca_free_text(). A null answer means that there was no memory for the text. Any thread
// may call any function; a plan never changes.

#include <cstdint>

extern "C" {

/// A distca::api::BatchPlan.
struct DistcaPlan;

/// Makes a plan as distca::api::plan_batch() does. `request` is a JSON object with all fields of
/// BatchRequest but cu_seqlens and tokens; its "shape" is an object, too. cu_seqlens:
/// [num_offsets]. tokens: [ranges, 2], the begin and end of each range, rank by rank; num_ranges:
/// [token_ranks], the number of ranges of each rank. token_ranks is 0 if the planner chooses the
/// tokens. On success sets `plan`, which distca_free_plan() gives back.
int distca_plan_batch(const char* request, const int64_t* cu_seqlens, int64_t num_offsets,
                      const int64_t* tokens, const int64_t* num_ranges, int64_t token_ranks,
                      DistcaPlan** plan, char** answer);

/// Reads what distca_plan_json() wrote.
int distca_read_plan(const char* json, int64_t bytes, DistcaPlan** plan, char** answer);

/// The plan as canonical JSON (docs/plan_format.md).
int distca_plan_json(const DistcaPlan* plan, char** answer);

/// A JSON object with "num_ranks", "hash" and "max_over_mean".
int distca_plan_summary(const DistcaPlan* plan, char** answer);

/// Writes how many ranges of tokens each rank holds, [num_ranks], and returns their sum.
int64_t distca_plan_num_ranges(const DistcaPlan* plan, int64_t* num_ranges);

/// Writes the begin and end of each range, rank by rank, [ranges, 2].
void distca_plan_tokens(const DistcaPlan* plan, int64_t* tokens);

void distca_free_plan(DistcaPlan* plan);
void distca_free_text(char* text);

}  // extern "C"
