#pragma once
// The verbs of the program. A new verb is one file, one function here, and one line in main.cc.

#include <CLI/CLI.hpp>

#include "cli/train_request.h"

namespace distca::cli {

/// Each function registers the subcommand of a verb. The subcommand's callback runs the verb. It
/// throws Error on failure, and sets the exit code otherwise.
void add_checkpoint(CLI::App& app);
void add_data(CLI::App& app);
void add_export(CLI::App& app);
void add_init(CLI::App& app);
void add_kernels(CLI::App& app);
void add_monitor(CLI::App& app);
void add_plan(CLI::App& app);
void add_report(CLI::App& app);
void add_simulate(CLI::App& app);
void add_trace(CLI::App& app);
/// `start` starts the run, unless the verb's words ask for less than a run.
void add_train(CLI::App& app, int* exit_code, StartTraining start);
#ifdef DISTCA_WITH_TORCH
void add_evaluate(CLI::App& app, int* exit_code);
void add_generate(CLI::App& app);
void add_profile(CLI::App& app, int* exit_code);
void add_verify(CLI::App& app);
#endif

}  // namespace distca::cli
