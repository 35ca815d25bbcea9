#pragma once
// Going on from a checkpoint: which one, what must be as it was, and what may differ
// (docs/checkpoints.md lists the keys).
//
//     const auto checkpoint = choose_checkpoint({.kind = ResumeRequest::Kind::kNewest}, config,
//                                               this_launch(), /*warns=*/true);  // on rank 0
//     const auto reader = open_checkpoint(comm, config, checkpoint);             // on all ranks
//     for (const std::string& line : check_resume(reader->index(), now)) say(line);
//
// Thread rule: any thread may call these functions.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "distca/base/error.h"
#include "distca/checkpoint/index.h"
#include "distca/checkpoint/reader.h"
#include "distca/comm/communicator.h"
#include "distca/config/config.h"
#include "distca/train/same_config.h"

namespace distca {

/// The user's choice of a checkpoint, as --resume gives it.
struct ResumeRequest {
  enum class Kind : uint8_t {
    kNo,      // a new run
    kNewest,  // the newest checkpoint of train.output_dir
    kIfAny,   // likewise, or a new run if there is none
    kPath,    // a checkpoint, or the newest of a run
  } kind = Kind::kNo;
  std::filesystem::path path = {};
};

/// One start of a run, which a launcher may repeat after a failure.
struct Launch {
  std::string run_id;  // DISTCA_RUN_ID; "" if the launcher gives none
  int restart = 0;     // DISTCA_RESTART: how often the launcher has started the run again
};
/// Reads the environment.
Launch this_launch();

/// The checkpoint to go on from; nothing for a new run. After a restart, it is the newest one that
/// this launch has written, if there is one. Otherwise it is what the user asks for. Of a run's
/// own checkpoints, only those before `before_step` are looked at. A newest one whose index or
/// files are not right is passed over, with a warning if `warns`, for the one before it; one that
/// the user has named is not. What the files hold is not read: the ranks do that together. Throws
/// Error(kCheckpoint) if there is none.
std::optional<std::filesystem::path> choose_checkpoint(
    const ResumeRequest& request, const Config& config, const Launch& launch, bool warns,
    int64_t before_step = std::numeric_limits<int64_t>::max());

/// Opens, on every rank, the checkpoint that rank 0 has chosen; null if that is none. What
/// `chosen` is on other ranks does not matter. A rank that does not see the folder at once keeps
/// looking (late_folder_s). All ranks call it together. Throws Error(kCheckpoint) on all ranks.
std::unique_ptr<CheckpointReader> open_checkpoint(
    Communicator& comm, const Config& config, const std::optional<std::filesystem::path>& chosen);

/// The error of a checkpoint whose files do not hold what its index says, or cannot be read. All
/// ranks throw it alike.
struct DamagedCheckpoint : Error {
  DamagedCheckpoint(const CheckpointReader& reader, const Error& why)
      : Error(why), folder(reader.folder()), step(reader.index().step) {}
  std::filesystem::path folder;
  int64_t step;
};

/// Returns, on rank 0, the checkpoint to go on from in place of a damaged one, or nothing for a new
/// run; nothing on other ranks. `older` chooses it from the step of the damaged one. Warns that the
/// damaged one is passed over. All ranks call it together. Throws `damage` on all ranks if `older`
/// is null on rank 0 or gives the same checkpoint.
std::optional<std::filesystem::path> choose_older(
    Communicator& comm, const Config& config,
    const std::function<std::optional<std::filesystem::path>(int64_t)>& older,
    const DamagedCheckpoint& damage);

/// For how many seconds a rank looks for what another machine has made in train.output_dir: as long
/// as a client of NFS may believe that nothing is there, and no longer than ranks may take to meet.
double late_folder_s(const Config& config);

/// Every key of a configuration as text, by name.
std::map<std::string, std::string> config_texts(const Config& config);

/// The id of the run's launch, which all ranks agree on: rank 0's, or a new one if that is "". All
/// ranks call it together.
std::string agreed_run_id(Communicator& comm, const std::string& mine);

/// The facts that a run would record about itself now.
struct RunFacts {
  std::map<std::string, std::string> config;  // config_texts
  /// Everything else that decides the bits of a step, by name: versions, kernels, numbers of ranks.
  std::map<std::string, std::string> machine;
  std::string data;  // DataBlend::summary
};

/// The values that a rank compares with the other ranks: the kernel that it chose, the contents of
/// its data set, and the checkpoint that it goes on from. `checkpoint` is null in a new run.
ResolvedConfig resolved_config(const Config& config, const std::string& kernel,
                               const std::string& data, bool on_device,
                               const CheckpointReader* checkpoint);
RunFacts run_facts(const Config& config, const ResolvedConfig& resolved, int num_workers);

/// Throws Error(kConfig), naming the key, if a run may not go on from this checkpoint. Otherwise
/// returns lines for people: which keys have changed what is trained, and whether the run goes on
/// bit for bit or, if not, why not.
std::vector<std::string> check_resume(const CheckpointIndex& index, const RunFacts& now);

}  // namespace distca
