#include <ATen/ATen.h>

#include "distca/train/last_save.h"

#include <algorithm>
#include <optional>

#include "distca/base/error.h"
#include "distca/checkpoint/folder.h"
#include "distca/comm/collectives.h"
#include "distca/comm/long_work.h"
#include "distca/train/same_weights.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

/// Returns true if this run's folder has the state after `step`. Rank 0's answer holds for all
/// ranks.
bool is_saved(int64_t step, CheckpointSaver& saver, Communicator& comm) {
  return all_gather(comm, saver.last_complete(), "looking for the checkpoint")[0] == step;
}

/// The newest checkpoint before that state that no bad step has marked, of this run's folder or
/// else of the run that it went on from, as rank 0 sees it; "" if there is none.
std::string older(const LastState& last, const Config& config, Communicator& comm) {
  std::optional<CheckpointPlace> found;
  do_on_rank_0(comm, config.comm.timeout_s, "looking for a checkpoint", [&] {
    found = newest_good(config.train.output_dir, last.step - 1);
    const fs::path folder = last.goes_on_from.parent_path();
    if (!found && folder.filename() == "checkpoints")
      found = newest_good(folder.parent_path(), last.step - 1);
  });
  return all_gather_texts(comm, found ? found->folder.string() : "", "looking for a checkpoint")[0];
}

/// Saves the state if it is finite and not saved yet. Returns words that say so, or why not.
std::string save(const LastState& last, CheckpointSaver& saver, Communicator& comm) {
  const uint8_t mine = num_not_finite(last.weights) == 0;
  if (std::ranges::count(all_gather(comm, mine, "looking at the weights"), 0) > 0)
    return "; the weights are not finite either and are not saved";
  saver.keep_older();
  saver.finish();  // perhaps it is being saved already
  if (!is_saved(last.step, saver, comm)) {
    last.begin_save();
    saver.keep_older();
    saver.finish();
  }
  if (!is_saved(last.step, saver, comm))
    return fmt::format("; the state after step {} could not be saved", last.step);
  return fmt::format("; the state after step {} is saved, --resume goes on from it", last.step);
}

}  // namespace

std::string save_last_state(const LastState& last, const Config& config, CheckpointSaver& saver,
                            Communicator& comm) {
  if (last.step == 0) return "";
  const std::string saved = save(last, saver, comm);
  if (!last.before_bad_step) return saved;
  const std::string before = older(last, config, comm);
  if (last.all_bad) {
    return before.empty() ? "; there is no older checkpoint to go on from"
                          : fmt::format("; --resume {} goes on from an older one", before);
  }
  return before.empty()
             ? saved
             : fmt::format("{}; if that fails at once, --resume {} goes on from the one before",
                           saved, before);
}

std::string stopped_early(const Config& config, const std::string& by, int64_t step, bool saved) {
  const std::string begin =
      fmt::format("stopped by {} after step {} of {}", by, step, config.train.steps);
  DISTCA_THROW_IF(!saved, ErrorKind::kIo, "{}, and its checkpoint could not be saved", begin);
  return fmt::format("{}; saved, resume with the same command and --resume ({}/checkpoints)", begin,
                     config.train.output_dir);
}

}  // namespace distca
