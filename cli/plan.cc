// distca plan: how a nano-batch would be laid out and balanced, without running it; or a plan that
// was written before, checked.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/json.h"
#include "distca/base/text.h"
#include "distca/batch/batch_stream.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/plan/exchange.h"
#include "distca/plan/plan.h"
#include "distca/plan/plan_batch_input.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/summary.h"
#include "distca/plan/validate.h"

namespace distca::cli {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 30;  // of a nano-batch
constexpr int kMostWorkers = 65'536;
constexpr int64_t kMostCapacity = 1'000'000'000;

struct PlanArguments {
  std::filesystem::path plan;
  std::filesystem::path workload;
  std::filesystem::path lengths;
  std::filesystem::path data;
  int workers = 0;
  int64_t tokens_per_worker = 131'072;
  int64_t nano_batch_tokens = 0;
  int64_t max_document_tokens = 0;
  double validation_fraction = 0;
  uint64_t seed = 1;
  PlanOptions options;
  double tolerance = 0.05;
  int64_t heads = 32;
  int64_t kv_heads = 8;
  int64_t head_dim = 128;
  int64_t tensor_parallel = 8;
  std::string dtype = "bf16";
  bool json = false;
  bool summary_json = false;
  std::filesystem::path out;
};

/// A valid plan and what was measured.
struct Planned {
  Plan plan;
  std::optional<double> plan_seconds;  // none of a plan from a file
  double metadata_seconds = 0;         // all ranks
};

/// Every server may read every token: the sum of that must fit into int64.
void check_bytes(const NanoBatch& nano_batch, const Cluster& cluster, const AttentionShape& shape,
                 ErrorKind kind) {
  const int64_t token_bytes =
      shape.q_token_bytes() + shape.kv_token_bytes() + shape.o_token_bytes();
  const double most = static_cast<double>(nano_batch.num_tokens()) * cluster.num_servers() *
                      static_cast<double>(token_bytes);
  if (most < 0x1p62) return;
  throw Error(kind,
              "{} tokens x {} servers x {} of Q, K, V, O a token are more than can be counted",
              nano_batch.num_tokens(), cluster.num_servers(), human_bytes(token_bytes));
}

AttentionShape shape_from(const PlanArguments& arguments) {
  const int64_t tp = arguments.tensor_parallel;
  if (arguments.heads % arguments.kv_heads != 0) {
    throw Error(ErrorKind::kUsage, "--heads {} is not divisible by --kv-heads {}", arguments.heads,
                arguments.kv_heads);
  }
  if (arguments.kv_heads % tp != 0) {
    throw Error(ErrorKind::kUsage, "--kv-heads {} is not divisible by --tensor-parallel {}",
                arguments.kv_heads, tp);
  }
  const int64_t bytes = arguments.dtype == "fp64" ? 8 : arguments.dtype == "fp32" ? 4 : 2;
  return {.num_heads = arguments.heads / tp,
          .num_kv_heads = arguments.kv_heads / tp,
          .head_dim_qk = arguments.head_dim,
          .head_dim_v = arguments.head_dim,
          .element_bytes = bytes};
}

/// The first nano-batch of the stream over documents of these lengths: a training's first too, if
/// its seed, nano_batch_tokens, max_document_tokens and validation_fraction are given.
NanoBatch first_nano_batch(const std::vector<int64_t>& lengths, const PlanArguments& arguments) {
  const int64_t tokens = arguments.nano_batch_tokens > 0
                             ? arguments.nano_batch_tokens
                             : arguments.workers * arguments.tokens_per_worker;
  if (tokens > kMostTokens) {
    throw Error(ErrorKind::kUsage,
                "--workers {} x --tokens-per-worker {} is a nano-batch of {} tokens; at most {}",
                arguments.workers, arguments.tokens_per_worker, tokens, kMostTokens);
  }
  const DocumentSplit split = split_documents(static_cast<int64_t>(lengths.size()),
                                              arguments.validation_fraction, arguments.seed);
  BatchStream stream(
      lengths, split.train,
      {.nano_batch_tokens = tokens,
       .nano_batches = 1,
       .max_document_tokens =
           arguments.max_document_tokens > 0 ? arguments.max_document_tokens : tokens,
       .seed = arguments.seed});
  return stream.next().front().nano_batch;
}

PlanRequest request_from(const PlanArguments& arguments) {
  PlanRequest request;
  int workers = arguments.workers;
  if (!arguments.workload.empty()) {
    Workload workload = read_workload(arguments.workload);
    request.nano_batch = std::move(workload.nano_batch);
    if (workers == 0) workers = workload.ranks;
  } else {
    if (workers == 0) throw Error(ErrorKind::kUsage, "--lengths and --data need --workers N");
    request.nano_batch =
        first_nano_batch(arguments.data.empty() ? read_lengths(arguments.lengths)
                                                : IndexedDataset(arguments.data).document_lengths(),
                         arguments);
  }
  request.cluster = Cluster::in_place(workers);
  request.shape = shape_from(arguments);
  check_bytes(request.nano_batch, request.cluster, request.shape, ErrorKind::kUsage);
  request.options = arguments.options;
  request.options.tolerance_ppm = std::llround(arguments.tolerance * 1e6);
  return request;
}

double metadata_seconds(const Plan& plan) {
  const Stopwatch watch;
  const PlanIndex index(plan);
  for (size_t rank = 0; rank < plan.load.size(); ++rank) index.exchange(static_cast<int>(rank));
  return watch.seconds();
}

Planned make_and_check(const PlanRequest& request) {
  const Stopwatch watch;
  Planned planned{.plan = make_plan(request)};
  planned.plan_seconds = watch.seconds();
  const std::vector<std::string> violations = validate(planned.plan);
  DISTCA_CHECK(violations.empty(), "our own plan is invalid: {}", violations.front());
  planned.metadata_seconds = metadata_seconds(planned.plan);
  return planned;
}

/// The format allows more than loads and bytes in int64 do; make_plan refuses the same.
void check_sizes(const Plan& plan) {
  const int64_t tokens = plan.nano_batch.num_tokens();
  if (tokens > kMostTokens || plan.cluster.num_servers() > kMostWorkers) {
    throw Error(ErrorKind::kPlan, "{} tokens on {} servers; at most {} on {}", tokens,
                plan.cluster.num_servers(), kMostTokens, kMostWorkers);
  }
  const int64_t capacity = *std::ranges::max_element(plan.cluster.capacity);
  if (capacity > kMostCapacity) {
    throw Error(ErrorKind::kPlan, "a capacity of {}; at most {}", capacity, kMostCapacity);
  }
  check_bytes(plan.nano_batch, plan.cluster, plan.shape, ErrorKind::kPlan);
}

/// A plan that somebody else may have written or changed.
Planned read_and_check(const std::filesystem::path& path) {
  const std::string json = read_file(path, ErrorKind::kPlan);
  Planned planned;
  try {
    planned.plan = plan_from_json(json);
    check_sizes(planned.plan);
  } catch (const Error& error) {
    throw Error(ErrorKind::kPlan, "{}: {}", path.string(), error.what());
  }
  const std::vector<std::string> violations = validate(planned.plan);
  if (!violations.empty()) {
    throw Error(ErrorKind::kPlan, "{}: not a valid plan: {}{}", path.string(), violations.front(),
                violations.size() > 1 ? " (and more)" : "");
  }
  planned.metadata_seconds = metadata_seconds(planned.plan);
  return planned;
}

/// A bar per server before and after, in units of the mean load.
std::string load_table(const Plan& plan) {
  constexpr int kBarWidth = 24;
  constexpr size_t kMostServers = 32;
  constexpr size_t kShown = 16;  // of more servers than that: the most loaded ones
  const std::vector<int64_t> before = home_load(plan);
  const double total =
      static_cast<double>(std::accumulate(before.begin(), before.end(), int64_t{0}));
  const double mean = std::max(1.0, total / static_cast<double>(before.size()));
  double most = 1;
  for (size_t server = 0; server < before.size(); ++server) {
    most = std::max({most, static_cast<double>(before[server]) / mean,
                     static_cast<double>(plan.load[server].pairs) / mean});
  }

  std::vector<size_t> servers(before.size());
  std::iota(servers.begin(), servers.end(), size_t{0});
  const bool cut = servers.size() > kMostServers;
  if (cut) {
    std::stable_sort(servers.begin(), servers.end(),
                     [&before](size_t a, size_t b) { return before[a] > before[b]; });
    servers.resize(kShown);
  }
  Table table({"server", "load before", "", "after", ""});
  for (const size_t server : servers) {
    const double was = static_cast<double>(before[server]) / mean;
    const double is = static_cast<double>(plan.load[server].pairs) / mean;
    table.add_row({std::to_string(server), bar(was / most, kBarWidth), fmt::format("{:.3f}", was),
                   bar(is / most, kBarWidth), fmt::format("{:.3f}", is)});
  }
  return table.to_string() + (cut ? "...\n" : "");
}

void print_report(const Planned& planned) {
  const Plan& plan = planned.plan;
  const PlanSummary summary = summarize(plan);
  fmt::print("{} documents, {} tokens on {} workers ({} to {} each)\n",
             with_thousands(static_cast<int64_t>(plan.nano_batch.documents.size())),
             with_thousands(plan.nano_batch.num_tokens()), plan.cluster.num_workers,
             with_thousands(summary.tokens_min), with_thousands(summary.tokens_max));
  fmt::print("layout {}, scheduler {}, tolerance {:g}: {} tasks\n\n", plan.options.layout,
             plan.options.scheduler, static_cast<double>(plan.options.tolerance_ppm) * 1e-6,
             with_thousands(static_cast<int64_t>(plan.tasks.size())));
  fmt::print("{}\n", load_table(plan));
  fmt::print("max/mean    {:.3f} before, {:.3f} after\n", summary.max_over_mean_before,
             summary.max_over_mean);
  fmt::print("bytes       Q, K, V {} there, O {} back; a layer, forward, all servers\n",
             human_bytes(summary.qkv_bytes), human_bytes(summary.o_bytes));
  fmt::print("one server  sends at most {}, receives at most {} of Q, K, V\n",
             human_bytes(summary.max_send_bytes), human_bytes(summary.max_receive_bytes));
  fmt::print(
      "time        {}metadata of all ranks {:.2f} ms\n",
      planned.plan_seconds ? fmt::format("plan {:.2f} ms, ", *planned.plan_seconds * 1e3) : "",
      planned.metadata_seconds * 1e3);
  fmt::print("hash        {}\nvalid\n", plan_hash(plan));
}

void print_summary_json(const Planned& planned) {
  const Plan& plan = planned.plan;
  const PlanSummary summary = summarize(plan);
  Json json{{"scheduler", plan.options.scheduler},
            {"layout", plan.options.layout},
            {"servers", plan.cluster.num_servers()},
            {"max_over_mean_before", summary.max_over_mean_before},
            {"max_over_mean", summary.max_over_mean},
            {"qkv_bytes", summary.qkv_bytes},
            {"o_bytes", summary.o_bytes},
            {"max_send_bytes", summary.max_send_bytes},
            {"max_recv_bytes", summary.max_receive_bytes},
            {"tokens_max", summary.tokens_max},
            {"tokens_min", summary.tokens_min},
            {"tasks", plan.tasks.size()},
            {"metadata_us", std::llround(planned.metadata_seconds * 1e6)},
            {"hash", plan_hash(plan)},
            {"violations", Json::array()}};  // an invalid plan ends in an error
  if (planned.plan_seconds) json["plan_us"] = std::llround(*planned.plan_seconds * 1e6);
  fmt::print("{}", canonical_json(json));
}

void run_plan(const PlanArguments& arguments) {
  const int sources =
      static_cast<int>(!arguments.plan.empty()) + static_cast<int>(!arguments.workload.empty()) +
      static_cast<int>(!arguments.lengths.empty()) + static_cast<int>(!arguments.data.empty());
  if (sources != 1) {
    throw Error(ErrorKind::kUsage,
                "give one of --workload FILE, --lengths FILE, --data PREFIX, --plan FILE, not {}",
                sources);
  }
  const Planned planned = arguments.plan.empty() ? make_and_check(request_from(arguments))
                                                 : read_and_check(arguments.plan);
  if (!arguments.out.empty()) write_file_atomically(arguments.out, plan_to_json(planned.plan));
  if (arguments.summary_json) {
    print_summary_json(planned);
  } else if (arguments.json) {
    fmt::print("{}", plan_to_json(planned.plan));
  } else {
    print_report(planned);
  }
}

/// "greedy: overloaded ...; local: ...".
template <typename Entries>
std::string listed(const Entries& entries) {
  std::string text;
  for (const auto& entry : entries) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", entry.name, entry.summary);
  }
  return text;
}

void add_input_options(CLI::App& verb, PlanArguments& arguments) {
  verb.add_option("--workload", arguments.workload,
                  "One nano-batch: JSON with ranks, tokens_per_rank, doc_lens");
  verb.add_option("--lengths", arguments.lengths,
                  "JSON list of document lengths: its first nano-batch; needs --workers");
  verb.add_option("--data", arguments.data,
                  "PREFIX of a data set: its first nano-batch; needs --workers");
  verb.add_option("--workers", arguments.workers, "Default: ranks of the workload")
      ->check(CLI::Range(1, kMostWorkers));
  verb.add_option("--tokens-per-worker", arguments.tokens_per_worker, "For --lengths and --data")
      ->check(CLI::Range(int64_t{1}, kMostTokens))
      ->capture_default_str();
  verb.add_option("--nano-batch-tokens", arguments.nano_batch_tokens,
                  "batch.nano_batch_tokens of a training; default: workers x tokens-per-worker")
      ->check(CLI::Range(int64_t{1}, kMostTokens));
  verb.add_option("--max-document-tokens", arguments.max_document_tokens,
                  "batch.max_document_tokens: longer documents are cut; default: the nano-batch's")
      ->check(CLI::Range(int64_t{1}, kMostTokens));
  verb.add_option("--validation-fraction", arguments.validation_fraction,
                  "data.validation_fraction: share of documents left out")
      ->capture_default_str();
  verb.add_option("--seed", arguments.seed, "batch.seed: order and choice of the documents")
      ->capture_default_str();
}

void add_shape_options(CLI::App& verb, PlanArguments& arguments) {
  const CLI::Range positive(int64_t{1}, int64_t{1} << 16);
  verb.add_option("--heads", arguments.heads, "Query heads")
      ->check(positive)
      ->capture_default_str();
  verb.add_option("--kv-heads", arguments.kv_heads, "Key and value heads")
      ->check(positive)
      ->capture_default_str();
  verb.add_option("--head-dim", arguments.head_dim, "Of queries, keys and values")
      ->check(positive)
      ->capture_default_str();
  verb.add_option("--tensor-parallel", arguments.tensor_parallel, "Ranks that share the heads")
      ->check(positive)
      ->capture_default_str();
  verb.add_option("--dtype", arguments.dtype, "What travels")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32", "fp64"}))
      ->capture_default_str();
}

}  // namespace

void add_plan(CLI::App& app) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* verb = app.add_subcommand("plan", "How a nano-batch would be laid out and balanced");
  add_input_options(*verb, *arguments);
  verb->add_option("--layout", arguments->options.layout, listed(layouts()))->capture_default_str();
  verb->add_option("--scheduler", arguments->options.scheduler, listed(schedulers()))
      ->capture_default_str();
  verb->add_option("--tolerance", arguments->tolerance, "Load may exceed the mean by this share")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  add_shape_options(*verb, *arguments);
  const std::vector<CLI::Option*> inputs = verb->get_options();
  verb->add_option("--plan", arguments->plan, "A plan as JSON, to check; takes none of the above");
  verb->add_flag("--json", arguments->json, "Print the plan as JSON (docs/plan_format.md)");
  verb->add_flag("--summary-json", arguments->summary_json, "Print the figures as one JSON object");
  verb->add_option("--out", arguments->out, "Write the plan as JSON to this file");
  verb->footer(
      "For a training's first nano-batch give the values of its batch.* and data.* keys, and its\n"
      "model's heads and --dtype with --tensor-parallel 1.\n"
      "Example:  distca plan --data data/docs --workers 4 --tokens-per-worker 65536");
  verb->callback([arguments, inputs] {
    for (const CLI::Option* input : inputs) {
      if (arguments->plan.empty() || input->count() == 0) continue;
      throw Error(ErrorKind::kUsage, "--plan takes no {}: the plan says it", input->get_name());
    }
    run_plan(*arguments);
  });
}

}  // namespace distca::cli
