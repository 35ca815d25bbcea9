#include "bench/rival.h"

#include <unistd.h>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/model/weights_file.h"

namespace distca::bench {
namespace {

constexpr int64_t kMostPositions = 1 << 20;

/// Whole documents `documents` of a nano-batch.
Json nano_batch_json(const std::vector<int64_t>& lengths, const std::vector<int64_t>& documents,
                     int64_t vocab_size) {
  std::vector<Segment> segments;
  std::vector<int64_t> own;
  for (const int64_t document : documents) {
    segments.push_back({.document = document, .tokens = {0, lengths[document]}});
    own.push_back(lengths[document]);
  }
  const LocalTokens tokens = made_up_tokens(NanoBatch::from_lengths(lengths), segments, vocab_size);
  return {{"lengths", own}, {"ids", tokens.ids}, {"targets", tokens.targets}};
}

}  // namespace

const char* const kPython = DISTCA_PYTHON;

Rival::Rival(std::string kind, std::string python, double timeout_s)
    : kind_(std::move(kind)),
      python_(std::move(python)),
      timeout_s_(timeout_s),
      folder_(std::filesystem::temp_directory_path() / fmt::format("distca_rival_{}", getpid())) {
  DISTCA_THROW_IF(!std::filesystem::exists(python_), ErrorKind::kUsage,
                  "{} does not exist: `make setup` installs PyTorch in .venv", python_);
  std::filesystem::create_directories(folder_);
}

Rival::~Rival() {
  processes_.clear();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::filesystem::path Rival::save(const Llama& llama) {
  write_file_atomically(folder_ / "config.json",
                        llama.config().to_hugging_face(kMostPositions).dump());
  AtomicFile weights(folder_ / "model.safetensors");
  write_weights(weights, llama.config(), llama.parameters(), {{"format", "pt"}});
  weights.commit();
  return folder_;
}

void Rival::start(Json arguments, const Config::Optimizer& optimizer) {
  arguments["optimizer"] = {{"lr", optimizer.lr},
                            {"beta1", optimizer.beta1},
                            {"beta2", optimizer.beta2},
                            {"eps", optimizer.eps},
                            {"weight_decay", optimizer.weight_decay},
                            {"max_grad_norm", optimizer.max_grad_norm}};
  processes_.emplace_back(fmt::format("process {} of the rival {}", processes_.size(), kind_),
                          std::vector{python_, std::string(DISTCA_RIVAL), kind_, arguments.dump()},
                          timeout_s_);
}

std::vector<Json> Rival::ask(const std::string& command, const std::vector<Json>& arguments) {
  for (size_t process = 0; process < processes_.size(); ++process)
    processes_[process].write_line(Json::object({{command, arguments.at(process)}}).dump());
  std::vector<Json> answers;
  for (size_t process = 0; process < processes_.size(); ++process)
    answers.push_back(parse_json(processes_[process].read_line("answer to " + command),
                                 "what the rival answered", ErrorKind::kIo));
  return answers;
}

FixedPacking fixed_packing(const LlamaConfig& model, const BatchLengths& batch, int num_workers) {
  const StepArm local{.plan = {.scheduler = "local", .layout = "sequential"}};
  FixedPacking packing;
  for (const Plan& plan : plan_step(local, model, batch, num_workers)) {
    std::vector<int64_t>& pieces = packing.pieces.emplace_back();
    auto& workers = packing.worker.emplace_back();
    for (const std::vector<Segment>& segments : plan.layout.workers) {
      std::vector<int64_t>& own = workers.emplace_back();
      for (const Segment& segment : segments) {
        own.push_back(static_cast<int64_t>(pieces.size()));
        pieces.push_back(segment.tokens.size());
      }
    }
  }
  return packing;
}

std::vector<PlayedStep> ddp_step(Rival& ddp, const FixedPacking& packing, int64_t vocab_size) {
  const size_t ranks = packing.worker.at(0).size();
  std::vector<Json> batches;
  for (size_t rank = 0; rank < ranks; ++rank) {
    Json nano_batches = Json::array();
    for (size_t i = 0; i < packing.pieces.size(); ++i)
      nano_batches.push_back(
          nano_batch_json(packing.pieces[i], packing.worker[i].at(rank), vocab_size));
    batches.push_back(
        {{"nano_batches", nano_batches}, {"num_targets", num_targets(packing.pieces)}});
  }
  ddp.ask("batch", batches);
  std::vector<PlayedStep> steps;
  for (const Json& told : ddp.ask("run", std::vector<Json>(ranks))) {
    steps.push_back({.begin_s = told.at("begin_s"),
                     .computed_s = told.at("computed_s"),
                     .end_s = told.at("end_s"),
                     .waited_s = 0,
                     .processor_s = told.at("processor_s"),
                     .loss_sum = told.at("loss_sum"),
                     .gradient_norm = told.at("gradient_norm")});
  }
  return steps;
}

}  // namespace distca::bench
