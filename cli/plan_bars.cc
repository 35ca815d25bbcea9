#include "cli/plan_bars.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <vector>

#include "distca/base/text.h"
#include "distca/plan/exchange.h"

namespace distca::cli {
namespace {

constexpr size_t kMostServersShown = 32;
constexpr size_t kShownByLoad = 5;   // of more: the most loaded before, and after
constexpr size_t kShownByBytes = 3;  // the largest senders, and receivers

/// One quantity of every server before and after, as bars on one scale.
class BarTable {
 public:
  BarTable(const std::vector<size_t>& servers, const std::string& unit)
      : servers_(servers), table_({"server", unit + " before", "", "after", ""}) {}

  std::string to_string(const std::function<double(size_t)>& before,
                        const std::function<double(size_t)>& after, const char* format) {
    constexpr int kBarWidth = 24;
    double most = 1e-9;
    for (const size_t server : servers_) most = std::max({most, before(server), after(server)});
    for (const size_t server : servers_) {
      const double was = before(server), is = after(server);
      table_.add_row({std::to_string(server), bar(was / most, kBarWidth),
                      fmt::format(fmt::runtime(format), was), bar(is / most, kBarWidth),
                      fmt::format(fmt::runtime(format), is)});
    }
    return table_.to_string();
  }

 private:
  const std::vector<size_t>& servers_;
  Table table_;
};

/// Load over the share that the capacities give; of a server of capacity 0 over the mean of those
/// that have one.
class LoadShare {
 public:
  LoadShare(const Plan& plan, int64_t ServerLoad::*figure) : plan_(plan), figure_(figure) {
    for (const ServerLoad& load : plan.load) total_ += static_cast<double>(load.*figure);
    for (const int64_t capacity : plan.cluster.capacity) {
      capacity_ += static_cast<double>(capacity);
      serving_ += capacity > 0 ? 1 : 0;
    }
  }
  double operator()(size_t server) const {
    const auto load = static_cast<double>(plan_.load[server].*figure_);
    const auto capacity = static_cast<double>(plan_.cluster.capacity[server]);
    const double share = capacity > 0 ? capacity / capacity_ : 1 / serving_;
    return total_ == 0 ? 0 : load / (total_ * share);
  }

 private:
  const Plan& plan_;
  int64_t ServerLoad::*figure_;
  double total_ = 0, capacity_ = 0, serving_ = 0;
};

int64_t bytes_in(const ServerLoad& load) { return load.receive_bytes + load.o_receive_bytes; }
int64_t bytes_out(const ServerLoad& load) { return load.send_bytes + load.o_send_bytes; }

/// All servers, or of many the most loaded ones before and after and those that send and receive
/// most.
std::vector<size_t> servers_shown(const Plan& before, const Plan& after, const LoadShare& was,
                                  const LoadShare& is) {
  std::vector<size_t> servers(after.load.size());
  std::iota(servers.begin(), servers.end(), size_t{0});
  if (servers.size() <= kMostServersShown) return servers;
  std::set<size_t> shown;
  const auto show_most = [&](size_t count, auto value) {
    std::stable_sort(servers.begin(), servers.end(),
                     [&](size_t a, size_t b) { return value(a) > value(b); });
    shown.insert(servers.begin(), servers.begin() + static_cast<int64_t>(count));
    std::sort(servers.begin(), servers.end());
  };
  show_most(kShownByLoad, was);
  show_most(kShownByLoad, is);
  show_most(kShownByBytes, [&](size_t server) { return bytes_out(after.load[server]); });
  show_most(kShownByBytes, [&](size_t server) { return bytes_in(after.load[server]); });
  fmt::print(
      "{} of {} servers: the most loaded before and after, those that send and receive most\n\n",
      shown.size(), before.load.size());
  return {shown.begin(), shown.end()};
}

}  // namespace

std::string mebibytes(int64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20));
}

Plan plain_packing(const Plan& plan, const std::shared_ptr<const AttentionProfile>& profile) {
  PlanRequest request{plan.nano_batch, plan.cluster, plan.shape, {.scheduler = "local"}, profile};
  request.cluster.max_tokens_per_worker = request.cluster.max_send_bytes =
      request.cluster.max_receive_bytes = request.cluster.max_memory_bytes = 0;
  return make_plan(request);
}

int64_t ServerLoad::*balanced_figure(const Plan& before, const Plan& after) {
  const bool by_time = before.options.by_time() && after.options.by_time();
  return by_time ? &ServerLoad::time_ns : &ServerLoad::pairs;
}

void print_bars(const Plan& before, const Plan& after) {
  int64_t ServerLoad::*figure = balanced_figure(before, after);
  const LoadShare was(before, figure), is(after, figure);
  const std::vector<size_t> servers = servers_shown(before, after, was, is);
  const auto print = [&](const char* unit, const char* format, auto value) {
    const auto of_before = [&](size_t server) {
      return static_cast<double>(value(before, server));
    };
    const auto of_after = [&](size_t server) { return static_cast<double>(value(after, server)); };
    fmt::print("{}\n", BarTable(servers, unit).to_string(of_before, of_after, format));
  };
  fmt::print("{}", BarTable(servers, figure == &ServerLoad::time_ns ? "time (1: its share)"
                                                                    : "pairs (1: its share)")
                       .to_string(was, is, "{:.3f}"));
  const auto& capacity = after.cluster.capacity;
  const bool idle = std::find(capacity.begin(), capacity.end(), 0) != capacity.end();
  fmt::print("{}\n",
             idle ? "a server of capacity 0 has no share: 1 is the mean of the others\n" : "");
  print("tokens", "{:.0f}", [](const Plan& plan, size_t server) {
    const bool holds = server < plan.layout.workers.size();
    return holds ? plan.layout.num_tokens(static_cast<int>(server)) : 0;
  });
  constexpr double kMib = 1 << 20;
  print("memory (MiB)", "{:.1f}", [](const Plan& plan, size_t server) {
    return static_cast<double>(plan.load[server].memory_bytes) / kMib;
  });
  print("in: Q, K, V, O (MiB)", "{:.1f}", [](const Plan& plan, size_t server) {
    return static_cast<double>(bytes_in(plan.load[server])) / kMib;
  });
  print("out: Q, K, V, O (MiB)", "{:.1f}", [](const Plan& plan, size_t server) {
    return static_cast<double>(bytes_out(plan.load[server])) / kMib;
  });
}

std::string exchange_matrix(const Plan& plan) {
  const PlanIndex index(plan);
  const size_t ranks = plan.load.size();
  std::vector<std::string> header = {"from \\ to"};
  for (size_t to = 0; to < ranks; ++to) header.push_back(std::to_string(to));
  Table table(header);
  for (size_t from = 0; from < ranks; ++from) {
    std::vector<std::string> row = {std::to_string(from)};
    row.resize(ranks + 1, "-");
    for (const PeerTransfer& transfer : index.exchange(static_cast<int>(from)).sends) {
      row[transfer.peer + 1] = mebibytes(transfer.q_tokens * plan.shape.q_token_bytes() +
                                         transfer.kv_tokens * plan.shape.kv_token_bytes());
    }
    table.add_row(row);
  }
  return table.to_string();
}

}  // namespace distca::cli
