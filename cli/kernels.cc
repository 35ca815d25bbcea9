// distca kernels: compiles attention kernels ahead of time for a GPU that need not be here.
// python/distca/_kernels.py does it; this checks the words of the command line.

#include <cstdint>
#include <memory>
#include <string>

#include "cli/options.h"
#include "cli/python_verb.h"
#include "cli/verbs.h"
#include "distca/base/scalar_type.h"
#include "distca/kernels/kernel_choice.h"

namespace distca::cli {
namespace {

struct KernelsArguments {
  std::string arch = "sm_90", dtype = "bfloat16";
  int64_t head_dim = 128, heads_of_a_key_head = 4;
  std::string out;  // by default, compiled_kernels_folder()
  bool overwrite = false;
};

[[noreturn]] void build(const KernelsArguments& arguments) {
  const std::string out =
      arguments.out.empty()
          ? compiled_kernels_folder(arguments.head_dim, scalar_type(arguments.dtype).value(),
                                    arguments.heads_of_a_key_head)
                .string()
          : arguments.out;
  become_python(
      "distca-kernels",
      {out, arguments.arch, std::to_string(arguments.head_dim), arguments.dtype,
       std::to_string(arguments.heads_of_a_key_head), arguments.overwrite ? "overwrite" : "keep"},
      PythonPackages::kUsers);
}

}  // namespace

void add_kernels(CLI::App& app) {
  auto arguments = std::make_shared<KernelsArguments>();
  CLI::App* verb = app.add_subcommand("kernels", "FlashAttention 4's kernels, compiled for a GPU");
  verb->require_subcommand(1);
  CLI::App* of_build =
      verb->add_subcommand("build", "Compile them, by what pip brings (docs/kernels.md)");
  of_build->add_option("--arch", arguments->arch, "The GPU: sm_90 is Hopper")
      ->check(CLI::IsMember({"sm_90"}))
      ->capture_default_str();
  of_build->add_option("--head-dim", arguments->head_dim, "Of queries, keys and values")
      ->check(CLI::IsMember({64, 128}))
      ->capture_default_str();
  number_type(*of_build, "--dtype", arguments->dtype, {"bfloat16"}, "Computed in");
  number(*of_build, "--qheads-per-kvhead", arguments->heads_of_a_key_head, 1, 256,
         "Query heads for each key and value head");
  of_build
      ->add_option("--out", arguments->out,
                   "Their folder; by default where distca finds them: $DISTCA_KERNELS, or "
                   "~/.cache/distca/kernels")
      ->type_name("FOLDER");
  of_build->add_flag("--overwrite", arguments->overwrite, "Replaces what is there");
  of_build->footer("Example:  distca kernels build --arch sm_90 --head-dim 128 --dtype bfloat16");
  verb->footer("Example:  distca kernels build --head-dim 128 --qheads-per-kvhead 4");
  of_build->callback([arguments] { build(*arguments); });
}

}  // namespace distca::cli
