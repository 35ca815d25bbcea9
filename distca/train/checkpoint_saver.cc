#include "distca/train/checkpoint_saver.h"

#include <ATen/ATen.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "distca/base/clock.h"
#include "distca/base/console.h"
#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/reader.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/collectives.h"
#include "distca/comm/host_read.h"
#include "distca/model/weights_file.h"
#include "distca/train/run_folder.h"
#include "distca/train/stage_weights.h"
#include "distca/train/step.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHashes = "hashes";  // key of a file's metadata: of its pieces, in order
constexpr int kHashDigits = 16;
constexpr int kNiceness = 10;  // of the thread that writes

std::string file_of(int rank) { return fmt::format("rank_{}.safetensors", rank); }

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()),
          static_cast<size_t>(tensor.nbytes())};
}

template <typename T>
bool all_finite(const at::Tensor& flat) {
  const std::span values(flat.const_data_ptr<T>(), static_cast<size_t>(flat.numel()));
  bool all = true;
  for (const T value : values) all &= std::isfinite(value);
  return all;
}

/// Of fp32 or fp64, in this thread alone, for which PyTorch would start others.
bool is_finite(const at::Tensor& flat) {
  return flat.scalar_type() == at::kDouble ? all_finite<double>(flat) : all_finite<float>(flat);
}

/// Writes one rank's file. `sources`: the elements of each piece, flat and contiguous.
void write_pieces(const fs::path& path, const CheckpointIndex& index,
                  const std::vector<StoredPiece>& pieces, const std::vector<at::Tensor>& sources) {
  std::vector<StoredTensor> stored;
  std::string hashes;
  std::vector<at::Tensor> hosts;
  for (size_t i = 0; i < pieces.size(); ++i) {
    stored.push_back(stored_tensor(index, pieces[i]));
    hosts.push_back(host_copy(sources[i]));
    DISTCA_THROW_IF(pieces[i].part == StatePart::kWeight && !is_finite(hosts.back()),
                    ErrorKind::kTraining, "weights of {} are not finite",
                    index.tensors[pieces[i].tensor].name);
    hashes += fmt::format("{:016x}", hash_words(bytes_of(hosts.back())));
  }
  const SafetensorsMetadata metadata = {{kHashes, hashes}};
  AtomicFile file(path);
  file.reserve(safetensors_bytes(stored, metadata));
  file.write(safetensors_header(stored, metadata));
  for (const at::Tensor& host : hosts) file.write(bytes_of(host));
  file.commit();
}

/// What one rank writes.
struct Owned {
  std::vector<StoredPiece> pieces;  // of the tensors of the whole model
  std::vector<size_t> weights;      // [piece] its weight among those of the rank's stage
};

/// Who writes what.
struct Owners {
  LlamaConfig model;
  StepOptions options;
  RunGrid run;

  /// Of the weights that the rank's stage keeps: even shares of its replicas or, under ZeRO-1, what
  /// the rank has and nobody else.
  Owned of(int rank) const;
};

Owned Owners::of(int rank) const {
  const Stage stage = run.stage_of(rank);
  const std::vector<StoredTensor> held = stored_weights(model, stage);
  const FlatLayout layout = flat_layout(weight_table(model, stage));
  std::vector<StoredTensor> tensors;
  std::vector<int64_t> begins;
  // Replicas of the last stage own slices of a tied embedding, too.
  std::vector<KeptWeight> weights = held_weights(model, stage);
  if (!options.distributed_optimizer) {
    const std::vector<Weight> table = weight_table(model, stage);
    std::erase_if(weights, [&](const KeptWeight& w) { return table[w.in_stage].is_copy(); });
  }
  for (const KeptWeight& weight : weights) {
    tensors.push_back(held[weight.in_stage]);
    begins.push_back(layout.begins[weight.in_stage]);
  }
  Owned owned;
  if (options.distributed_optimizer) {
    for (const Range& slice : gradient_slices(model, options, stage, rank, run.grid.replicas))
      add_pieces(tensors, begins, slice, file_of(rank), owned.pieces);
  } else {
    owned.pieces = owned_pieces(tensors, run.grid.replica(rank), run.grid.replicas, file_of(rank));
  }
  for (StoredPiece& piece : owned.pieces) {
    const KeptWeight& weight = weights[piece.tensor];
    piece.tensor = static_cast<int64_t>(weight.in_model);
    owned.weights.push_back(weight.in_stage);
  }
  return owned;
}

Owners owners(const Config& config, const RunGrid& run) {
  return {.model = config.model, .options = step_options(config), .run = run};
}

/// Adds the pieces of one rank's file to the index, with what the file says about them.
void add_file(const fs::path& folder, int owner, const Owners& owners, CheckpointIndex& index) {
  const std::string name = file_of(owner);
  const std::vector<StoredPiece> pieces = owners.of(owner).pieces;
  if (pieces.empty()) return;
  const SafetensorsFile file(folder / name);
  const std::string& hashes = file.metadata().at(kHashes);
  DISTCA_CHECK_EQ(hashes.size(), pieces.size() * kHashDigits);
  for (size_t i = 0; i < pieces.size(); ++i) {
    index.pieces.push_back(pieces[i]);
    index.pieces.back().hash =
        std::stoull(hashes.substr(i * kHashDigits, kHashDigits), nullptr, kHashDigits);
  }
  index.files[name] = file.size();
}

/// Runs `work` on a thread of its own, which is given the processor after others; gives "" or why
/// it failed. Nothing waits for the thread unless it is asked to: where a disk hangs, the process
/// must still be able to say so and to end.
template <typename Work>
std::future<std::string> in_background(Work work) {
  std::packaged_task<std::string()> task([work = std::move(work)]() mutable -> std::string {
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceness);
    try {
      work();
      return "";
    } catch (const Error& error) {
      return error.what();
    } catch (const std::exception& error) {
      return first_line(error);
    }
  });
  std::future<std::string> result = task.get_future();
  std::thread(std::move(task)).detach();
  return result;
}

bool is_ready(const std::future<std::string>& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void say_failed(int64_t step, const std::string& why) {
  standard_error().line(
      fmt::format("warning: step {}: its checkpoint is not saved: {}", step, why));
}

/// Whether every worker sees a file that rank 0 makes in the folder for that purpose.
bool all_see(const fs::path& run, const std::string& run_id, Communicator& comm, int num_workers) {
  constexpr const char* kOperation = "looking for train.output_dir";
  const fs::path probe = run / fmt::format("{}{}.tmp", kSeenFile, run_id);
  if (comm.rank() == 0) write_file_atomically(probe, "");
  barrier(comm, kOperation);
  std::error_code ignored;
  const std::vector<uint8_t> seen =
      all_gather(comm, uint8_t(fs::exists(probe, ignored)), kOperation);
  if (comm.rank() == 0) fs::remove(probe, ignored);
  return std::all_of(seen.begin(), seen.begin() + num_workers, [](uint8_t s) { return s == 1; });
}

/// Throws if rank 0 cannot write the state of all workers, since others have parts of it alone.
void check_one_has_all(const Config& config, const fs::path& run) {
  const int64_t stages = config.parallel.pipeline_model_parallel_size;
  if (stages == 1 && !config.parallel.use_distributed_optimizer) return;
  throw Error(ErrorKind::kConfig,
              "{} needs a train.output_dir that all workers see: each saves its own part, and some "
              "do not see {}",
              stages > 1 ? fmt::format("parallel.pipeline_model_parallel_size = {}", stages)
                         : "parallel.use_distributed_optimizer",
              run.string());
}

}  // namespace

CheckpointSaver::CheckpointSaver(const Config& config, RunFacts facts, std::string run_id,
                                 int64_t own_checkpoint, Communicator& comm, const RunGrid& run)
    : config_(config),
      facts_(std::move(facts)),
      run_id_(std::move(run_id)),
      comm_(comm),
      run_(config.train.output_dir),
      writers_(run) {
  figures_.last_complete = own_checkpoint;
  if (!config.ranks_are_threads() && !all_see(run_, run_id_, comm, run.grid.num_workers())) {
    check_one_has_all(config, run_);
    writers_.grid.replicas = 1;
  }
  if (!config.checkpoint.async || config.checkpoint.every_steps == 0 || !writes()) return;
  // Filled, so that the first save does not wait for its pages.
  int64_t elements = 0;
  for (const StoredPiece& piece : owners(config, writers_).of(comm.rank()).pieces)
    elements += piece.range.size();
  const ScalarType type = stored_weights(config.model)[0].type;
  copy_ = std::make_unique<at::Tensor>(at::zeros({elements}, aten_type(type)));
  figures_.copy_bytes = static_cast<int64_t>(copy_->nbytes());
}

CheckpointSaver::~CheckpointSaver() {
  for (const std::future<std::string>* const work : {&writing_, &completing_}) {
    if (work->valid() && !hangs_) work->wait_for(grace());
  }
}

std::chrono::duration<double> CheckpointSaver::grace() const {
  return std::chrono::duration<double>(config_.checkpoint.grace_s);
}

bool CheckpointSaver::is_due(int64_t step) const {
  const int64_t every = config_.checkpoint.every_steps;
  return every > 0 && (step % every == 0 || step == config_.train.steps);
}

void CheckpointSaver::begin(int64_t step, Json trainer, Optimizer* optimizer, bool beside,
                            bool before_bad_step) {
  const Stopwatch watch;
  wait_for_all();
  // Nobody touches the next checkpoint before rank 0 has completed this one: so a run that has
  // completed one always has one.
  if (has_begun_) barrier(comm_, "the end of the save before");
  has_begun_ = true;
  said_failed_ = false;
  before_bad_step_ = before_bad_step;
  removes_older_ = !before_bad_step;
  head_ = {.step = step,
           .updates = optimizer ? optimizer->updates() : 0,
           .run_id = run_id_,
           .config = facts_.config,
           .machine = facts_.machine,
           .data = facts_.data,
           .trainer = std::move(trainer),
           .hugging_face = config_.model.to_hugging_face(config_.batch.max_document_tokens),
           .tensors = stored_weights(config_.model)};
  if (optimizer && writes()) start_writing(*optimizer, beside);
  figures_.held_up_s += watch.seconds();
}

CheckpointFigures CheckpointSaver::figures() {
  const CheckpointFigures figures = figures_;
  figures_.held_up_s = 0;
  return figures;
}

void CheckpointSaver::start_writing(Optimizer& optimizer, bool beside) {
  const std::string name = file_of(comm_.rank());
  auto [pieces, weights] = owners(config_, writers_).of(comm_.rank());
  if (pieces.empty()) return;
  std::vector<at::Tensor> sources;
  for (size_t i = 0; i < pieces.size(); ++i)
    sources.push_back(optimizer.state(pieces[i].part, weights[i], pieces[i].range));
  if (beside) {
    int64_t begin = 0;
    for (at::Tensor& source : sources) {
      const at::Tensor place = copy_->narrow(0, begin, source.numel());
      begin += source.numel();
      read_to(place, source);
      source = place;
    }
  }
  writing_ = in_background([path = unfinished_checkpoint(run_, head_.step) / name, index = head_,
                            pieces = std::move(pieces), sources = std::move(sources)] {
    write_pieces(path, index, pieces, sources);
  });
}

SaveReport CheckpointSaver::report() {
  using State = SaveReport::State;
  look_at_completion(/*wait=*/false);
  if (!under_way()) return {State::kNothing};
  if (!writing_.valid()) return {said_failed_ ? State::kFailed : State::kWritten};
  if (!is_ready(writing_)) return {State::kWriting};
  const std::string why = writing_.get();
  if (why.empty()) return {State::kWritten};
  said_failed_ = true;
  say_failed(head_.step, why);
  return {State::kFailed};
}

void CheckpointSaver::heard(const std::vector<SaveReport>& all) {
  using State = SaveReport::State;
  if (!under_way()) return;
  const auto any = [&](State state) {
    return std::ranges::any_of(all, [&](const SaveReport& r) { return r.state == state; });
  };
  if (any(State::kWriting)) return;
  if (any(State::kFailed)) {
    ++figures_.num_failed;
    if (comm_.rank() == 0) {
      // What cannot be removed now is removed by the next start.
      in_background([run = run_] { remove_unfinished_checkpoints(run); }).wait_for(grace());
    }
  } else if (comm_.rank() == 0) {
    start_completing();
  }
  head_ = {};
}

void CheckpointSaver::start_completing() {
  completing_step_ = head_.step;
  completing_ = in_background([run = run_, index = head_, owners = owners(config_, writers_),
                               keep = config_.checkpoint, marks = before_bad_step_,
                               removes = removes_older_]() mutable {
    for (int owner = 0; owner < owners.run.grid.num_workers(); ++owner)
      add_file(unfinished_checkpoint(run, index.step), owner, owners, index);
    if (marks) mark_bad_step(run, index.step);
    complete_checkpoint(run, index);
    if (!removes) return;
    try {
      remove_set_aside(run);
      remove_old_checkpoints(run, keep.keep_last, keep.keep_every);
    } catch (const Error& error) {  // the new one is complete all the same
      standard_error().line(
          fmt::format("warning: step {}: its checkpoint is saved, but an older one stays: {}",
                      index.step, error.what()));
    }
  });
}

void CheckpointSaver::look_at_completion(bool wait) {
  if (!completing_.valid() || (!wait && !is_ready(completing_))) return;
  if (completing_.wait_for(grace()) != std::future_status::ready)
    throw too_slow(completing_step_, "rank 0 did not complete the checkpoint");
  const std::string why = completing_.get();
  if (why.empty()) {
    figures_.last_complete = completing_step_;
    return;
  }
  ++figures_.num_failed;
  say_failed(completing_step_, why);
}

Error CheckpointSaver::too_slow(int64_t step, const std::string& what) {
  hangs_ = true;
  return Error(ErrorKind::kIo, "step {}: {} within checkpoint.grace_s = {:g} s", step, what,
               config_.checkpoint.grace_s);
}

bool CheckpointSaver::finish() {
  const Stopwatch watch;
  const bool succeeded = wait_for_all();
  figures_.held_up_s += watch.seconds();
  return succeeded;
}

bool CheckpointSaver::wait_for_all() {
  const int64_t failed = figures_.num_failed;
  const double slice_s = std::min(5.0, config_.comm.timeout_s / 4);
  const Stopwatch watch;
  while (under_way()) {
    if (writing_.valid()) writing_.wait_for(std::chrono::duration<double>(slice_s));
    const std::vector<SaveReport> all = all_gather(comm_, report(), "saving a checkpoint");
    for (int rank = 0; rank < comm_.size() && watch.seconds() > grace().count(); ++rank) {
      if (all[rank].state == SaveReport::State::kWriting)
        throw too_slow(head_.step,
                       fmt::format("rank {} did not write its part of the checkpoint", rank));
    }
    heard(all);
  }
  look_at_completion(/*wait=*/true);
  return figures_.num_failed == failed;
}

void load_checkpoint(const CheckpointReader& reader, const LlamaConfig& model, const Stage& stage,
                     Optimizer& optimizer) {
  const std::vector<StoredTensor>& stored = reader.index().tensors;
  const std::vector<StoredTensor> wanted = stored_weights(model, stage);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto found = std::ranges::find(stored, wanted[i].name, &StoredTensor::name);
    DISTCA_THROW_IF(
        found == stored.end() || found->shape != wanted[i].shape || found->type != wanted[i].type,
        ErrorKind::kCheckpoint, "{}: it has no {} of the shape and type that this model has",
        reader.folder().string(), wanted[i].name);
    const at::Tensor host = at::empty(wanted[i].shape, aten_type(wanted[i].type));
    for (const StatePart part : kStateParts) {
      reader.read(found - stored.begin(), part,
                  {static_cast<std::byte*>(host.data_ptr()), static_cast<size_t>(host.nbytes())});
      optimizer.load(part, i, host);
    }
  }
  optimizer.set_updates(reader.index().updates);
}

}  // namespace distca
