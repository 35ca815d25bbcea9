#include "bench/rival.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/model/weights_file.h"

namespace distca::bench {
namespace {

constexpr int kTimeoutS = 120;  // seconds of one wait
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

/// A new named pipe, open for reading before anybody writes, so that nobody waits to open it.
std::FILE* reading_pipe(const std::string& path) {
  DISTCA_THROW_IF(mkfifo(path.c_str(), 0600) != 0, ErrorKind::kIo, "no pipe {}", path);
  const int end = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  DISTCA_THROW_IF(end < 0 || fcntl(end, F_SETFL, 0) != 0, ErrorKind::kIo, "no pipe {}", path);
  return fdopen(end, "r");
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

DdpRival::DdpRival(const Llama& llama, const std::vector<int>& cores)
    : vocab_size_(llama.config().vocab_size),
      started_(std::filesystem::temp_directory_path() / fmt::format("distca_rival_{}", getpid())) {
  DISTCA_THROW_IF(!std::filesystem::exists(DISTCA_PYTHON), ErrorKind::kUsage,
                  "{} does not exist: `make setup` installs PyTorch in .venv", DISTCA_PYTHON);
  std::signal(SIGPIPE, SIG_IGN);  // a process that has ended gives no answer, which is an error
  // Both ranks are on this machine: as ours, they talk over the loopback interface.
  setenv("GLOO_SOCKET_IFNAME", "lo", /*overwrite=*/0);
  const std::filesystem::path& folder = started_.folder;
  write_file_atomically(folder / "config.json",
                        llama.config().to_hugging_face(kMostPositions).dump());
  AtomicFile weights(folder / "model.safetensors");
  write_weights(weights, llama.config(), llama.parameters(), {{"format", "pt"}});
  weights.commit();
  const Config::Optimizer optimizer;
  for (size_t rank = 0; rank < cores.size(); ++rank) {
    const std::string arguments = folder / fmt::format("arguments_{}", rank),
                      answers = folder / fmt::format("answers_{}", rank);
    const Json said{{"rank", rank},
                    {"size", cores.size()},
                    {"core", cores[rank]},
                    {"store", folder / "store"},
                    {"timeout", kTimeoutS},
                    {"folder", folder},
                    {"optimizer",
                     {{"lr", optimizer.lr},
                      {"beta1", optimizer.beta1},
                      {"beta2", optimizer.beta2},
                      {"eps", optimizer.eps},
                      {"weight_decay", optimizer.weight_decay},
                      {"max_grad_norm", optimizer.max_grad_norm}}}};
    write_file_atomically(arguments, said.dump());
    std::FILE* reads = reading_pipe(answers);
    const std::string command = fmt::format("exec '{}' '{}' ddp \"$(cat '{}')\" >'{}'",
                                            DISTCA_PYTHON, DISTCA_RIVAL, arguments, answers);
    std::FILE* commands = popen(command.c_str(), "we");
    DISTCA_THROW_IF(commands == nullptr, ErrorKind::kIo, "no shell");
    started_.processes.push_back({commands, reads});
  }
}

DdpRival::Started::Started(std::filesystem::path of) : folder(std::move(of)) {
  std::filesystem::remove_all(folder);  // an earlier process had this number, perhaps
}

DdpRival::Started::~Started() {
  for (const auto& [commands, answers] : processes) {
    pclose(commands);
    std::fclose(answers);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

std::vector<Json> DdpRival::ask(const std::string& command, const std::vector<Json>& arguments) {
  for (size_t rank = 0; rank < started_.processes.size(); ++rank) {
    std::FILE* commands = started_.processes[rank].commands;
    std::fputs((Json::object({{command, arguments.at(rank)}}).dump() + "\n").c_str(), commands);
    std::fflush(commands);
  }
  std::vector<Json> all;
  for (const auto& [commands, answers] : started_.processes) {
    pollfd ready{.fd = fileno(answers), .events = POLLIN, .revents = 0};
    char line[4096];
    DISTCA_THROW_IF(poll(&ready, 1, 1000 * kTimeoutS) != 1 ||
                        std::fgets(line, sizeof(line), answers) == nullptr,
                    ErrorKind::kIo, "process {} of PyTorch DDP gave no answer to {}", all.size(),
                    command);
    all.push_back(parse_json(line, "what PyTorch DDP answered", ErrorKind::kIo));
  }
  return all;
}

std::vector<PlayedStep> DdpRival::step(const FixedPacking& packing) {
  std::vector<Json> batches;
  for (size_t rank = 0; rank < started_.processes.size(); ++rank) {
    Json nano_batches = Json::array();
    for (size_t i = 0; i < packing.pieces.size(); ++i)
      nano_batches.push_back(
          nano_batch_json(packing.pieces[i], packing.worker[i].at(rank), vocab_size_));
    batches.push_back(
        {{"nano_batches", nano_batches}, {"num_targets", num_targets(packing.pieces)}});
  }
  ask("batch", batches);
  std::vector<PlayedStep> steps;
  for (const Json& told : ask("run", std::vector<Json>(started_.processes.size()))) {
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
