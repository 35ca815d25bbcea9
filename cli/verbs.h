#pragma once
// The verbs of the program. A new verb is one file, one function here, and one line in main.cc.

#include <CLI/CLI.hpp>

#include "cli/plan_config.h"

namespace distca::cli {

/// Each function registers the subcommand of a verb. The subcommand's callback runs the verb. It
/// throws Error on failure, and sets the exit code otherwise.
void add_checkpoint(CLI::App& app);
void add_data(CLI::App& app);
void add_export(CLI::App& app);
void add_init(CLI::App& app);
void add_monitor(CLI::App& app);
/// `of_config` plans what a configuration says; where it is null, the verb has no --config.
void add_plan(CLI::App& app, PlanOfConfig of_config);
void add_trace(CLI::App& app);
#ifdef DISTCA_WITH_TORCH
void add_generate(CLI::App& app);
void add_profile(CLI::App& app);
void add_train(CLI::App& app, int* exit_code);
void add_verify(CLI::App& app);
#endif

}  // namespace distca::cli
