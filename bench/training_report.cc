#include "bench/training_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/training_judge.h"
#include "distca/base/build_info.h"
#include "distca/base/json.h"
#include "distca/base/machine.h"
#include "distca/base/statistics.h"
#include "distca/base/text.h"

namespace distca::bench {
namespace {

std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }
std::string percents(const Estimate& share) {
  return fmt::format("{:+.2f} ({:+.2f} .. {:+.2f})", 100 * share.median, 100 * share.low,
                     100 * share.high);
}
std::string interval(const Estimate& estimate) {
  return fmt::format("{:.3f} .. {:.3f}", estimate.low, estimate.high);
}

double median_of(const std::vector<StepFigures>& rounds, double StepFigures::*member) {
  std::vector<double> values;
  for (const StepFigures& round : rounds) values.push_back(round.*member);
  return median(values);
}

/// GFLOP/s over the measured peak of all workers, each round's.
double peak_share(const ArmResult& arm, double peak_gflops) {
  return median(quotient(arm.flops, seconds_of(arm.rounds))) / 1e9 / peak_gflops;
}

Figure ratio_of(const SourceResult& source, size_t arm) {
  return times_ours(seconds_of(source.arms[arm].rounds), seconds_of(source.arms[kOurs].rounds),
                    seconds_of(source.arms[kOursAgain].rounds));
}

IdleJudgement judgement_of(const SourceResult& source) {
  const auto idle = [&](Who who) { return idle_shares_of(source.arms[who].rounds); };
  return judge_idle(idle(kOurs), idle(kOursAgain), idle(kEqualDocuments));
}

bool is_rival(size_t arm) { return arm >= kFirstRival; }

void print_head(const TrainingReport& report) {
  const ContestOptions& options = report.options;
  const LlamaConfig& model = options.model;
  fmt::print(
      "{}, {} workers of 1 thread, each pinned to a core; distca {}, PyTorch {}\n"
      "{} x {} tokens a step, {} layers, hidden {}, heads {}:{}, head_dim {}, {}; {} rounds\n"
      "Peak of all workers at once: {:.0f} GFLOP/s of multiply-adds, measured.\n"
      "A worker may hold at most {} times the mean number of tokens, under every arm.\n",
      cpu_name(), report.workers, build_info::kCommit, build_info::kTorch,
      options.shape.nano_batches, with_thousands(options.shape.nano_batch_tokens),
      model.num_hidden_layers, model.hidden_size, model.num_attention_heads,
      model.num_key_value_heads, model.head_dim, short_name(model.dtype), options.rounds,
      report.peak_gflops, kMemoryCap);
  const Speeds& speeds = report.speeds;
  for (size_t rank = 0; rank < speeds.ranks.size(); ++rank) {
    const RankSpeed& speed = speeds.ranks[rank];
    fmt::print(
        "Worker {}, forward and backward of all layers: {:.1f} us a token, core attention {:.0f} "
        "ns "
        "a thousand {}.\n",
        rank, 1e-6 * static_cast<double>(speed.linear_ps_per_token),
        1e-3 * static_cast<double>(speed.attention_ps_per_kload),
        report.options.profile ? "ns of the profile" : "pairs");
  }
  fmt::print("A worker sends {} MB/s while the other does.\n", speeds.bytes_per_us);
  if (!report.check) return;
  const RivalCheck& check = *report.check;
  fmt::print(
      "PyTorch DDP: Gloo, documents in order, cut at a worker's end, where a new one begins.\n"
      "Its first step and ours on the same documents: loss {:.7f} and {:.7f}, gradient norm {:.6f} "
      "and {:.6f}; within {:.1e} of each other.\n",
      check.rival_loss, check.loss, check.rival_gradient_norm, check.gradient_norm, check.bound);
}

void print_choices(const SourceResult& source) {
  Table table({"way tried", "step ms", "", ""});
  for (const ArmResult& arm : source.arms) {
    for (const ArmResult::Tried& tried : arm.tried) {
      table.add_row({arm.name, fmt::format("{:.0f}", 1e3 * tried.seconds), tried.how,
                     tried.how == arm.how ? "taken" : ""});
    }
  }
  fmt::print("{}\n", table.to_string());
}

void print_source(const TrainingReport& report, const SourceResult& source) {
  fmt::print("\n{}: {}; control: documents of {} tokens\n\n", source.name, source.what,
             with_thousands(source.equal_tokens));
  print_choices(source);
  Table table({"arm", "step ms", "tokens/s", "idle %", "core idle %", "% of peak", "times ours",
               "95 % interval", "way"});
  const auto tokens = static_cast<double>(report.options.shape.tokens());
  for (size_t i = 0; i < source.arms.size(); ++i) {
    const ArmResult& arm = source.arms[i];
    const double seconds = median_of(arm.rounds, &StepFigures::seconds);
    std::vector<std::string> cells = {arm.name,
                                      fmt::format("{:.1f}", 1e3 * seconds),
                                      with_thousands(static_cast<int64_t>(tokens / seconds)),
                                      percent(median_of(arm.rounds, &StepFigures::idle_share)),
                                      percent(median_of(arm.rounds, &StepFigures::core_idle_share)),
                                      percent(peak_share(arm, report.peak_gflops)),
                                      "",
                                      "",
                                      arm.how};
    if (is_rival(i) || i == kOursAgain) {
      const Figure figure = ratio_of(source, i);
      cells[6] = fmt::format("{:.3f}", figure.reached.median);
      cells[7] = interval(figure.reached);
      if (is_rival(i)) cells[8] += fmt::format("; {}", conclusion(figure));
    }
    table.add_row(cells);
  }
  fmt::print("{}\n", table.to_string());
  if (report.check) {
    const ArmResult &ddp = source.arms.back(), &ours = source.arms[kOurs];
    fmt::print("DDP's cut documents leave it {:.1f} % of our FLOP.\n",
               100 * median(quotient(ddp.flops, ours.flops)));
  }
  const IdleJudgement idle = judgement_of(source);
  fmt::print(
      "Idle, ours less equal documents, in points: {}; ours less ours again: {}; bar {:.0f}: {}\n",
      percents(idle.above), percents(idle.again), 100 * kIdleBar, verdict_name(idle.decision));
}

Json to_json(const Estimate& estimate) {
  return {{"median", estimate.median}, {"low", estimate.low}, {"high", estimate.high}};
}

Json to_json(const TrainingReport& report, const SourceResult& source) {
  Json arms = Json::array();
  for (size_t i = 0; i < source.arms.size(); ++i) {
    const ArmResult& arm = source.arms[i];
    Json rounds = Json::array(), tried = Json::array();
    for (const StepFigures& round : arm.rounds) {
      rounds.push_back({{"seconds", round.seconds},
                        {"idle_share", round.idle_share},
                        {"core_idle_share", round.core_idle_share}});
    }
    for (const ArmResult::Tried& way : arm.tried)
      tried.push_back({{"way", way.how}, {"seconds", way.seconds}});
    const Figure figure = ratio_of(source, i);
    arms.push_back({{"name", arm.name},
                    {"way", arm.how},
                    {"tried", tried},
                    {"rounds", rounds},
                    {"flops", arm.flops},
                    {"peak_share", peak_share(arm, report.peak_gflops)},
                    {"times_ours", to_json(figure.reached)},
                    {"conclusion", is_rival(i) ? conclusion(figure) : ""}});
  }
  const IdleJudgement idle = judgement_of(source);
  return {{"name", source.name},
          {"what", source.what},
          {"equal_document_tokens", source.equal_tokens},
          {"arms", arms},
          {"idle_above_control", to_json(idle.above)},
          {"idle_again", to_json(idle.again)},
          {"idle_bar", kIdleBar},
          {"idle_verdict", verdict_name(idle.decision)}};
}

}  // namespace

int num_missed(const TrainingReport& report) {
  return static_cast<int>(std::ranges::count_if(report.sources, [](const SourceResult& source) {
    return judgement_of(source).decision == Decision::kMissed;
  }));
}

void print_tables(const TrainingReport& report) {
  print_head(report);
  for (const SourceResult& source : report.sources) print_source(report, source);
  for (const std::string& why : report.absent) fmt::print("\nnot measured: {}\n", why);
  fmt::print(
      "\nstep: from a common start to the last worker's update, median over rounds.\n"
      "idle: mean over workers of the time in waits for exchanges and, at the sum of gradients, "
      "for "
      "the later worker, over the step.\n"
      "core idle: what of a worker's core no thread of it used.\n"
      "% of peak: FLOP of matrix products and of allowed pairs, over the peak.\n");
}

void print_json(const TrainingReport& report) {
  Json sources = Json::array();
  for (const SourceResult& source : report.sources) sources.push_back(to_json(report, source));
  Json all = {{"machine", cpu_name()},
              {"commit", build_info::kCommit},
              {"torch", build_info::kTorch},
              {"workers", report.workers},
              {"rounds", report.options.rounds},
              {"peak_gflops", report.peak_gflops},
              {"sources", sources},
              {"absent", report.absent}};
  if (report.check) {
    const RivalCheck& check = *report.check;
    all["rival_check"] = {{"loss", check.loss},
                          {"rival_loss", check.rival_loss},
                          {"gradient_norm", check.gradient_norm},
                          {"rival_gradient_norm", check.rival_gradient_norm},
                          {"bound", check.bound}};
  }
  fmt::print("{}\n", all.dump());
}

}  // namespace distca::bench
