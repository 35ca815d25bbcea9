#pragma once
// Going on from a checkpoint: which one, what must be as it was, and what may differ
// (docs/checkpoints.md lists the keys).
//
//     const auto checkpoint = choose_checkpoint({.kind = ResumeRequest::Kind::kNewest}, config,
//                                               this_launch(), /*warns=*/true);
//     const CheckpointReader reader(*checkpoint);
//     for (const std::string& line : check_resume(reader.index(), now)) say(line);
//
// Thread rule: any thread may call these functions.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "distca/checkpoint/index.h"
#include "distca/comm/communicator.h"
#include "distca/train/config.h"
#include "distca/train/same_config.h"

namespace distca {

/// What the user asks for with --resume.
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
/// this launch has written, if there is one. Otherwise it is what the user asks for. A newest
/// checkpoint that is damaged is passed over, with a warning if `warns`, for the one before it; one
/// that the user has named is not. Throws Error(kCheckpoint) if there is none.
std::optional<std::filesystem::path> choose_checkpoint(const ResumeRequest& request,
                                                       const Config& config, const Launch& launch,
                                                       bool warns);

/// Whether a checkpoint lies in the folder of the run that is about to start.
bool is_own_checkpoint(const std::filesystem::path& checkpoint, const Config& config);

/// Every key of a configuration as text, by name.
std::map<std::string, std::string> config_texts(const Config& config);
/// What else decides the bits of a step: versions, kernels, numbers of ranks.
std::map<std::string, std::string> machine_texts(const Config& config,
                                                 const ResolvedConfig& resolved, int num_workers);

/// The id of the run's launch, which all ranks agree on: rank 0's, or a new one if that is "". All
/// ranks call it together.
std::string agreed_run_id(Communicator& comm, const std::string& mine);
/// "step 100 of run 0123456789abcdef, 0123456789abcdef": the same wherever the checkpoint lies.
std::string checkpoint_words(const CheckpointIndex& index);

/// What a run would record about itself now.
struct RunFacts {
  std::map<std::string, std::string> config;   // config_texts
  std::map<std::string, std::string> machine;  // machine_texts
  std::string data;                            // DataBlend::summary
};

/// Throws Error(kConfig), naming the key, if a run may not go on from this checkpoint. Otherwise
/// returns lines for people: which keys have changed what is trained, and whether the run goes on
/// bit for bit or, if not, why not.
std::vector<std::string> check_resume(const CheckpointIndex& index, const RunFacts& now);

}  // namespace distca
