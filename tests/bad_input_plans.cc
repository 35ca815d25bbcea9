// Rows about the command line, texts, data sets and plans: nothing here needs PyTorch.

#include <fmt/format.h>

#include "tests/bad_input_table.h"

namespace distca::testing {

namespace {

const std::string kPlan = "distca plan --workload workload.json ",
                  kLarge = "distca plan --workload $W ", kBad = "distca plan --workload bad.json",
                  kLengths = "distca plan --lengths bad.json --workers 2",
                  kPrepare = "distca data prepare --text ";

/// Shell words that put bytes (as printf writes them) at an offset of the index.
std::string into_index(const char* bytes, int offset) {
  return fmt::format("printf '{}' | dd of=data/text.idx bs=1 conv=notrunc seek={} status=none",
                     bytes, offset);
}

}  // namespace

std::vector<BadInput> bad_words() {
  return {
      {"distca", "a verb is missing: data, plan, simulate, trace, report"},
      {"distca plam", "unknown verb plam; did you mean plan? (see distca --help)"},
      {"distca fly", "unknown verb fly (see distca --help)"},
      {"distca data", "a verb is missing: prepare, show (see distca data --help)"},
      {"distca data prepar", "unknown verb prepar; did you mean prepare? (see distca data --help)"},
      {"distca --workers 2 plan", "unknown option --workers (see distca --help)"},
      {"distca plan --wrokload workload.json",
       "unknown option --wrokload; did you mean --workload? (see distca plan --help)"},
      {"distca plan --workload=workload.json --wrkers=3", "--wrkers; did you mean --workers?"},
      {"distca data show", "prefix is required (see distca data show --help)"},
      {"distca data show data/text more", "unexpected word more (see distca data show --help)"},
      {kPrepare + "text", "--out is required (see distca data prepare --help)"},
      {kPlan + "--workers many", "--workers"},
      {kPlan + "--workers 0", "--workers"},
      {kPlan + "--workers", "--workers"},
      {"distca trace", "file is required (see distca trace --help)"},
      {"distca report --out new.html", "inputs is required (see distca report --help)"},
      {"distca report one_step.json", "--out is required (see distca report --help)"},
      {"distca kernels build --arch sm_80", "--arch"},
      {"distca kernels build --head-dim 96", "--head-dim"},
      {"distca kernels build --dtype float32", "--dtype"},
      {"distca kernels build --out there", "there exists; --overwrite replaces it", "mkdir there"},
      {"distca monitor", "run is required (see distca monitor --help)"},
      {"distca monitor data", "data: not the folder of a run: it has no metrics.jsonl"},
      {"distca monitor run --tensorboard events", "run/metrics.jsonl line 1: step is missing",
       "mkdir run; echo '{}' > run/metrics.jsonl"},
      {"distca monitor run", "run/metrics.jsonl line 1: byte ",
       "mkdir run; echo text > run/metrics.jsonl"},
      {"DISTCA_PYTHON=false distca monitor run --tensorboard events",
       "distca-tensorboard ended before its work was done: exit code 1",
       "mkdir run; : > run/metrics.jsonl", 1},
  };
}

std::vector<BadInput> bad_data() {
  const std::string show = "distca data show data/text";
  return {
      {kPrepare + "empty --out new/set", "empty: no file matches \"*\": expected files of text",
       "mkdir empty"},
      {kPrepare + "text --glob '*.py' --out new/set", "text: no file matches \"*.py\""},
      {kPrepare + "absent --out new/set", "absent: no such file or folder of text"},
      {"distca plan --lengths [1,2,3] --workers 2",
       "[1,2,3]: no such file; wanted is the name of a file that holds such a list"},
      {kPrepare + "void --out new/set", "void: no text: 1 empty and 0 binary files",
       "mkdir void; : > void/a.txt"},
      {kPrepare + "text --tokenizer bpe --out new/set",
       "bpe: no such file; --tokenizer is byte, a tokenizer.json or a folder that has one"},
      {kPrepare + "text --jsonl text/a.md --out new/set",
       "give either --text, files of which each is a document, or --jsonl"},
      {"distca data prepare --out new/set",
       "give either --text, files of which each is a document"},
      {"distca data prepare --jsonl text/a.md --out new/set", "--jsonl needs --tokenizer: a "},
      {"distca data prepare --jsonl new/set.json --tokenizer absent --out new/set --overwrite",
       "new/set.json: no data set made this file, so it is not replaced: choose another --out",
       "mkdir new; echo '{\"text\": \"the only copy\"}' > new/set.json"},
      {kPrepare + "text data/text.bin --out data/text --overwrite",
       "data/text.bin: it is read, and would be replaced: choose another --out"},
      {"distca data prepare --jsonl text/a.md --tokenizer absent --out new/set",
       "absent: no such file; --tokenizer is byte, a tokenizer.json or a folder that has one"},
      {"DISTCA_PYTHON=false distca data prepare --jsonl text/a.md --tokenizer absent --out new/set",
       "distca-tokenize ended before its work was done: exit code 1", "", 1},
      {kPrepare + "text --out data/text",
       "data/text.bin is there already: choose another --out or give --overwrite"},
      {kPrepare + "text --out data/text.idx", "data/text.bin is there already"},
      {kPrepare + "text --out text/a.md/set", "cannot create this folder", "", 1},
      {kPrepare + "text --out /proc/set", "/proc/set.bin: cannot be", "", 1},
      {"distca data show absent",
       "absent.bin: no such file; a data set is PREFIX.bin and PREFIX.idx"},
      {show, "data/text.idx: no such file; a data set is", "rm data/text.idx"},
      {show, "data/text.bin: no such file; a data set is", "rm data/text.bin"},
      {show, "data/text.idx: cut: 20 bytes, the header alone has 34",
       "truncate -s 20 data/text.idx"},
      {show, "data/text.idx: cut: 300 bytes are too few for 40 sequences",
       "truncate -s 300 data/text.idx"},
      {show, "data/text.bin: cut: 900 bytes, its index says", "truncate -s 900 data/text.bin"},
      {show, "data/text.bin: not the file of its index: 90000 bytes",
       "truncate -s 90000 data/text.bin"},
      {show, "data/text.idx: not an index: it does not begin with MMIDIDX", into_index("X", 0)},
      {show, "data/text.idx: cut: 0 bytes", ": > data/text.idx"},
      {show, "index version 2: expected 1", into_index("\\002", 9)},
      {show, "token type code 7: expected 1 (uint8)", into_index("\\007", 17)},
      {show, "document boundaries must rise", into_index("\\005", 522)},
      {show, "the file is damaged", into_index("\\377\\377\\377\\377", 34)},
      {show, "sequence modes of multimodal data sets are not supported",
       "head -c 40 /dev/zero >> data/text.idx"},
      {show, "document 0 is scattered: sequence 1 begins at byte 0",
       into_index("\\002", 522) + "; " +
           into_index("\\000\\000\\000\\000\\000\\000\\000\\000", 202)},
      {"distca data show data", "data.bin: no such file"},
  };
}

namespace {

std::vector<BadInput> bad_plan_files() {
  const std::string plan = "distca plan --plan plan.json", plans = "distca plan --plan plans.json";
  return {
      {"distca plan --workload absent.json", "absent.json: cannot be read: No such file"},
      {"distca plan --workload data", "data: cannot be read: not a regular file"},
      {kBad + " --out new.json", "bad.json: byte 13 is not JSON",
       "printf '{\"ranks\": 8,' > bad.json"},
      {kBad, "bad.json: no \"doc_lens\": a workload is",
       "echo '{\"ranks\": 2, \"tokens_per_rank\": 128}' > bad.json"},
      {kBad, "the documents hold 100 tokens, ranks x tokens_per_rank is 256",
       "echo '{\"ranks\": 2, \"tokens_per_rank\": 128, \"doc_lens\": [100]}' > bad.json"},
      {kBad, "\"ranks\" must be an integer in 1 ..",
       "echo '{\"ranks\": 0, \"tokens_per_rank\": 128, \"doc_lens\": [100]}' > bad.json"},
      {kLengths, "bad.json[1] must be an integer in 1 ..", "echo '[3, -4]' > bad.json"},
      {kLengths, "bad.json[0] must be an integer", "echo '[0,-4]' > bad.json"},
      {kLengths, "must be a list of document lengths, not string", "echo '\"many\"' > bad.json"},
      {kLengths, "nothing to train on", "echo '[]' > bad.json"},
      {"distca plan data.prefix=absent --workers 2", "absent.bin: no such file"},
      {"distca plan --plan absent.json", "absent.json: cannot be read"},
      {plan, "byte 501 is not JSON", "truncate -s 500 plan.json"},
      {plan, "plan: not JSON that can be read: number overflow", "echo '[1e400]' > plan.json"},
      {plan, "plan.json: plan: a value lies within more than 100 lists and objects",
       "head -c 1000000 /dev/zero | tr '\\0' '[' > plan.json"},
      {plan, "plan.json: not a valid plan", "sed -i 's/\"q\":\\[0,/\"q\":[1,/' plan.json"},
      {plan, "plan.json: plan:", "echo '{}' > plan.json"},
      {plan, "cluster.between.bytes_per_us must be an integer in 1",
       "sed -i 's/\"bytes_per_us\":[0-9]*/\"bytes_per_us\":0/' plan.json"},
      {plan, "plan.json: unknown scheduler \"greddy\": must be one of balanced, greedy",
       "sed -i 's/\"scheduler\":\"[a-z]*\"/\"scheduler\":\"greddy\"/' plan.json"},
      {plans, "plans.json: a list without plans", "echo '[]' > plans.json"},
      {plans, "plans.json: plan:", "echo '[{}]' > plans.json"},
      {plans, "plans.json: not a valid plan",
       "sed 's/.*/[&,&]/; s/\"q\":\\[0,/\"q\":[1,/' plan.json > plans.json"},
      {plan + " plan.profile=h200", "plan.json: priced by pairs, plan.profile is"},
      {kPlan + "plan.profile=no_such_machine",
       "profile no_such_machine: no such file, and the only known name is h200"},
      {kPlan + "plan.profile=profile.json", "profile.json: forward_ns[3] is 0",
       "sed -i 's/\\(\"forward_ns\": *\\[ *[0-9]*, *[0-9]*, *[0-9]*, *\\)[0-9]*/\\10/' "
       "profile.json"},
      {kPlan + "plan.profile=profile.json", "profile.json: byte", "truncate -s 100 profile.json"},
      {kPlan + "plan.profile=profile.json", "is missing", "echo '{}' > profile.json"},
      {kPlan + "--out data", "data: cannot be written: it is a folder", "", 1},
      {kPlan + "--out /dev/full", "/dev/full: cannot be written: No space left on device", "", 1},
      {kPlan + "--out plan.json/new", "cannot create this folder", "", 1},
      {kPlan + "--out /proc/new.json", "cannot be", "", 1},
      {"trap '' XFSZ; ulimit -f 2; distca plan --workload $W --out new.json",
       "new.json: cannot be written: File too large", "", 1},
  };
}

std::vector<BadInput> bad_traces() {
  return {
      {"distca trace absent.json", "absent.json: cannot be read"},
      {"distca trace bad.json", "bad.json: byte", "printf '{\"traceEvents\": [' > bad.json"},
      {"distca trace bad.json", "bad.json: not a trace that `distca train --trace` wrote",
       "echo '{\"traceEvents\": []}' > bad.json"},
      {"distca trace plan.json", "plan.json: not a trace that"},
      {"distca trace other_steps.json", "wrote: traceEvents[0]: \"ph\" is \"Q\"",
       "sed -i 's/\"ph\": *\"[A-Z]\"/\"ph\":\"Q\"/' other_steps.json"},
      {"distca trace no_rank.json", "no_rank.json: a trace of no rank"},
      {"distca trace no_step.json", "no_step.json: rank 0 has 0 steps, at least one is needed"},
      {"distca trace other_steps.json",
       "other_steps.json: rank 1 has 2 steps, not those of rank 0"},
      {"distca trace one_step.json --against absent.json", "absent.json: cannot be read"},
      {"distca trace one_step.json --against plan.json", "plan.json: not a trace that"},
      {"distca trace one_step.json --against two_ranks.json",
       "two_ranks.json: a trace of 2 ranks, one_step.json is one of 1"},
      {"distca trace one_step.json --against staged.json",
       "staged.json: rank 0 is a worker, stage 1, in one_step.json a worker",
       "sed 's/\"role\":\"worker\"/\"role\":\"worker\",\"stage\":1/' one_step.json > staged.json"},
      {"distca trace first.json --against second.json",
       "second.json: it has no rank 0, which first.json has",
       "for rank in 0 1; do sed 's/\"ranks\":\\[{/\"predicted\":{\"machine\":\"m\","
       "\"num_ranks\":2,\"alike\":1},\"ranks\":[{\"rank\":'$rank',/; s/\"pid\":0/\"pid\":'$rank'/' "
       "one_step.json > $rank.json; done; mv 0.json first.json; mv 1.json second.json"},
      {"distca trace one_step.json --against", "--against"},
      {"distca trace one_step.json > /dev/full", "stdout: No space left on device", "", 1},
      {"p=$(command -v distca); PATH=/absent $p trace one_step.json", "python3: No such file", "",
       1},
  };
}

std::vector<BadInput> bad_best_settings() {
  const std::string find = "distca simulate --lengths lengths.json --find-best ";
  return {
      {find, "--find-best requires --gpus"},
      {"distca simulate --lengths lengths.json --gpus 2", "--gpus requires --find-best"},
      {find + "--gpus 0", "--gpus"},
      {find + "--gpus 2 --workers 2", "excludes --find-best"},
      {find + "--gpus 2 --rivals wlb,megatron",
       "--rivals megatron: it is none of local, wlb, karmarkar-karp, per-document-cp, none"},
      {"distca simulate --lengths lengths.json --workers 2 --slow 2=0.7",
       "--slow 2=0.7: the run has ranks 0 to 1"},
      {"distca simulate --lengths lengths.json --workers 2 --slow 1:0.7",
       "--slow 1:0.7: it is not RANK=SPEED with a speed in 0.01 .. 1, such as 3=0.7"},
      {"distca simulate --lengths lengths.json --workers 2 --slow 1=0",
       "--slow 1=0: it is not RANK=SPEED"},
      {"distca simulate --lengths lengths.json --workers 2 --slow 1=0.7 --slow 1=0.8",
       "--slow 1=0.8: rank 1 has a speed already"},
      {"distca simulate --lengths lengths.json --workers 2 --trace a.json --out ./a.json",
       "--trace and --out both name a.json"},
      {find + "--gpus 2 --slow 1=0.7", "excludes"},
      {find + "--gpus 2 --rivals none,wlb", "--rivals none beside other names"},
      {"distca simulate --print-machine --workers 2",
       "--print-machine prints a machine, so --workers would be ignored"},
      {find + "--gpus 2 --out /proc/best.json", "--out: /proc/best.json"},
      {"distca simulate --lengths lengths.json --rivals wlb", "--rivals requires --find-best"},
      {find + "--gpus 2 servers.dedicated=1",
       "servers.dedicated with --find-best: every GPU holds weights; leave it out"},
      {find + "--gpus 2 plan.tolerance=auto",
       "plan.tolerance=auto with --find-best: pipelines cannot"},
      {find + "--gpus 2 cluster.ranks_per_node=4",
       "cluster.ranks_per_node with --find-best: the machine says how many a node has"},
      {"distca simulate --lengths lengths.json --workers 2 cluster.ranks_per_node=4",
       "cluster.ranks_per_node = 4, and a node of machine h200 has 8 ranks"},
      {find + "--gpus 1 model.hidden_size=65536 model.intermediate_size=262144",
       "no setting of 1 GPU fits the 139 GiB of h200: T = 1, P = 1, D = 1 with "},
  };
}

std::vector<BadInput> bad_reports() {
  return {
      {"distca report absent.json --out new.html", "absent.json: cannot be read: No such file"},
      {"distca report data --out new.html",
       "data: not the folder of a run: it has no metrics.jsonl"},
      {"distca report plan.json --out new.html",
       "plan.json: neither the folder of a run, nor a trace, nor what `distca simulate --json`"},
      {"distca report no_step.json --out new.html", "no_step.json: rank 0 has 0 steps"},
      {"distca report run --out new.html", "run/metrics.jsonl: it has no step yet",
       "mkdir run; : > run/metrics.jsonl"},
      {"distca report one_step.json --out one_step.json",
       "one_step.json: --out would replace an input"},
      {"distca report one_step.json --out data", "data: cannot be written: it is a folder", "", 1},
      {"distca report one_step.json --out plan.json/new.html", "cannot be written: Not a directory",
       "", 1},
      {"distca report one_step.json --out /dev/full", "cannot be written: No space left on device",
       "", 1},
      {"p=$(command -v distca); PATH=/absent $p report one_step.json --out new.html",
       "python3: No such file", "", 1},
  };
}

std::vector<BadInput> bad_simulations() {
  return {
      {"distca simulate", "no documents to plan: give data.prefix=PREFIX"},
      {"distca simulate --workload workload.json --machine h300",
       "machine h300: no such file, and the known names are h100, h200"},
      {"distca simulate --workload workload.json --machine m.json", "m.json: format is missing",
       "echo '{}' > m.json"},
      {"distca simulate --workload workload.json --step 2", "--step"},
      {"distca simulate --workload workload.json --trace data",
       "--trace: data: cannot be written: it is a folder"},
      {"distca simulate --workload workload.json --trace plan.json/new.json",
       "--trace: plan.json: cannot create this folder"},
      {"distca simulate --trace new/trace.json", "no documents to plan: give data.prefix=PREFIX"},
      {"distca simulate --paper table4", "--paper table4: give --lengths FOLDER"},
      {"distca simulate --paper table4 --lengths data", "lengths_pretrain.json"},
      {"distca simulate --paper fig3a --rows 8B", "--paper fig3a: its documents are alike"},
      {"distca simulate --paper fig3a batch.nano_batches=2", "its rows say all"},
      {"distca simulate --paper fig3a --workers 2", "so --workers would be ignored"},
      {"distca simulate --rows 8B", "--rows requires --paper"},
  };
}

std::vector<BadInput> bad_plan_options() {
  return {
      {"distca plan",
       "no documents to plan: give data.prefix=PREFIX, --lengths FILE or --workload"},
      {"distca plan workload.json", "workload.json: an override is section.key=value"},
      {kPlan + "--lengths lengths.json", "--lengths"},
      {kPlan + "--heads 4",
       "unknown option --heads; settings are words KEY=VALUE, which distca train --print-config"},
      {kPlan + "--step 2", "--step"},
      {kPlan + "--plan plan.json", "--plan"},
      {"distca plan --plan plan.json batch.seed=2",
       "--plan takes no batch.seed=2: the plan says it"},
      {"distca plan --plan plan.json --config c.toml", "--config", ": > c.toml"},
      {"distca plan --plan plan.json --program 0", "--program"},
      {"distca plan --lengths lengths.json --step 101",
       "--step 101: the run has train.steps = 100"},
      {kPlan + "train.steps=0", "--step 1: the run has train.steps = 0"},
      {kPlan + "plan.scheduler=gredy", "plan.scheduler"},
      {kPlan + "plan.layout=diagonal", "plan.layout"},
      {kPlan + "plan.scheduler=greedy plan.split_kv=true", "scheduler greedy knows no split-KV"},
      {kPlan + "plan.scheduler=greedy plan.spread=true", "scheduler greedy knows no"},
      {kPlan + "plan.scheduler=wlb plan.layout=sequential",
       "scheduler wlb has a layout of its own, wlb"},
      {kPlan + "plan.layout=wlb plan.scheduler=greedy",
       "layout wlb gives workers uneven tokens, which scheduler greedy does not allow"},
      {kPlan + "servers.capacity=1,2,3,a", "servers.capacity = 1,2,3,a: not whole numbers"},
      {kPlan + "servers.capacity=1", "servers.capacity = 1: 1 numbers for 2 servers"},
      {kPlan + "servers.capacity=0,0", "capacities add up to 0"},
      {kPlan + "servers.capacity=1,2000000000",
       "servers.capacity = 2000000000: must be at most 1000000000"},
      {kPlan + "--workers 65536 servers.dedicated=1", "512 tokens on 65537 servers; at most"},
      {kPlan + "plan.tolerance=nan", "plan.tolerance"},
      {kPlan + "model.num_attention_heads=3", "is not divisible by model.num_key_value_heads = 2"},
      {kPlan + "plan.max_tokens_per_worker=100",
       "512 tokens do not fit 2 workers of at most 100 tokens"},
      {kLarge + "plan.max_memory_gib=0.001", "plan.max_memory_gib = 0.001"},
      {"distca plan --lengths lengths.json --workers 65536 batch.nano_batch_tokens=1073741824 "
       "model.num_attention_heads=16384 model.head_dim=1024",
       "are more than can be counted"},
      {kPlan + "--compare --out new.json", "--out"},
      {kPlan + "--json --summary-json", "--summary-json"},
      {kPlan + "--program 0 --json", "--json"},
      {kPlan + "--program 0 --compare", "--compare"},
      {kPlan + "--program 2", "--program 2: the run has ranks 0 to 1"},
      {kPlan + "--program -1", "--program"},
      {kPlan + "--program", "--program"},
      {kLarge + "--program 0 model.num_hidden_layers=16384 batch.nano_batches=8",
       "--program looks at the programs of all 8 ranks"},
  };
}

std::vector<BadInput> bad_pipeline_plans() {
  const std::string two = "parallel.pipeline_model_parallel_size=2 ";
  return {
      {kPlan + two + "--json", "a pipeline plans ticks: leave them out"},
      {kPlan + two + "--out new.json", "a pipeline plans ticks: leave them out"},
      {kPlan + two + "--compare --out new.json", "--compare excludes --out"},
      {kPlan + two + "--workers 3", "3 workers cannot be divided over the stages"},
      {kPlan + two + "model.num_hidden_layers=1", "every stage needs one"},
      {kPlan + two + "--program 4", "--program 4: the run has ranks 0 to 3"},
  };
}

}  // namespace

std::vector<BadInput> bad_plans() {
  std::vector<BadInput> rows = bad_plan_files();
  for (const auto& table : {bad_traces, bad_reports, bad_simulations, bad_plan_options,
                            bad_best_settings, bad_pipeline_plans}) {
    for (BadInput& row : table()) rows.push_back(std::move(row));
  }
  for (const std::string& command :
       {std::string("distca data show data/text"), std::string("distca data show data/text --json"),
        std::string("distca --help"), std::string("distca --version"), kPlan, kPlan + "--json",
        kPlan + "--summary-json", kLarge + "--program 0"})
    rows.push_back({command + " > /dev/full", "stdout: No space left on device", "", 1});
  return rows;
}

}  // namespace distca::testing
