#pragma once
// Prints a measured profile for people: rates over the grid, their share of the peak, and how well
// the grid predicts tasks that are not on it.

#include <span>

#include "cli/profile_measure.h"

namespace distca::cli {

/// `checked` are tasks_to_check, measured.
void print_profile(const ProfileArguments& arguments, const AttentionProfile& profile,
                   std::span<const MeasuredTask> checked);

}  // namespace distca::cli
