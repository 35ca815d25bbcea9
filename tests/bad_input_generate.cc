// Rows about models that are asked to go on with a text, or evaluated.

#include "tests/bad_input_table.h"

namespace distca::testing {

std::vector<BadInput> bad_generations() {
  const std::string m = "distca generate m ", one = m + "--ids 1 ", shape = hugging_face("");
  return {
      {"distca generate", "folder is required (see distca generate --help)"},
      {"distca generate absent def", "absent: no folder of a model: it has no config.json"},
      {"distca generate saved def",
       "saved: its weights are in a checkpoint alone: distca export saved --out FOLDER writes a"},
      {"distca generate saved/checkpoints/step_000003 def",
       "its weights are in a checkpoint alone"},
      {m, "give a text, or the --ids of one, and not both", shape},
      {one + "def", "give a text, or the --ids of one, and not both", shape},
      {m + "def", "m: has no tokenizer.json: give the --ids of a prompt instead of a text", shape},
      {m + "$(printf '\\377')", "the text is not UTF-8", shape},
      {m + "--ids ''", "the prompt has no token", shape},
      {m + "--ids '1, x'", "--ids: \"x\" is no token id", shape},
      {m + "--ids '1 -2'", "--ids: \"-2\" is no token id", shape},
      {m + "--ids '1 256'", "token id 256 is not in the model's vocabulary: vocab_size = 256",
       shape},
      {m + "--ids '1 2 3'",
       "the prompt has 3 tokens, and the model has 3 positions (max_position_embeddings)",
       hugging_face(", \"max_position_embeddings\": 3")},
      {one, "m: holds neither model.safetensors nor model.safetensors.index.json", shape},
      {one, "m/config.json: num_experts is not known, and it may change the model",
       hugging_face(", \"num_experts\": 4")},
      {one,
       "m/generation_config.json: eos_token_id must be an integer in 0 .. "
       "9223372036854775807, not \"end\"",
       shape + "; echo '{\"eos_token_id\": \"end\"}' > m/generation_config.json"},
      {one + "--temperature -1", "--temperature: -1 is not a number in 0 .. 1e+06"},
      {one + "--temperature nan", "--temperature: nan is not a number in 0 .. 1e+06"},
      {one + "--top-p 0", "--top-p"},
      {one + "--top-p 1.5", "--top-p: 1.5 is not a number in 0 .. 1"},
      {one + "--top-k -1", "--top-k"},
      {one + "--max-new-tokens -1", "--max-new-tokens"},
      {one + "--max-new-tokens 1e3",
       "--max-new-tokens: 1e3 is not a whole number in 0 .. 4294967296, such as 1000"},
      {one + "--seed x", "--seed"},
      {one + "--top 5", "unknown option --top"},
      {"distca generate run 'def '",
       "the logits are not finite: the weights are damaged, or of a run that diverged",
       "distca $T > /dev/null; printf '\\377\\377\\377\\377' | dd bs=1 conv=notrunc status=none "
       "of=run/model.safetensors seek=$(($(stat -c %s run/model.safetensors) - 4))"},
      {"distca generate run 'def ' --max-new-tokens 2 > /dev/full",
       "stdout: No space left on device", "distca $T train.steps=1 > /dev/null", 1},
  };
}

std::vector<BadInput> bad_evaluations() {
  const std::string trained = "distca $T train.steps=1 > /dev/null";
  return {
      {"distca evaluate m", "--data is required (see distca evaluate --help)"},
      {"distca evaluate absent --data d",
       "absent: holds no weights of Hugging Face and no complete checkpoint: name a run's folder "
       "or a checkpoint's"},
      {"distca evaluate m --data d",
       "m: holds no weights of Hugging Face and no complete checkpoint", hugging_face("")},
      {"distca evaluate saved --data data/text",
       "saved/checkpoints/step_000003: it has no model.embed_tokens.weight of the shape and type "
       "that "
       "this model has"},
      {"distca evaluate run --data absent model.hidden_size=48",
       "model.hidden_size = 48, and run/config.json makes it 32: leave the key out, or model.from",
       trained},
      {"distca evaluate run --data absent", "absent", trained},
      {"distca evaluate run --data data/text plan.tolerance=auto train.deterministic=false",
       "evaluate: times of training steps would enter the plans; leave out plan.tolerance = auto",
       trained},
      {"distca evaluate run --data data/text model.from=m",
       "evaluate: leave out model.from: the weights are those of run, the data those of --data",
       trained},
      {"distca evaluate run --data '0.5 data/text 0.5 data/more'",
       "documents count once each, so the weights of a blend would be ignored",
       trained + "; for part in bin idx; do cp data/text.$part data/more.$part; done"},
      {"distca evaluate run --data data/text",
       "data/text holds bytes, and run/tokenizer.json is another "
       "tokenizer",
       trained + "; printf '{\"model\":{\"vocab\":{\"a\":0}}}' > run/tokenizer.json"},
      {"distca evaluate run --data data/text --workers 3 parallel.pipeline_model_parallel_size=2",
       "parallel.pipeline_model_parallel_size = 2", trained},
  };
}

}  // namespace distca::testing
