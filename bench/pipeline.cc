// Pipelines whose stages share core attention, compared with others, in separate parts (minutes on
// two cores; `bench/report.py build/release/bench/pipeline PART` runs and judges one):
//   paced    operations sleep stated prices; over 60
//   real     a small Llama on two cores; some 30
//   trace    paced, what each rank does when; 1, without report.py

#include <CLI/CLI.hpp>
#include <span>
#include <string>

#include "bench/main.h"
#include "bench/pipeline_paced.h"
#include "bench/pipeline_real.h"
#include "bench/worker_ranks.h"

namespace distca::bench {
namespace {

struct Arguments {
  std::string part;
  int rounds = 0, shown_rounds = 0;
  PacedOptions paced;
  RealOptions real;
};

void measure(const Arguments& arguments, Communicator& comm) {
  if (comm.rank() == 0) {
    write_header(
        "pipeline",
        {{"part", arguments.part},
         {"rounds", arguments.part == "real" ? arguments.real.rounds : arguments.paced.rounds},
         {"contest_rounds", arguments.paced.contest_rounds},
         {"shown_rounds",
          arguments.part == "real" ? arguments.real.shown_rounds : arguments.paced.shown_rounds}});
  }
  if (arguments.part == "real") return measure_real(arguments.real, comm);
  arguments.part == "paced" ? measure_paced(arguments.paced, comm)
                            : trace_paced(arguments.paced, comm);
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"Pipelines whose stages share core attention, beside others.", "pipeline"};
  app.option_defaults()->always_capture_default();
  app.add_option("part", arguments.part, "What to measure")
      ->required()
      ->check(CLI::IsMember({"paced", "real", "trace"}));
  app.add_option("--rounds", arguments.rounds, "0: as many as the part's bars need")
      ->check(CLI::Range(0, 1000));
  app.add_option("--contest-rounds", arguments.paced.contest_rounds,
                 "Of the paced setting in which all arms are compared")
      ->check(CLI::Range(1, 1000));
  app.add_option("--shown-rounds", arguments.shown_rounds, "Likewise, of what is not judged")
      ->check(CLI::Range(0, 1000));
  app.add_option("--linear-ms", arguments.paced.linear_ms,
                 "Linear work of a nano-batch in a layer, forward")
      ->check(CLI::Range(0.1, 1000.0));
  app.add_option("--only", arguments.paced.only,
                 "The setting of this name, or all whose names hold it");
  app.footer(
      "Example:  bench/report.py build/release/bench/pipeline paced --only \"P = 2, M = 4\"");
  if (!parse_options(app, argc, argv)) return 0;
  arguments.real.only = arguments.paced.only;
  for (int* rounds : {&arguments.paced.rounds, &arguments.real.rounds}) {
    if (arguments.rounds > 0) *rounds = arguments.rounds;
  }
  for (int* rounds : {&arguments.paced.shown_rounds, &arguments.real.shown_rounds}) {
    if (arguments.shown_rounds > 0) *rounds = arguments.shown_rounds;
  }
  int ranks = 2;
  if (arguments.part == "paced") ranks = ranks_of(paced_runs(arguments.paced));
  if (arguments.part == "trace") ranks = kContestRanks;
  // Ranks that a small setting does not need wait for the others.
  const WorkerRanks workers{
      .program = "bench/pipeline", .ranks = ranks, .comm = {.timeout_s = 3600, .grace_s = 1}};
  return run_worker_ranks(workers, std::span(argv, static_cast<size_t>(argc)),
                          [&](Communicator& comm) { measure(arguments, comm); });
}

}  // namespace
}  // namespace distca::bench

int main(int argc, char** argv) {
  return distca::bench::run_benchmark("bench/pipeline",
                                      [&] { return distca::bench::run(argc, argv); });
}
