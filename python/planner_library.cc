#include "python/planner_library.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "distca/api/planner.h"
#include "distca/base/error.h"
#include "distca/base/json_field.h"

struct DistcaPlan {
  distca::api::BatchPlan plan;
};

namespace {

using distca::ErrorKind;
using distca::JsonField;
using distca::JsonReader;
using distca::api::BatchRequest;

constexpr int64_t kMostRanks = 1 << 20;  // the most that a plan file may name

char* copy_of(std::string_view text) {
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return nullptr;
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = 0;
  return copy;
}

/// Runs `body`; an exception becomes an exit code and a line in `answer`.
template <typename Body>
int exit_code_of(char** answer, Body body) {
  try {
    body();
    return 0;
  } catch (const distca::Error& error) {
    *answer = copy_of(error.what());
    return error.exit_code();
  } catch (...) {
    const distca::ExitMessage words = distca::exit_message(std::current_exception());
    *answer = copy_of(words.line);
    return words.exit_code;
  }
}

BatchRequest request_from(std::string_view text) {
  const std::string name = "plan_batch";
  const distca::Json json = distca::parse_json(text, name, ErrorKind::kUsage);
  const JsonField field(json, name, ErrorKind::kUsage);
  const JsonField shape = field["shape"];
  BatchRequest request;
  JsonReader read{field}, read_shape{shape};
  read("cu_seqlens", request.cu_seqlens);
  read("num_ranks", request.num_ranks, 1, kMostRanks);
  read("window_left", request.window_left);
  read("num_holders", request.num_holders, 0, kMostRanks);
  read("capacity", request.capacity);
  read("linear_work", request.linear_work);
  read("scheduler", request.scheduler);
  read("split_kv", request.split_kv);
  if (field.has("tolerance")) request.tolerance = field["tolerance"].number();
  read_shape("num_heads", request.shape.num_heads);
  read_shape("num_kv_heads", request.shape.num_kv_heads);
  read_shape("head_dim", request.shape.head_dim);
  read_shape("head_dim_v", request.shape.head_dim_v);
  const auto dtype = distca::scalar_type(shape["dtype"].text());
  shape["dtype"].expect(dtype.has_value(), "\"float64\", \"float32\" or \"bfloat16\"");
  request.shape.dtype = *dtype;
  const JsonField tokens = field["tokens"];
  request.tokens.resize(tokens.size());
  for (size_t rank = 0; rank < request.tokens.size(); ++rank) {
    const std::vector<int64_t> ends = tokens.at(rank).integers();
    for (size_t i = 1; i < ends.size(); i += 2)
      request.tokens[rank].push_back({ends[i - 1], ends[i]});
  }
  return request;
}

void keep(const distca::api::BatchPlan& made, DistcaPlan** plan, char** answer) {
  *plan = new DistcaPlan{made};
  *answer = copy_of(distca::canonical_json({{"num_ranks", made.num_ranks()},
                                            {"hash", made.hash()},
                                            {"max_over_mean", made.max_over_mean()}}));
}

}  // namespace

int distca_plan_batch(const char* request, int64_t bytes, DistcaPlan** plan, char** answer) {
  return exit_code_of(answer, [&] {
    keep(distca::api::plan_batch(request_from(std::string_view(request, bytes))), plan, answer);
  });
}

int distca_read_plan(const char* json, int64_t bytes, DistcaPlan** plan, char** answer) {
  return exit_code_of(answer, [&] {
    keep(distca::api::BatchPlan::from_json(std::string_view(json, bytes)), plan, answer);
  });
}

int distca_plan_json(const DistcaPlan* plan, char** answer) {
  return exit_code_of(answer, [&] { *answer = copy_of(plan->plan.json()); });
}

int distca_plan_tokens(const DistcaPlan* plan, char** answer) {
  return exit_code_of(answer, [&] {
    distca::Json tokens = distca::Json::array();
    for (const std::vector<distca::Range>& of_rank : plan->plan.tokens()) {
      distca::Json& ranges = tokens.emplace_back(distca::Json::array());
      for (const distca::Range& range : of_rank)
        ranges.insert(ranges.end(), {range.begin, range.end});
    }
    *answer = copy_of(tokens.dump());
  });
}

void distca_free_plan(DistcaPlan* plan) { delete plan; }
void distca_free_text(char* text) { std::free(text); }
