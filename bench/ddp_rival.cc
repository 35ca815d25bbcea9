#include "bench/ddp_rival.h"

#include <stdlib.h>
#include <unistd.h>

#include "distca/base/error.h"
#include "distca/config/config.h"
#include "distca/model/weights_file.h"

namespace distca::bench {
namespace {

constexpr double kTimeout = 120;  // seconds of one wait

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

Json optimizer_json(const Config::Optimizer& options) {
  return {{"lr", options.lr},
          {"beta1", options.beta1},
          {"beta2", options.beta2},
          {"eps", options.eps},
          {"weight_decay", options.weight_decay},
          {"max_grad_norm", options.max_grad_norm}};
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

DdpRival::DdpRival(const std::string& python, const std::string& script,
                   const std::vector<int>& cores, const Llama& llama)
    : vocab_size_(llama.config().vocab_size),
      folder_(std::filesystem::temp_directory_path() / fmt::format("distca_ddp_{}", getpid())) {
  for (const std::string& needed : {python, script}) {
    if (!std::filesystem::exists(needed))
      throw Error(ErrorKind::kUsage, "{} does not exist: `make setup` installs PyTorch in .venv",
                  needed);
  }
  std::filesystem::create_directories(folder_);
  const std::string weights = folder_ / "model.safetensors";
  AtomicFile file(weights);
  write_weights(file, llama.config(), llama.parameters(), {});
  file.commit();
  // Both ranks are on this machine: as ours, they talk over the loopback interface.
  setenv("GLOO_SOCKET_IFNAME", "lo", /*overwrite=*/0);
  for (size_t rank = 0; rank < cores.size(); ++rank) {
    const Json arguments = {
        {"rank", rank},        {"size", cores.size()},
        {"core", cores[rank]}, {"store", folder_ / "store"},
        {"timeout", kTimeout}, {"model", llama.config().to_hugging_face(1 << 20)},
        {"weights", weights},  {"optimizer", optimizer_json({})}};
    ranks_.push_back(std::make_unique<ChildProcess>(
        fmt::format("rank {} of the DDP rival", rank),
        std::vector<std::string>{python, script, arguments.dump()}, kTimeout));
  }
}

DdpRival::~DdpRival() {
  ranks_.clear();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Json DdpRival::answer(size_t rank, const std::string& awaited) {
  return parse_json(ranks_[rank]->read_line(awaited), "what the DDP rival answered",
                    ErrorKind::kIo);
}

std::vector<PlayedStep> DdpRival::run(const FixedPacking& packing) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    Json nano_batches = Json::array();
    for (size_t i = 0; i < packing.pieces.size(); ++i) {
      nano_batches.push_back(
          nano_batch_json(packing.pieces[i], packing.worker[i].at(rank), vocab_size_));
    }
    const Json command = {
        {"batch", {{"nano_batches", nano_batches}, {"num_targets", num_targets(packing.pieces)}}}};
    ranks_[rank]->write_line(command.dump());
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) answer(rank, "answer to batch");
  for (const auto& rank : ranks_) rank->write_line(R"({"run": true})");
  std::vector<PlayedStep> steps;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Json told = answer(rank, "answer to run");
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
