// Rows about checkpoints that are shown, checked and exported, and about models of random weights:
// nothing here needs PyTorch.

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
      {"distca export saved --out text/a.md/folder", "cannot create this folder", "", 1},
  };
}

std::vector<BadInput> bad_weights_out() {
  const std::string to_new = "distca export saved --out new/folder",
                    init = "distca init --hf-config m --out new/folder",
                    done = "mkdir done; : > done/model.safetensors",
                    of_done = "distca export done --out new --dtype bfloat16";
  return {
      {"distca export done --out new",
       "done: its weights are in done/model.safetensors "
       "already; --dtype and --max-shard-gb write them anew",
       done},
      {of_done, "done/model.safetensors: not a whole safetensors file", done},
      {of_done, "done/model.safetensors: its weights are bfloat16 already: export a run or a ",
       hugging_face("") + "; distca init --hf-config m --out done --dtype bfloat16"},
      {of_done, "done: no folder of a model: it has no config.json",
       hugging_face("") + "; distca init --hf-config m --out done; rm done/config.json"},
      {to_new + " --dtype int8", "--dtype: int8 not in {bfloat16,float16,float32}"},
      {to_new + " --max-shard-gb 0", "--max-shard-gb: 0 is not a number in 1e-06 .. 1e+06"},
      {to_new + " --max-shard-gb=-1", "--max-shard-gb: -1 is not a number in"},
      {to_new + " --max-shard-gb nan", "--max-shard-gb: nan is not a number in"},
      {to_new, "new/folder/model-00001-of-00003.safetensors is there already: choose another --out",
       "mkdir -p new/folder; : > new/folder/model-00001-of-00003.safetensors"},
      {to_new, "new/folder/config.json is there already: choose another --out or give --overwrite",
       "mkdir -p new/folder; : > new/folder/config.json"},
      {"distca init --out new", "--hf-config is required (see distca init --help)"},
      {"distca init --hf-config absent --out new", "absent: cannot be read: No such file"},
      {init, "m/config.json: cannot be read: No such file", "mkdir m"},
      {"distca init --hf-config text/a.md --out new", "text/a.md: byte "},
      {init, "m/config.json: hidden_act must be \"silu\", not \"gelu\"",
       hugging_face(", \"hidden_act\": \"gelu\"")},
      {init, "m/config.json: num_experts is not known, and it may change the model",
       hugging_face(", \"num_experts\": 4")},
      {init, "m/config.json: model.head_dim = 4: must be a multiple of 8",
       hugging_face(", \"head_dim\": 4")},
      {init + " --seed=-1", "--seed", hugging_face("")},
      {init + " --max-shard-gb 0.000001",
       "the weights would take 543 files: at most 500; let one be larger",
       hugging_face(", \"num_hidden_layers\": 60")},
      {"distca init --hf-config m --out m",
       "m/config.json is there already: choose another --out or give --overwrite",
       hugging_face("")},
  };
}

}  // namespace distca::testing
