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
/// BatchRequest. Its "shape" is an object, too, and its "tokens" have a list for each rank: begin
/// and end of one range, then of the next one. On success sets `plan`, which distca_free_plan()
/// gives back, and answers a JSON object with "num_ranks", "hash" and "max_over_mean".
int distca_plan_batch(const char* request, int64_t bytes, DistcaPlan** plan, char** answer);

/// Reads what distca_plan_json() wrote, and answers likewise.
int distca_read_plan(const char* json, int64_t bytes, DistcaPlan** plan, char** answer);

/// The plan as canonical JSON (docs/plan_format.md).
int distca_plan_json(const DistcaPlan* plan, char** answer);

/// The tokens that ranks hold, as JSON, as "tokens" of a request.
int distca_plan_tokens(const DistcaPlan* plan, char** answer);

void distca_free_plan(DistcaPlan* plan);
void distca_free_text(char* text);

}  // extern "C"
