#include "distca/train/checkpoint_saver.h"

#include <ATen/ATen.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <thread>
#include <utility>

#include "distca/base/console.h"
#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/checkpoint/folder.h"
#include "distca/checkpoint/reader.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/collectives.h"
#include "distca/comm/host_read.h"
#include "distca/comm/long_work.h"
#include "distca/model/weights_file.h"
#include "distca/report/run_folder.h"
#include "distca/train/stage_weights.h"
#include "distca/train/step.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHashes = "hashes";  // metadata key: hashes of a file's pieces, in order
constexpr int kHashDigits = 16;
constexpr int kNiceness = 10;  // Linux's niceness of the thread that writes

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

/// Returns true if all elements, fp32 or fp64, are finite. It computes in this thread alone, where
/// PyTorch's operators would start others.
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

/// The pieces that one rank writes.
struct Owned {
  std::vector<StoredPiece> pieces;  // their tensors are numbered in the whole model
  std::vector<size_t> weights;      // [piece] its weight among those of the rank's stage
};

/// Returns the rank's pieces of the weights that its stage keeps: an even share, as each replica of
/// the stage has, or, under ZeRO-1, what this rank alone has.
Owned owned_by(const Config& config, const RunGrid& run, int rank) {
  const LlamaConfig& model = config.model;
  const StepOptions options = step_options(config);
  const Stage stage = run.stage_of(rank);
  const int server = run.server_of(rank);
  const std::vector<Weight> table = weight_table(model, stage);
  const FlatLayout layout = flat_layout(table);
  std::vector<StoredTensor> tensors;
  std::vector<int64_t> begins;
  // Under ZeRO-1, replicas of the last stage own slices of a tied embedding, too.
  const std::vector<KeptWeight> weights =
      options.distributed_optimizer ? kept_slices(model, stage) : kept_weights(model, stage);
  for (const KeptWeight& weight : weights) {
    tensors.push_back({.shape = table[weight.in_stage].held_shape()});
    begins.push_back(layout.begins[weight.in_stage]);
  }
  Owned owned;
  if (options.distributed_optimizer) {
    for (const Range& slice : gradient_slices(model, options, stage, rank, run.grid.replicas))
      add_pieces(tensors, begins, slice, file_of(rank), owned.pieces);
  } else {
    owned.pieces =
        owned_pieces(tensors, run.grid.replica(server), run.grid.replicas, file_of(rank));
  }
  for (StoredPiece& piece : owned.pieces) {
    const KeptWeight& weight = weights[piece.tensor];
    piece.tensor = static_cast<int64_t>(weight.in_model);
    piece.box = table[weight.in_stage].box;
    owned.weights.push_back(weight.in_stage);
  }
  return owned;
}

/// Adds the pieces of one rank's file, `name`, to the index, with what the file says about them.
void add_file(const fs::path& folder, const std::string& name,
              const std::vector<StoredPiece>& pieces, CheckpointIndex& index) {
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

/// Returns true if every worker sees a file that rank 0 makes in the folder for that purpose.
/// Workers that do not see it at once keep looking for a while.
bool all_see(const Config& config, const std::string& run_id, Communicator& comm, int num_workers) {
  constexpr const char* kOperation = "looking for train.output_dir";
  const fs::path probe =
      fs::path(config.train.output_dir) / fmt::format("{}{}.tmp", kSeenFile, run_id);
  const double timeout_s = config.comm.timeout_s;
  do_on_rank_0(comm, timeout_s, kOperation, [&] { make_new_file(probe); });
  bool sees = true;
  do_long_work(comm, timeout_s, kOperation, [&] {
    if (comm.rank() < num_workers) sees = appears(probe, late_folder_s(config));
  });
  const std::vector<uint8_t> seen = all_gather(comm, uint8_t(sees), kOperation);
  std::error_code ignored;
  if (comm.rank() == 0) fs::remove(probe, ignored);
  return std::ranges::count(seen, 1) == comm.size();
}

/// Throws if rank 0 cannot write the state of all workers, since others have parts of it alone;
/// says it if it can.
void check_one_has_all(const Config& config, const RunGrid& run, bool speaks) {
  const std::string& folder = config.train.output_dir;
  if (!run.divides_model() && !config.parallel.use_distributed_optimizer) {
    if (speaks)
      standard_error().line(fmt::format(
          "warning: some workers do not see {}: rank 0 writes all of each checkpoint", folder));
    return;
  }
  throw Error(ErrorKind::kConfig,
              "{} needs a train.output_dir that all workers see: each saves its own part, and some "
              "do not see {}",
              run.is_pipeline()
                  ? fmt::format("parallel.pipeline_model_parallel_size = {}", run.grid.stages)
              : run.tensor > 1 ? fmt::format("parallel.tensor_model_parallel_size = {}", run.tensor)
                               : "parallel.use_distributed_optimizer",
              folder);
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
  if (!config.ranks_are_threads() && !all_see(config, run_id_, comm, run.num_workers())) {
    check_one_has_all(config, run, comm.rank() == 0);
    writers_.grid.replicas = 1;
  }
  if (!config.checkpoint.async || config.checkpoint.every_steps == 0 || !writes()) return;
  // Filled, so that the first save does not wait for its pages.
  int64_t elements = 0;
  for (const StoredPiece& piece : owned_by(config, writers_, comm.rank()).pieces)
    elements += piece.range.size();
  const ScalarType type = stored_weights(config.model)[0].type;
  copy_ = std::make_unique<at::Tensor>(at::zeros({elements}, aten_type(type)));
  figures_.copy_bytes = static_cast<int64_t>(copy_->nbytes());
}

CheckpointSaver::~CheckpointSaver() {
  for (const std::future<std::string>* const work : {&writing_, &completing_, &removing_}) {
    const bool needs_it = work != &removing_ || std::uncaught_exceptions() == 0;
    if (work->valid() && !hangs_ && needs_it) work->wait_for(grace());
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
  // Nobody touches the next checkpoint before rank 0 has completed this one: so a run that has
  // completed one always has one.
  finish();
  since_begin_.restart();
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
  figures_.held_up_s += since_begin_.seconds();
}

CheckpointFigures CheckpointSaver::figures() {
  const CheckpointFigures figures = figures_;
  figures_.held_up_s = 0;
  return figures;
}

void CheckpointSaver::start_writing(Optimizer& optimizer, bool beside) {
  const std::string name = file_of(comm_.rank());
  auto [pieces, weights] = owned_by(config_, writers_, comm_.rank());
  if (pieces.empty()) return;
  std::vector<at::Tensor> sources;
  int64_t begin = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    sources.push_back(optimizer.state(pieces[i].part, weights[i], pieces[i].range));
    if (!beside) continue;
    const at::Tensor place = copy_->narrow(0, begin, sources[i].numel());
    read_to(place, sources[i]);
    sources[i] = place;
    begin += place.numel();
  }
  writing_ = in_background([path = unfinished_checkpoint(run_, head_.step) / name, index = head_,
                            pieces = std::move(pieces), sources = std::move(sources)] {
    write_pieces(path, index, pieces, sources);
  });
}

SaveReport CheckpointSaver::report() {
  look_at_completion();
  if (writing_.valid() && !is_ready(writing_)) return SaveReport::kWriting;
  if (const std::string why = writing_.valid() ? writing_.get() : ""; !why.empty()) {
    said_failed_ = true;
    say_failed(head_.step, why);
  }
  return said_failed_ ? SaveReport::kFailed : SaveReport::kWritten;
}

void CheckpointSaver::on_reports(const std::vector<SaveReport>& all) {
  if (!under_way() || std::ranges::count(all, SaveReport::kWriting) > 0) return;
  gives_up_ = std::ranges::count(all, SaveReport::kFailed) > 0;
  if (gives_up_) ++figures_.num_failed;
  completing_step_ = head_.step;
  if (comm_.rank() == 0) start_ending();
  head_ = {};
}

void CheckpointSaver::start_ending() {
  completing_ = in_background([run = run_, index = head_, config = config_, writers = writers_,
                               marks = before_bad_step_, gives_up = gives_up_]() mutable {
    if (gives_up) return give_up_checkpoint(run, index.step);
    for (int rank = 0; rank < writers.num_workers(); ++rank)
      add_file(unfinished_checkpoint(run, index.step), file_of(rank),
               owned_by(config, writers, rank).pieces, index);
    if (marks) mark_bad_step(run, index.step);
    complete_checkpoint(run, index);
  });
}

void CheckpointSaver::look_at_completion() {
  if (!completing_.valid() || !is_ready(completing_)) return;
  const std::string why = completing_.get();
  // The next start removes what cannot be removed now.
  if (gives_up_) return remove([run = run_] { remove_given_up(run); });
  if (!why.empty()) {
    ++figures_.num_failed;
    return say_failed(completing_step_, why);
  }
  figures_.last_complete = completing_step_;
  last_save_s_ = since_begin_.seconds();
  removes_before_ = removes_older_ ? completing_step_ : 0;
  remove_older();
}

void CheckpointSaver::remove_older() {
  if (removes_before_ == 0 || removes_before_ > good_until_) return;
  remove([run = run_, step = std::exchange(removes_before_, 0), keep = config_.checkpoint] {
    try {
      remove_set_aside(run);
      remove_old_checkpoints(run, step, keep.keep_last, keep.keep_every);
    } catch (const Error& error) {  // the new one is complete all the same
      standard_error().line(
          fmt::format("warning: step {}: its checkpoint is saved, but an older one stays: {}", step,
                      error.what()));
    }
  });
}

/// One removal after another. Training waits for none.
void CheckpointSaver::remove(std::function<void()> work) {
  removing_ = in_background([before = std::move(removing_), work = std::move(work)]() mutable {
    if (before.valid()) before.wait();
    work();
  });
}

Error CheckpointSaver::too_slow(int64_t step, const std::string& what) {
  hangs_ = true;
  return Error(ErrorKind::kIo, "step {}: {} within checkpoint.grace_s = {:g} s", step, what,
               config_.checkpoint.grace_s);
}

bool CheckpointSaver::finish() {
  const Stopwatch watch;
  constexpr const char* kOperation = "saving a checkpoint";
  const int64_t failed = figures_.num_failed;
  // Returns the first rank whose work is not done in time, or -1 if there is none.
  const auto wait = [&](const std::future<std::string>& work) {
    return await_long_work(comm_, config_.comm.timeout_s, kOperation, config_.checkpoint.grace_s,
                           [&](std::chrono::duration<double> most) {
                             return !work.valid() ||
                                    work.wait_for(most) == std::future_status::ready;
                           });
  };
  if (under_way()) {
    const int64_t step = head_.step;
    if (const int rank = wait(writing_); rank >= 0)
      throw too_slow(step, fmt::format("rank {} did not write its part of the checkpoint", rank));
    on_reports(all_gather(comm_, report(), kOperation));
  }
  if (wait(completing_) >= 0)
    throw too_slow(completing_step_, "rank 0 did not complete the checkpoint");
  look_at_completion();
  figures_.held_up_s += watch.seconds();
  return figures_.num_failed == failed;
}

void load_checkpoint(const CheckpointReader& reader, const LlamaConfig& model, const Stage& stage,
                     Optimizer& optimizer) {
  const std::vector<StoredTensor> wanted = stored_weights(model, stage);
  const std::vector<Weight> table = weight_table(model, stage);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int64_t tensor = reader.find(wanted[i]);
    const at::Tensor host = at::empty(wanted[i].shape, aten_type(wanted[i].type));
    for (const StatePart part : kStateParts) {
      reader.read(tensor, part, table[i].box, optimizer.updated_elements(i),
                  {static_cast<std::byte*>(host.data_ptr()), static_cast<size_t>(host.nbytes())});
      optimizer.load(part, i, part_of(table[i].box, host));
    }
  }
  optimizer.set_updates(reader.index().updates);
}

}  // namespace distca
