// Steps that compute: operations have the prices that were measured before the rounds.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "bench/real_settings.h"
#include "bench/recorded_lines_testing.h"
#include "bench/swapped_plan_testing.h"
#include "bench/training_ways.h"
#include "distca/base/error.h"
#include "distca/base/statistics.h"

namespace distca::bench {
namespace {

/// Seconds a FLOP, by pass.
struct FlopSeconds {
  std::array<double, 2> linear{}, attention{}, ends{};  // [pass]; ends: the embedding and the loss
};

RatePrices prices_of(const std::vector<FlopSeconds>& of_ranks, const ThreadRates& thread) {
  return RatePrices(
      [of_ranks](int rank, const Op& op) {
        const FlopSeconds& rates = of_ranks[static_cast<size_t>(rank)];
        const auto pass = static_cast<size_t>(op.pass);
        switch (op.kind) {
          case OpKind::kPreAttention:
          case OpKind::kPostAttention:
          case OpKind::kWeightGradient:
            return rates.linear[pass] * op.flops;
          case OpKind::kCoreAttention:
            return rates.attention[pass] * op.flops;
          case OpKind::kLoss:
            return rates.ends[pass] * op.flops;
          default:
            return 0.;
        }
      },
      thread);
}

bool is_linear(const Op& op) {
  return op.kind == OpKind::kPreAttention || op.kind == OpKind::kPostAttention;
}
bool is_attention(const Op& op) { return op.kind == OpKind::kCoreAttention; }
bool is_loss(const Op& op) { return op.kind == OpKind::kLoss; }

double flops_of(const Program& program, Pass pass, bool (*counts)(const Op&)) {
  double flops = 0;
  for (const Op& op : program.ops) flops += op.pass == pass && counts(op) ? op.flops : 0;
  return flops;
}

constexpr std::array kPasses{Pass::kForward, Pass::kBackward};

// --- pipeline ---

/// The recordings have these; the settings of bench/pipeline have become shorter since.
constexpr std::array kRecordedSettings{
    RealSetting{"attention over 0.40", 4, 512, 8192, 3072, true},
    RealSetting{"attention near 0.25", 4, 1152, 4096, 768, false}};

MeasuredSpeeds speeds_of(const Json& line) {
  MeasuredSpeeds speeds{.linear_ns = line["linear_ns"],
                        .attention_ns = line["attention_ns"],
                        .bytes_per_us = line["bytes_per_us"]};
  const auto ps = [](const std::array<double, 2>& ns) {
    return std::llround(1e3 * (ns[0] + ns[1]));
  };
  speeds.speed = {.linear_ps_per_token = ps(speeds.linear_ns),
                  .attention_ps_per_kload = ps(speeds.attention_ns)};
  for (size_t stage = 0; stage < speeds.ends.size(); ++stage) {
    speeds.ends[stage] = {.forward_ps_per_token = line["ends_ps"][stage][0],
                          .backward_ps_per_token = line["ends_ps"][stage][1]};
  }
  return speeds;
}

double real_seconds(RealWay way, const LlamaConfig& model, const BatchLengths& batch,
                    const MeasuredSpeeds& speeds) {
  const PipelineParts parts = real_parts(way, model, batch, speeds);
  std::vector<Program> programs;
  for (int rank = 0; rank < kRealStages; ++rank) {
    programs.push_back(step_program(
        model, {},
        parts.part(rank, {.types = exchange_types(model.dtype, /*wide_gradients=*/false),
                          .row_bytes = p2p_bytes(model, 1)}),
        ProgramRequest::Kind::kTrain));
  }
  // The measured speeds are means over the stages of all that each did with the whole batch.
  const auto tokens = static_cast<double>(num_tokens(batch));
  const double kpairs = static_cast<double>(num_pairs(batch)) / 1e3;
  FlopSeconds rates;
  double loss_s = 0;
  for (const Pass pass : kPasses) {
    const auto at = static_cast<size_t>(pass);
    double linear = 0, attention = 0;
    for (const Program& program : programs) {
      linear += flops_of(program, pass, is_linear) / kRealStages;
      attention += flops_of(program, pass, is_attention) / kRealStages;
    }
    rates.linear[at] = 1e-9 * speeds.linear_ns[at] * tokens / linear;
    rates.attention[at] = 1e-9 * speeds.attention_ns[at] * kpairs / attention;
    const EmbeddingHeadTime& end = speeds.ends.back();
    loss_s += 1e-12 * tokens *
              static_cast<double>(at == 0 ? end.forward_ps_per_token : end.backward_ps_per_token);
  }
  // Forward of the loss does the work of backward, too.
  rates.ends[0] = loss_s / flops_of(programs.back(), Pass::kForward, is_loss);
  return seconds_of(programs, prices_of({kRealStages, rates}, assumed_rates()),
                    assumed_wire(1'000'000 * speeds.bytes_per_us));
}

// --- overlap ---

/// A setting, as bench/report.py prints it.
struct OverlapTable {
  std::string name;
  double mb_per_s = 0;  // 0 means no limit
  SwappedBatch batch;
  double wire_mb_per_s = 0, sent_mib = 0, core_ms = 0;
  std::map<std::string, double>
      ms;  // times of operations ("forward attention") and ways ("ping-pong")
};

/// Reads what it knows of a line.
void read_line(const std::string& line, OverlapTable& table) {
  int swapped = 0, tokens = 0;
  double a = 0, b = 0, c = 0;
  std::array<char, 32> pass{}, under{};
  if (std::sscanf(line.c_str(),
                  "%d of %d tokens swapped a worker and nano-batch; %lf MiB sent a worker and "
                  "step; wire %lf",
                  &swapped, &tokens, &a, &b) == 4) {
    table.batch = {.home_tokens = tokens - swapped, .swapped_tokens = swapped};
    table.sent_mib = a;
    table.wire_mb_per_s = b;
  } else if (std::sscanf(line.c_str(),
                         "(a step's bytes: %lf ms); exchanges alone %lf ms, taking %lf ms of the "
                         "core",
                         &a, &b, &c) == 3) {
    table.core_ms = c;
  } else if (std::sscanf(line.c_str(), "%*s %31s %lf %31s", pass.data(), &a, under.data()) == 3 &&
             (std::string(under.data()) == "post" || std::string(under.data()) == "attend")) {
    const bool is_linear = std::string(under.data()) == "post";
    const size_t behind = line.find(is_linear ? "post and pre" : "attend");
    table.ms[fmt::format("{} {}", pass.data(), is_linear ? "linear" : "attention")] =
        std::stod(line.substr(behind + (is_linear ? 12 : 6)));
  } else {
    for (const std::string way : {"blocking", "overlap", "ping-pong"}) {
      if (line.starts_with(way + "  ")) table.ms[way] = std::stod(line.substr(way.size()));
    }
  }
}

std::vector<OverlapTable> overlap_tables(const std::filesystem::path& report) {
  std::ifstream file(report);
  if (!file) throw Error(ErrorKind::kData, "{} cannot be read", report.string());
  std::vector<OverlapTable> tables;
  for (std::string line; std::getline(file, line);) {
    line.erase(0, line.find_first_not_of(' '));
    if (line.starts_with("## ")) {
      OverlapTable& table = tables.emplace_back();
      table.name = line.substr(3);
      std::sscanf(table.name.c_str(), "%lf MB/s", &table.mb_per_s);
    } else if (!tables.empty()) {
      read_line(line, tables.back());
    }
  }
  return tables;
}

/// 8 layers whose core attention and linear work take about as long.
LlamaConfig overlap_model() {
  return {.vocab_size = 256,
          .hidden_size = 256,
          .intermediate_size = 256,
          .num_hidden_layers = 8,
          .num_attention_heads = 8,
          .num_key_value_heads = 2,
          .head_dim = 64};
}

/// The measured times are those of a layer and nano-batch.
double overlap_seconds(const OverlapTable& table, Overlap overlap) {
  constexpr int kNanoBatches = 2;
  const LlamaConfig model = overlap_model();
  const Plan plan = swapped_plan(table.batch, model.shape().attention);
  const StepArm arm{.step = {.overlap = overlap}};
  std::vector<Program> programs;
  for (int rank = 0; rank < plan.cluster.num_servers(); ++rank)
    programs.push_back(
        arm_program(arm, model, std::vector<Plan>(kNanoBatches, plan), rank, /*gradients=*/{}));
  FlopSeconds rates;
  for (const Pass pass : kPasses) {
    const auto at = static_cast<size_t>(pass);
    const std::string name = distca::pass_name(pass);
    const double times = 1e-3 * kNanoBatches * static_cast<double>(model.num_hidden_layers);
    rates.linear[at] =
        times * table.ms.at(name + " linear") / flops_of(programs[0], pass, is_linear);
    rates.attention[at] =
        times * table.ms.at(name + " attention") / flops_of(programs[0], pass, is_attention);
  }
  rates.ends[0] = rates.linear[0];
  ThreadRates thread = assumed_rates();
  const double bytes = 2 * table.sent_mib * (1 << 20);  // sent and received
  thread.core_bytes_per_s = std::llround(bytes / (1e-3 * table.core_ms));
  const int64_t burst = table.mb_per_s > 0 ? recorded_burst(table.mb_per_s) : 0;
  return seconds_of(programs, prices_of({programs.size(), rates}, thread),
                    assumed_wire(std::llround(1e6 * table.wire_mb_per_s), burst));
}

// --- training ---

/// [batch] The documents that a source had.
std::vector<BatchLengths> lengths_in(const std::filesystem::path& path, const std::string& source) {
  for (const RecordedBlock& block : recorded_blocks(path, "source")) {
    if (block.head["name"] == source) return block.head["batches"];
  }
  throw Error(ErrorKind::kData, "{} has no source {}", path.string(), source);
}

Speeds training_speeds(const Json& line) {
  Speeds speeds{.from_step = line["from_step"], .bytes_per_us = line["bytes_per_us"]};
  for (size_t rank = 0; rank < line["linear_ps_per_token"].size(); ++rank) {
    speeds.ranks.push_back({.linear_ps_per_token = line["linear_ps_per_token"][rank],
                            .attention_ps_per_kload = line["attention_ps_per_kload"][rank]});
  }
  return speeds;
}

double training_seconds(const ContestOptions& options, const StepArm& arm,
                        const BatchLengths& batch, const Speeds& speeds) {
  const int workers = options.shape.workers;
  const std::vector<Plan> plans = plan_step(arm, options.model, batch, workers);
  std::vector<Program> programs;
  std::vector<FlopSeconds> rates;
  for (int rank = 0; rank < workers; ++rank) {
    programs.push_back(arm_program(
        arm, options.model, plans, rank,
        gradient_exchange(options.model, {}, whole_model(options.model), rank, workers)));
    const auto of_passes = [&](bool (*counts)(const Op&)) {
      return flops_of(programs.back(), Pass::kForward, counts) +
             flops_of(programs.back(), Pass::kBackward, counts);
    };
    int64_t tokens = 0, pairs = 0;
    for (const Plan& plan : plans) {
      tokens += plan.layout.num_tokens(rank);
      pairs += plan.load[static_cast<size_t>(rank)].pairs;
    }
    const RankSpeed& speed = speeds.ranks[static_cast<size_t>(rank)];
    // The measured time of a token has the loss in it.
    const double linear = 1e-12 * static_cast<double>(speed.linear_ps_per_token * tokens) /
                          (of_passes(is_linear) + of_passes(is_loss));
    const double attention = pairs == 0
                                 ? 0
                                 : 1e-15 * static_cast<double>(speed.attention_ps_per_kload) *
                                       static_cast<double>(pairs) / of_passes(is_attention);
    rates.push_back({.linear = {linear, linear},
                     .attention = {attention, attention},
                     .ends = {linear, linear}});
  }
  return seconds_of(programs, prices_of(rates, assumed_rates()),
                    assumed_wire(1'000'000 * speeds.bytes_per_us));
}

/// The documents are those that were measured: rounds say how many FLOPs a step had.
void check_batches(const ContestOptions& options, const RecordedBlock& block,
                   const std::vector<BatchLengths>& batches) {
  size_t batch = kChoiceRounds + 2;
  for (const Json& line : block.lines) {
    if (line["line"] != "round") continue;
    const double flops = line["arms"][0]["flops"];
    const double ours =
        options.model.train_flops(num_tokens(batches.at(batch)), num_pairs(batches.at(batch)));
    if (std::fabs(ours / flops - 1) > 1e-9) {
      throw Error(ErrorKind::kData, "source {}: batch {} has {} FLOPs, and {} when it was measured",
                  block.head["name"].get<std::string>(), batch, ours, flops);
    }
    ++batch;
  }
}

}  // namespace

std::vector<RecordedStep> recorded_real(const std::filesystem::path& path) {
  std::vector<RecordedStep> steps;
  for (const RecordedBlock& block : recorded_blocks(path, "setting")) {
    const auto setting = std::ranges::find_if(
        kRecordedSettings, [&](const RealSetting& one) { return block.head["name"] == one.name; });
    DISTCA_CHECK(setting != kRecordedSettings.end(), "{}", block.head.dump());
    const LlamaConfig model = real_model(*setting);
    const MeasuredSpeeds speeds = speeds_of(block.before.back());
    for (const RealWay way : {kOurs, kPaper, kPairs, kSingles, kEvenPacked}) {
      std::map<int, double> predicted;  // [batch]
      std::vector<double> measured, ratios;
      for (const Json& round : block.rounds_of(kWayNames[way])) {
        const auto [entry, is_new] = predicted.try_emplace(round["batch"].get<int>());
        if (is_new)
          entry->second = real_seconds(way, model, real_batch(*setting, entry->first), speeds);
        measured.push_back(round["arms"][kWayNames[way]]["s"]);
        ratios.push_back(entry->second / measured.back());
      }
      steps.push_back({.name = fmt::format("pipeline real: {}: {}", setting->name, kWayNames[way]),
                       .measured_s = median(measured),
                       .predicted_s = median(ratios) * median(measured)});
    }
  }
  return steps;
}

std::vector<RecordedStep> recorded_overlap(const std::filesystem::path& report) {
  const std::array<std::pair<const char*, Overlap>, 3> ways{{{"blocking", Overlap::kNone},
                                                             {"overlap", Overlap::kWithin},
                                                             {"ping-pong", Overlap::kPingPong}}};
  std::vector<RecordedStep> steps;
  for (const OverlapTable& table : overlap_tables(report)) {
    for (const auto& [name, overlap] : ways) {
      steps.push_back({.name = fmt::format("overlap: {}: {}", table.name, name),
                       .measured_s = 1e-3 * table.ms.at(name),
                       .predicted_s = overlap_seconds(table, overlap)});
    }
  }
  return steps;
}

std::vector<RecordedStep> recorded_training(const std::filesystem::path& path,
                                            const std::filesystem::path& lengths) {
  const ContestOptions options = small_contest();
  std::vector<RecordedStep> steps;
  std::optional<Speeds> speeds;
  for (const RecordedBlock& block : recorded_blocks(path, "source")) {
    for (const Json& line : block.before) {
      if (line["line"] == "speeds") speeds = training_speeds(line);
    }
    DISTCA_CHECK(speeds.has_value(), "{} has no speeds", path.string());
    const std::string source = block.head["name"];
    const std::vector<BatchLengths> batches = lengths_in(lengths, source);
    check_batches(options, block, batches);
    const BatchLengths equal =
        typical_equal_documents(options.shape, {.name = source, .what = "", .batches = batches});
    for (const Contestant& who : contestants(options, *speeds)) {
      for (const StepArm& way : who.ways) {
        const auto tried = std::ranges::find_if(block.lines, [&](const Json& line) {
          return line["line"] == "tried" && line["arm"] == who.name && line["way"] == way.name;
        });
        DISTCA_CHECK(tried != block.lines.end(), "{}: {}: {}", source, who.name, way.name);
        std::vector<double> predicted;
        for (size_t round = 0; round < kChoiceRounds; ++round) {
          predicted.push_back(training_seconds(
              options, way, who.equal_documents ? equal : batches[round + 1], *speeds));
        }
        steps.push_back({.name = fmt::format("training: {}: {}: {}", source, who.name, way.name),
                         .measured_s = median((*tried)["seconds"].get<std::vector<double>>()),
                         .predicted_s = median(predicted)});
      }
    }
  }
  return steps;
}

}  // namespace distca::bench
