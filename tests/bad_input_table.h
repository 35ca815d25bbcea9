#pragma once
// Bad inputs and what each gets, a row each (tests/bad_input_test.cc runs them). A row's folder has
//   text/a.md, text/b.md      words
//   data/text.bin, .idx       40 documents of bytes, one sequence each
//   workload.json, plan.json  512 tokens on 2 ranks, and its plan
//   lengths.json              [300, 212]
//   profile.json              a profile of attention
//   saved/                    a run with the checkpoint of step 3, written by two ranks
//   traces of: no_rank.json, no_step.json, one_step.json, other_steps.json, two_ranks.json
// The shell finds `distca`, $T = `train` and the keys of a small run into run/, and $W = a workload
// of 8 ranks.

#include <string>
#include <vector>

namespace distca::testing {

struct BadInput {
  std::string command;          // a line for the shell
  std::string message;          // part of the one line on stderr, which begins "distca: error: "
  std::string setup = {};       // run before; its files are there already
  int exit_code = 2;            // 2 for bad input, 1 for a failure of the world
  std::string files_left = {};  // new or changed, with spaces between
  bool prints = false;          // something is rightly on stdout before
};

/// A setup that makes m/, a folder of Hugging Face whose config.json has these further fields.
inline std::string hugging_face(const std::string& fields) {
  return "mkdir m; printf '{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": "
         "48, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"vocab_size\": 256" +
         fields + "}' > m/config.json";
}

std::vector<BadInput> bad_words();        // the command line
std::vector<BadInput> bad_data();         // texts and data sets
std::vector<BadInput> bad_plans();        // workloads, lengths, plans, profiles, traces, options
std::vector<BadInput> bad_checkpoints();  // shown, checked, exported
std::vector<BadInput> bad_weights_out();  // how exported weights lie in files, and models made
std::vector<BadInput> bad_models();       // folders of Hugging Face
std::vector<BadInput> bad_generations();  // `distca generate`
std::vector<BadInput> bad_evaluations();  // `distca evaluate`
std::vector<BadInput> bad_configs();      // keys and values of `distca train`
std::vector<BadInput> bad_runs();    // data, folders and machines of `distca train`, profiles made
std::vector<BadInput> bad_checks();  // `distca verify`

}  // namespace distca::testing
