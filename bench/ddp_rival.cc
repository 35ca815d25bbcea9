#include "bench/ddp_rival.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "distca/base/error.h"
#include "distca/base/json.h"
#include "distca/model/safetensors.h"
#include "distca/train/config.h"

namespace distca::bench {
namespace {

/// A folder of its own, gone with it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "distca_ddp_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw Error(ErrorKind::kIo, "{}: {}", name, std::strerror(errno));
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

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

Json optimizer_json(const Config::Optimizer& options) {
  return {{"lr", options.lr},
          {"beta1", options.beta1},
          {"beta2", options.beta2},
          {"eps", options.eps},
          {"weight_decay", options.weight_decay},
          {"max_grad_norm", options.max_grad_norm}};
}

}  // namespace

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

struct DdpRival::State {
  DdpOptions options;
  int64_t vocab_size;
  TemporaryFolder folder;
  std::vector<std::unique_ptr<ChildProcess>> ranks;

  Json answer(size_t rank, const std::string& awaited) {
    const std::string line = ranks[rank]->read_line(options.timeout_s, awaited);
    return parse_json(line, "what the DDP rival answered", ErrorKind::kIo);
  }
};

DdpRival::DdpRival(const DdpOptions& options, const Llama& llama)
    : state_(new State{.options = options, .vocab_size = llama.config().vocab_size}) {
  State& s = *state_;
  for (const std::string& needed : {options.python, options.script}) {
    if (!std::filesystem::exists(needed))
      throw Error(ErrorKind::kUsage, "{} does not exist: `make setup` installs PyTorch in .venv",
                  needed);
  }
  const std::filesystem::path weights = s.folder.path() / "model.safetensors";
  write_safetensors(weights, llama.parameter_names(), llama.parameters());
  // Both ranks are on this machine: as ours, they talk over the loopback interface.
  setenv("GLOO_SOCKET_IFNAME", "lo", /*overwrite=*/0);
  for (size_t rank = 0; rank < options.cores.size(); ++rank) {
    s.ranks.push_back(std::make_unique<ChildProcess>(
        fmt::format("rank {} of the DDP rival", rank),
        std::vector<std::string>{options.python, options.script, "--rank", std::to_string(rank),
                                 "--size", std::to_string(options.cores.size()), "--core",
                                 std::to_string(options.cores[rank]), "--store",
                                 (s.folder.path() / "store").string(), "--timeout",
                                 std::to_string(options.timeout_s), "--model",
                                 llama.config().to_hugging_face(1 << 20).dump(), "--weights",
                                 weights.string(), "--optimizer", optimizer_json({}).dump()}));
  }
}
DdpRival::~DdpRival() = default;

std::vector<PlayedStep> DdpRival::run(const FixedPacking& packing) {
  State& s = *state_;
  for (size_t rank = 0; rank < s.ranks.size(); ++rank) {
    Json nano_batches = Json::array();
    for (size_t i = 0; i < packing.pieces.size(); ++i) {
      nano_batches.push_back(
          nano_batch_json(packing.pieces[i], packing.worker[i].at(rank), s.vocab_size));
    }
    const Json command = {
        {"batch", {{"nano_batches", nano_batches}, {"num_targets", num_targets(packing.pieces)}}}};
    s.ranks[rank]->write_line(command.dump());
  }
  for (size_t rank = 0; rank < s.ranks.size(); ++rank) s.answer(rank, "answer to batch");
  for (const auto& rank : s.ranks) rank->write_line(R"({"run": true})");
  std::vector<PlayedStep> steps;
  for (size_t rank = 0; rank < s.ranks.size(); ++rank) {
    const Json answer = s.answer(rank, "answer to run");
    steps.push_back({.begin_s = answer.at("begin_s"),
                     .computed_s = answer.at("computed_s"),
                     .end_s = answer.at("end_s"),
                     .waited_s = 0,
                     .processor_s = answer.at("processor_s"),
                     .loss_sum = answer.at("loss_sum"),
                     .gradient_norm = answer.at("gradient_norm")});
  }
  return steps;
}

}  // namespace distca::bench
