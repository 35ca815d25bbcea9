// Rows about checkpoints that are shown, checked and exported: nothing here needs PyTorch.

#include "tests/bad_input_table.h"

namespace distca::testing {

std::vector<BadInput> bad_checkpoints() {
  const std::string check = "distca checkpoint check saved", show = "distca checkpoint show saved",
                    to_new = "distca export saved --out new/folder",
                    step = "saved/checkpoints/step_000003/", file = step + "rank_1.safetensors",
                    index = step + "checkpoint.json";
  const std::string put = "printf X | dd bs=1 conv=notrunc status=none of=";
  return {
      {"distca checkpoint", "a verb is missing: show, check (see distca checkpoint --help)"},
      {"distca checkpoint chek saved", "unknown verb chek; did you mean check?"},
      {"distca checkpoint show", "folder is required (see distca checkpoint show --help)"},
      {"distca export saved", "--out is required (see distca export --help)"},
      {"distca checkpoint show absent",
       "absent: holds no complete checkpoint: name a run's folder or a checkpoint's, such as "
       "RUN/checkpoints/step_000100"},
      {"distca checkpoint check text", "text: holds no complete checkpoint"},
      {show + "/checkpoints/step_000009.tmp", "step_000009.tmp: holds no complete checkpoint",
       "mkdir saved/checkpoints/step_000009.tmp"},
      {check, file + ": head.weight.exp_avg_sq(1092:1200) is damaged: its bytes have the hash ",
       put + file + " seek=$(($(stat -c %s " + file + ") - 3))", 2, "", true},
      {check, file + ": cannot be read: No such file or directory", "rm " + file, 2, "", true},
      {check, file + ": not a whole safetensors file: it has ", "truncate -s -1 " + file, 2, "",
       true},
      {check, file + ": not a whole safetensors file: it has less than 8 bytes", ": > " + file, 2,
       "", true},
      {show, index + ": version must be 1, the one that this distca reads, not 9",
       "sed -i 's/\"version\":1/\"version\":9/' " + index},
      {show, index + ": byte 10", "truncate -s 100 " + index},
      {to_new, step + "rank_0.safetensors: embed.weight is damaged",
       put + step + "rank_0.safetensors seek=9000"},
      {to_new, file + ": cannot be read", "rm " + file},
      {"distca export absent --out new", "absent: holds no complete checkpoint"},
      {"distca export done --out new",
       "done: holds no checkpoint, and needs none: its weights are in done/model.safetensors "
       "already",
       "mkdir done; : > done/model.safetensors"},
      {to_new, "new/folder/config.json is there already: choose another --out or give --overwrite",
       "mkdir -p new/folder; : > new/folder/config.json"},
      {"distca export saved --out text/a.md/folder", "cannot create this folder", "", 1},
  };
}

}  // namespace distca::testing
