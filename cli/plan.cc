// distca plan: how a nano-batch would be laid out and balanced, without running it, and which
// operations a rank's step would have; or a plan that was written before, checked.

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/options.h"
#include "cli/plan_arguments.h"
#include "cli/plan_config.h"
#include "cli/plan_pipeline.h"
#include "cli/plan_report.h"
#include "cli/planned.h"
#include "cli/verbs.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/program/overlap.h"
#include "distca/program/validate/validate.h"

namespace distca::cli {
namespace {

void check_sources(const PlanArguments& arguments) {
  const std::array missing{arguments.plan.empty(), arguments.workload.empty(),
                           arguments.lengths.empty(), arguments.data.empty()};
  const auto given = std::ranges::count(missing, false);
  DISTCA_THROW_IF(given != 1, ErrorKind::kUsage,
                  "give one of --workload FILE, --lengths FILE, --data PREFIX, --plan FILE, not {}",
                  given);
  DISTCA_THROW_IF(
      arguments.program &&
          (arguments.compare || arguments.json || arguments.summary_json || !arguments.out.empty()),
      ErrorKind::kUsage,
      "--program prints operations: it takes no --compare, --json, --summary-json, --out");
  DISTCA_THROW_IF(arguments.tolerance == "auto" && (arguments.program || arguments.compare),
                  ErrorKind::kUsage,
                  "--tolerance auto makes many plans and shows what it weighed: give {} a number",
                  arguments.program ? "--program" : "--compare");
  if (!arguments.compare) return;
  DISTCA_THROW_IF(!arguments.plan.empty() || !arguments.out.empty(), ErrorKind::kUsage,
                  "--compare makes many plans: it takes no --plan and no --out");
}

/// One plan a nano-batch.
std::vector<Plan> step_plans(const PlanArguments& arguments) {
  if (!arguments.plan.empty()) {
    const Plan plan = read_and_check(arguments.plan, profile_by_name(arguments.profile)).plan;
    return std::vector<Plan>(arguments.nano_batches, plan);
  }
  std::vector<Plan> plans;
  for (const PlanRequest& request : requests_from(arguments, arguments.nano_batches))
    plans.push_back(make_and_check(request).plan);
  return plans;
}

/// The programs of all ranks.
std::vector<Program> step_programs(const PlanArguments& arguments, const std::vector<Plan>& plans) {
  const Plan& first = plans.front();
  const int num_ranks = first.cluster.num_servers();
  const ExchangeTypes types =
      exchange_types(compute_type(first.shape.element_bytes), /*wide_gradients=*/false);
  std::vector<std::vector<NanoPart>> parts(num_ranks);
  int64_t messages = 0;
  for (const Plan& plan : plans) {
    const PlanIndex index(plan);
    for (int rank = 0; rank < num_ranks; ++rank) {
      RankExchange rows = index.exchange(rank);
      messages += static_cast<int64_t>(rows.sends.size() + rows.receives.size()) *
                  arguments.layers * (arguments.redispatched ? 5 : 4);
      parts[rank].push_back({.exchange = std::make_shared<const AttentionExchange>(
                                 make_attention_exchange(std::move(rows), first.shape, types)),
                             .redispatched = arguments.redispatched});
    }
  }
  check_messages(messages, num_ranks, "--nano-batches");
  std::vector<Program> programs;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ProgramRequest request{.overlap = overlap_of(arguments.overlap),
                           .holds_weights = rank < first.cluster.num_workers,
                           .nano_batches = std::move(parts[rank])};
    request.model = {.num_layers = arguments.layers,
                     .hidden_size = arguments.hidden_size,
                     .intermediate_size = arguments.intermediate_size / arguments.tensor_parallel,
                     .attention = first.shape};
    programs.push_back(build_program(request));
  }
  return programs;
}

/// The program of a rank, for people (docs/program.md). Throws Error(kUsage or kPlan) for what
/// cannot be shown: no such rank, no layers, more messages than are worth checking.
void print_program_of(const PlanArguments& arguments) {
  DISTCA_THROW_IF(arguments.layers == 0, ErrorKind::kUsage,
                  "--program needs --layers of 1 or more");
  const std::vector<Plan> plans = step_plans(arguments);
  const Cluster& cluster = plans.front().cluster;
  DISTCA_THROW_IF(arguments.rank >= cluster.num_servers(), ErrorKind::kUsage,
                  "--rank {}: the plan has ranks 0 to {}", arguments.rank,
                  cluster.num_servers() - 1);
  const std::vector<Program> programs = step_programs(arguments, plans);
  const std::vector<std::string> violations = validate(programs);
  DISTCA_CHECK(violations.empty(), "our own programs are invalid: {}", violations.front());
  const Program& program = programs[arguments.rank];
  fmt::print(
      "Rank {} of {}{}, overlap {}, nano-batches: {}, layers: {}; {} operations, valid with the "
      "programs of all ranks\n\n{}",
      arguments.rank, cluster.num_servers(),
      arguments.rank < cluster.num_workers ? "" : " (a dedicated server)", arguments.overlap,
      plans.size(), arguments.layers, program.ops.size(), print_program(program));
}

void run_plan(const PlanArguments& arguments) {
  check_sources(arguments);
  if (arguments.pipeline > 0) return print_pipeline(arguments);
  if (arguments.program) return print_program_of(arguments);
  const bool as_json = arguments.json || arguments.summary_json;
  std::string note;
  Planned planned;
  Json weighed;
  if (!arguments.plan.empty()) {
    planned = read_and_check(arguments.plan, profile_by_name(arguments.profile));
  } else {
    PlanRequest request = requests_from(arguments, 1, &note).front();
    if (arguments.compare) {
      if (!as_json) fmt::print("{}", note);
      return print_comparison(request, as_json);
    }
    if (arguments.tolerance == "auto") {
      const ToleranceChoice choice = chosen_tolerance(arguments, request);
      request.options = choice.plan.options;
      weighed = weighed_json(choice);
    }
    planned = make_and_check(request);
  }
  if (!arguments.out.empty()) write_file_atomically(arguments.out, plan_to_json(planned.plan));
  if (arguments.summary_json) {
    Json summary = summary_json(planned);
    if (!weighed.is_null()) summary["weighed"] = weighed;
    fmt::print("{}", canonical_json(summary));
  } else if (arguments.json) {
    fmt::print("{}", plan_to_json(planned.plan));
  } else {
    fmt::print("{}", note);
    print_report(planned);
  }
}

/// Throws Error(kUsage) if an option is given together with one that would ignore it.
void check_company(const PlanArguments& arguments, const std::vector<CLI::Option*>& inputs) {
  constexpr std::array<std::string_view, 4> kCompared{"--scheduler", "--layout", "--split-kv",
                                                      "--spread"};
  for (const CLI::Option* input : inputs) {
    const std::string name = input->get_name();
    if (input->count() == 0) continue;
    const bool says_more =
        name == "--profile" || (arguments.program && name == "--layers");  // than a plan
    DISTCA_THROW_IF(!arguments.plan.empty() && !says_more, ErrorKind::kUsage,
                    "--plan takes no {}: the plan says it", name);
    DISTCA_THROW_IF(arguments.compare && std::ranges::find(kCompared, name) != kCompared.end(),
                    ErrorKind::kUsage, "--compare takes no {}: it shows all of them", name);
  }
}

/// Options that mean something only together with others.
struct Companions {
  std::vector<CLI::Option*> of_program, of_pipeline, not_of_pipeline;

  void check(const PlanArguments& arguments) const {
    for (const CLI::Option* option : of_program) {
      DISTCA_THROW_IF(option->count() > 0 && !arguments.program, ErrorKind::kUsage,
                      "{} says which program is shown: give --program, too", option->get_name());
    }
    for (const CLI::Option* option : of_pipeline) {
      DISTCA_THROW_IF(option->count() > 0 && arguments.pipeline == 0, ErrorKind::kUsage,
                      "{} is of a pipeline: give --pipeline, too", option->get_name());
    }
    for (const CLI::Option* option : not_of_pipeline) {
      DISTCA_THROW_IF(option->count() > 0 && arguments.pipeline > 0, ErrorKind::kUsage,
                      "--pipeline takes no {}: the ticks decide it", option->get_name());
    }
  }
};

/// The options with which a configuration is planned.
class ConfigOptions {
 public:
  explicit ConfigOptions(CLI::App& verb) : verb_(verb) {
    config_ =
        verb.add_option("--config", asked_->config,
                        "A configuration of distca train: plans what that runs in step "
                        "--step, and takes --workers, --lengths, --compare, --summary-json and "
                        "KEY=VALUE alone")
            ->type_name("FILE");
    words_ = verb.add_option("overrides", asked_->overrides,
                             "section.key=value; replaces what the --config says")
                 ->type_name("KEY=VALUE");
    step_ = number(verb, "--step", asked_->step, 1, int64_t{1} << 40, "Of the --config's run");
  }

  /// Plans the configuration and returns true, if --config was given. Throws Error(kUsage) for
  /// options that would be ignored.
  bool plan(const PlanArguments& arguments) const {
    if (config_->count() == 0) {
      for (const CLI::Option* option : {words_, step_}) {
        DISTCA_THROW_IF(option->count() > 0, ErrorKind::kUsage,
                        "{} is of a training: give its --config FILE, too",
                        option == words_ ? asked_->overrides.front() : option->get_name());
      }
      return false;
    }
    for (const CLI::Option* option : verb_.get_options()) {
      const std::string name = option->get_name();
      const bool takes = option == config_ || option == words_ || option == step_ ||
                         name == "--workers" || name == "--lengths" || name == "--summary-json" ||
                         name == "--compare";
      DISTCA_THROW_IF(option->count() > 0 && !takes, ErrorKind::kUsage,
                      "--config takes no {}: the configuration says what is planned", name);
    }
    asked_->workers = std::max(1, arguments.workers);
    asked_->lengths = arguments.lengths;
    asked_->as_json = arguments.summary_json;
    asked_->compare = arguments.compare;
    print_plan_of_config(*asked_);
    return true;
  }

 private:
  CLI::App& verb_;
  std::shared_ptr<ConfigToPlan> asked_ = std::make_shared<ConfigToPlan>();  // outlives copies
  CLI::Option *config_ = nullptr, *words_ = nullptr, *step_ = nullptr;
};

}  // namespace

void add_plan(CLI::App& app) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* verb = app.add_subcommand("plan", "How a nano-batch would be laid out and balanced");
  add_plan_options(*verb, *arguments);
  const std::vector<CLI::Option*> inputs = verb->get_options();
  verb->add_option("--plan", arguments->plan,
                   "A plan as JSON, to check; takes none of the above but --profile");
  add_program_options(*verb, *arguments);
  const auto options = [verb](const std::vector<std::string>& names) {
    std::vector<CLI::Option*> found;
    for (const std::string& name : names) found.push_back(verb->get_option(name));
    return found;
  };
  const Companions companions{
      .of_program = options({"--rank", "--nano-batches", "--redispatch", "--pipeline"}),
      .of_pipeline = options({"--micro-batches", "--fill-ticks"}),
      .not_of_pipeline = options({"--nano-batches", "--redispatch", "--plan", "--capacity"})};
  verb->add_flag("--compare", arguments->compare, "All schedulers side by side");
  verb->add_flag("--json", arguments->json, "Print the plan as JSON (docs/plan_format.md)");
  verb->add_flag("--summary-json", arguments->summary_json, "Print the figures as one JSON object");
  verb->add_option("--out", arguments->out, "Write the plan as JSON to this file");
  const ConfigOptions of_training(*verb);
  verb->footer(
      "With --config alone: the plans of a training, as distca plan --config configs/demo.toml\n"
      "--workers 2 --step 3.\n"
      "Example:  distca plan --data data/docs --workers 4 --tokens-per-worker 65536");
  verb->callback([arguments, inputs, companions, of_training] {
    if (of_training.plan(*arguments)) return;
    check_company(*arguments, inputs);
    companions.check(*arguments);
    run_plan(*arguments);
  });
}

}  // namespace distca::cli
