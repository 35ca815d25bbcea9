#include "bench/worker_ranks.h"

#include <ATen/Parallel.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>

#include "bench/cores.h"
#include "bench/main.h"
#include "distca/base/env.h"
#include "distca/comm/gloo_group.h"
#include "distca/comm/launch/launch.h"
#include "distca/comm/launch/rendezvous.h"
#include "distca/comm/launch/store_process.h"

namespace distca::bench {
namespace {

void run_as_rank(const WorkerRanks& options, const Rendezvous& rendezvous,
                 const std::function<void(Communicator&)>& body) {
  const std::vector<int> cores = allowed_cores();
  pin_to(cores[static_cast<size_t>(rendezvous.local_rank) % cores.size()]);
  const auto store = start_store_process(rendezvous, options.comm.grace_s);
  at::set_num_threads(1);
  const std::unique_ptr<Communicator> comm = make_gloo_group(rendezvous, options.comm);
  body(*comm);
}

int run(const WorkerRanks& options, std::span<char* const> arguments,
        const std::function<void(Communicator&)>& body) {
  if (const auto rendezvous = find_rendezvous(env_string)) {
    run_as_rank(options, *rendezvous, body);
    return 0;
  }
  std::vector<std::string> command{std::filesystem::read_symlink("/proc/self/exe")};
  command.insert(command.end(), arguments.begin() + 1, arguments.end());
  return launch_local(
      {.workers = options.ranks, .command = command, .grace_s = options.comm.grace_s});
}

}  // namespace

int run_worker_ranks(const WorkerRanks& options, std::span<char* const> arguments,
                     const std::function<void(Communicator&)>& body) {
  // Tensors are in huge pages, as in the program itself (cli/main.cc).
  setenv("THP_MEM_ALLOC_ENABLE", "1", /*overwrite=*/0);
  // "distca: " begins a rank's exit message, which the launcher prints once.
  const char* prefix = find_rendezvous(env_string) ? "distca: " : "";
  return run_benchmark(prefix + options.program, [&] { return run(options, arguments, body); });
}

}  // namespace distca::bench
