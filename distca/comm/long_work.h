#pragma once
// Work of single ranks that may take longer than ranks may wait for each other, such as that with
// files on a busy disk. The ranks meet every few seconds meanwhile, so comm.timeout_s finds a rank
// that is lost or stopped, and does not limit the work.
//
//     do_on_rank_0(comm, config.comm.timeout_s, "taking train.output_dir", take_folder);
//
// Thread rule: as the communicator's. All ranks make the same calls.

#include <chrono>
#include <functional>
#include <string_view>

#include "distca/comm/communicator.h"

namespace distca {

/// Returns -1 once `is_done` has been true on all ranks or, if that takes longer than `limit_s`,
/// the first rank that is not done; all ranks get the same. `is_done` waits for this rank's work as
/// long as it is told, at most, and says whether the work is done. `timeout_s` is that of the
/// group. Without a limit, rank 0 says after a minute, and then ever less often, who is awaited.
int await_long_work(Communicator& comm, double timeout_s, std::string_view operation,
                    double limit_s,
                    const std::function<bool(std::chrono::duration<double>)>& is_done);

/// Runs the `work` of each rank that has some, on a thread of its own, and returns when all of it
/// is done. If it fails, all ranks throw the Error of the first rank whose work has failed, which
/// is named unless it is rank 0. What is no Error is thrown where it happened alone.
void do_long_work(Communicator& comm, double timeout_s, std::string_view operation,
                  const std::function<void()>& work);
/// Likewise, of rank 0's work alone.
void do_on_rank_0(Communicator& comm, double timeout_s, std::string_view operation,
                  const std::function<void()>& work);

}  // namespace distca
