// distca verify: whether a batch of the user's own data gives the same result on many workers as on
// one (docs/verify.md).

#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/verbs.h"
#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/base/text.h"
#include "distca/comm/launch/rendezvous.h"
#include "distca/config/run_grid.h"
#include "distca/train/check_run.h"
#include "distca/train/start_weights.h"
#include "distca/train/verify.h"

namespace distca::cli {
namespace {

struct VerifyArguments {
  std::string config;
  std::vector<std::string> overrides;
  int workers = 2;
  std::string dtype = "float64";
  bool all = false;
  bool json = false;
};

/// Prints the batch and the two sides that are compared.
void print_sides(const Config& config, const Verification& v) {
  const std::string many = counted(v.num_workers, "worker");
  std::string servers = run_grid(config, v.num_workers).describe_dedicated();
  if (!servers.empty()) servers += config.servers.in_place ? ", " : ", none in place, ";
  fmt::print("  {:<11} {} nano-batch{}, {}, {}, {}\n", "batch", with_thousands(v.nano_batches),
             v.nano_batches == 1 ? "" : "es", counted(v.documents, "document"),
             counted(v.tokens, "token"), counted(v.targets, "next-token pair"));
  fmt::print("  {:<11} {}scheduler {}, overlap {}, keys {}; {:.1f} s\n", many, servers,
             config.plan.scheduler, overlap_name(config.train.overlap),
             v.redispatched ? "dispatched again" : "kept", v.seconds);
  fmt::print("  {:<11} scheduler local, overlap none; {:.1f} s\n", "one worker", v.seconds_of_one);
  fmt::print("  {:<11} {}\n\n", "attention", v.kernel);
}

void print_differences(const Verification& v, bool all) {
  Table table({"compared with one worker", "difference", "bound"});
  const auto add = [&](const std::string& what, const Difference& d) {
    table.add_row({d.zero ? what + " (zero: absolute)" : what,
                   d.value == 0 ? "0" : fmt::format("{:.1e}", std::abs(d.value)),
                   fmt::format("{:.2g}", d.bound)});
  };
  add(fmt::format("loss, {:.6g} nats a token", v.loss), v.loss_difference);
  if (all) {
    for (const Difference& gradient : v.gradients) add("gradient of " + gradient.name, gradient);
  } else {
    const Difference& worst = v.worst_gradient();
    add(fmt::format("gradient of {}, the worst of {}", worst.name, v.gradients.size()), worst);
  }
  fmt::print("{}", table.to_string());
}

/// null for what is not a number.
Json difference_json(const Difference& d) {
  return {{"name", d.name}, {"difference", d.value}, {"bound", d.bound}, {"zero", d.zero}};
}

Json to_json(const Config& config, const Verification& v) {
  Json json = {{"same", fault_of(v).empty()},
               {"bound", v.bound},
               {"dtype", long_name(config.model.dtype)},
               {"kernel", v.kernel},
               {"workers", v.num_workers},
               {"dedicated_servers", run_grid(config, v.num_workers).grid.dedicated},
               {"scheduler", config.plan.scheduler},
               {"overlap", overlap_name(config.train.overlap)},
               {"redispatched", v.redispatched},
               {"nano_batches", v.nano_batches},
               {"documents", v.documents},
               {"tokens", v.tokens},
               {"targets", v.targets},
               {"seconds", v.seconds},
               {"seconds_of_one", v.seconds_of_one},
               {"loss", v.loss},
               {"loss_of_one", v.loss_of_one},
               {"loss_difference", difference_json(v.loss_difference)},
               {"gradients", Json::array()},
               {"other_replicas", v.other_ranks.replicas},
               {"other_copies", v.other_ranks.copies},
               {"other_partners", v.other_ranks.partners}};
  for (const Difference& gradient : v.gradients)
    json["gradients"].push_back(difference_json(gradient));
  return json;
}

void run_verify(const VerifyArguments& arguments) {
  const Config run = load_config(arguments.config, arguments.overrides);
  say_notes(run.notes);
  const ScalarType dtype = arguments.dtype == "run" ? run.model.dtype : ScalarType::kFloat64;
  const Config config = verify_config(run, dtype);
  const auto rendezvous = find_rendezvous(env_string);
  DISTCA_THROW_IF(
      rendezvous && rendezvous->size > 1, ErrorKind::kUsage,
      "verify makes all ranks itself, but {} started this process as one of {}: start it once",
      rendezvous->source, rendezvous->size);
  check_run(config, arguments.workers, {.count = num_ranks(config, arguments.workers)});
  check_start_weights(config);
  set_up_process(config);
  if (!arguments.json) {
    fmt::print("Comparing {} with one on the first batch of {}, in {}{}\n",
               counted(arguments.workers, "worker"), config.data.prefix, long_name(dtype),
               dtype == run.model.dtype
                   ? ""
                   : fmt::format(" (the run computes in {})", long_name(run.model.dtype)));
    std::fflush(stdout);  // before what may take minutes
  }
  const auto show = [progress = PacedProgress()](const std::string& side, double share) mutable {
    progress(fmt::format("{}: {:.0f} %", side, std::floor(100 * share)));
  };
  const Verification seen = verify(config, arguments.workers, {.progress = show});
  if (arguments.json) {
    fmt::print("{}", canonical_json(to_json(config, seen)));
  } else {
    print_sides(config, seen);
    print_differences(seen, arguments.all);
  }
  const std::string fault = fault_of(seen);
  DISTCA_THROW_IF(!fault.empty(), ErrorKind::kTraining, "{}", fault);
  if (!arguments.json) fmt::print("verify: the same to {:.2g}\n", seen.bound);
}

}  // namespace

void add_verify(CLI::App& app) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* verb = app.add_subcommand(
      "verify", "Whether a batch gives the same loss and gradients on many workers as on one");
  verb->add_option("--config", arguments->config, "As of distca train")->type_name("FILE");
  verb->add_option("overrides", arguments->overrides, "As of distca train")->type_name("KEY=VALUE");
  verb->add_option("--workers", arguments->workers,
                   "Workers to compare with one, beside servers.dedicated servers; all of them are "
                   "threads of this process")
      ->check(in_range(1, kMostRanks))
      ->capture_default_str();
  number_type(*verb, "--dtype", arguments->dtype, {"float64", "run"},
              "float64, in which rounding hides nothing, or run: model.dtype and "
              "attention.kernel of the run, with the bound of that format");
  verb->add_flag("--all", arguments->all, "Print every gradient, not only the worst");
  verb->add_flag("--json", arguments->json, "Print the result as one JSON object");
  verb->footer("Example:  distca verify --config configs/demo.toml --workers 3");
  verb->callback([arguments] { run_verify(*arguments); });
}

}  // namespace distca::cli
