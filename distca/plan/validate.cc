#include "distca/plan/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace distca {
namespace {

/// A segment that may be looked at: its document exists and its range lies in it.
struct Held {
  Range tokens;
  int worker;
};

std::string words(const Range& range) { return fmt::format("[{}, {})", range.begin, range.end); }

class Validator {
 public:
  Validator(const Plan& plan, const ValidateOptions& options)
      : plan_(plan),
        options_(options),
        held_(plan.nano_batch.documents.size()),
        tasks_(plan.nano_batch.documents.size()) {}

  std::vector<std::string> run() {
    if (!shapes_right()) return violations_;
    check_segments();
    for (size_t document = 0; document < held_.size(); ++document) check_homes(document);
    check_tokens();
    for (size_t i = 0; i < plan_.tasks.size(); ++i) check_task(i);
    for (size_t document = 0; document < tasks_.size(); ++document) check_pairs(document);
    if (violations_.empty()) check_load();  // of a plan whose tasks make sense
    if (violations_.size() > options_.max_violations) {
      const size_t more = violations_.size() - options_.max_violations;
      violations_.resize(options_.max_violations);
      violations_.push_back(fmt::format("and {} more", more));
    }
    return violations_;
  }

 private:
  template <typename... Args>
  void report(fmt::format_string<Args...> format, Args&&... args) {
    violations_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  int64_t length(int64_t document) const { return plan_.nano_batch.documents[document].length; }
  int num_ranks() const { return std::max(plan_.cluster.num_workers, plan_.cluster.num_servers()); }

  bool shapes_right() {
    const auto& documents = plan_.nano_batch.documents;
    for (size_t i = 0; i < documents.size(); ++i) {
      if (documents[i].id != static_cast<int64_t>(i))
        report("document {} has id {}", i, documents[i].id);
      if (documents[i].length < 0) report("document {} has {} tokens", i, documents[i].length);
    }
    if (plan_.layout.num_workers() != plan_.cluster.num_workers) {
      report("the layout has {} workers, the cluster {}", plan_.layout.num_workers(),
             plan_.cluster.num_workers);
    }
    if (plan_.load.size() != static_cast<size_t>(num_ranks())) {
      report("load of {} ranks, there are {}", plan_.load.size(), num_ranks());
    }
    return violations_.empty();
  }

  /// A range of a document that exists, not empty; with cuts where agreed.
  bool check_range(const std::string& whose, int64_t document, const Range& range) {
    if (document < 0 || document >= static_cast<int64_t>(held_.size())) {
      report("{}: there is no document {}", whose, document);
      return false;
    }
    if (range.begin < 0 || range.begin >= range.end || range.end > length(document)) {
      report("{}: {} is not a range of document {} with {} tokens", whose, words(range), document,
             length(document));
      return false;
    }
    if (options_.cuts) {
      for (const int64_t cut : {range.begin, range.end}) {
        if (cut % 128 != 0 && cut != length(document)) {
          report("{}: document {} is cut at {}, neither a multiple of 128 nor its end {}", whose,
                 document, cut, length(document));
        }
      }
    }
    return true;
  }

  void check_segments() {
    for (int worker = 0; worker < plan_.layout.num_workers(); ++worker) {
      for (const Segment& segment : plan_.layout.workers[worker]) {
        if (check_range(fmt::format("layout of worker {}", worker), segment.document,
                        segment.tokens)) {
          held_[segment.document].push_back({segment.tokens, worker});
        }
      }
    }
  }

  void check_homes(size_t document) {
    auto& held = held_[document];
    std::sort(held.begin(), held.end(),
              [](const Held& a, const Held& b) { return a.tokens.begin < b.tokens.begin; });
    int64_t seen = 0;
    for (const Held& segment : held) {
      if (segment.tokens.begin > seen) {
        report("document {}: no worker holds {}", document, words({seen, segment.tokens.begin}));
      } else if (segment.tokens.begin < seen) {
        report("document {}: {} is held twice", document,
               words({segment.tokens.begin, std::min(seen, segment.tokens.end)}));
      }
      seen = std::max(seen, segment.tokens.end);
    }
    if (seen < length(document)) {
      report("document {}: no worker holds {}", document, words({seen, length(document)}));
    }
  }

  void check_tokens() {
    const int64_t workers = plan_.cluster.num_workers;
    const int64_t cap = plan_.cluster.max_tokens_per_worker;
    std::vector<int64_t> tokens(workers, 0);
    for (const auto& held : held_) {
      for (const Held& segment : held)
        tokens[segment.worker] += segment.tokens.end - segment.tokens.begin;
    }
    const int64_t total = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
    for (int64_t worker = 0; worker < workers; ++worker) {
      if (options_.even_tokens && std::abs(tokens[worker] * workers - total) >= 128 * workers) {
        report("worker {} holds {} tokens, the mean is {:.1f}: not within 128", worker,
               tokens[worker], static_cast<double>(total) / static_cast<double>(workers));
      }
      if (cap > 0 && tokens[worker] >= cap + 128) {
        report("worker {} holds {} tokens, the cap is {}", worker, tokens[worker], cap);
      }
    }
  }

  void check_task(size_t index) {
    const Task& task = plan_.tasks[index];
    const std::string whose = fmt::format("task {}", index);
    if (task.server < 0 || task.server >= plan_.cluster.num_servers()) {
      report("{}: there is no server {}, only {}", whose, task.server, plan_.cluster.num_servers());
    }
    if (index > 0 && order(plan_.tasks[index - 1]) > order(task)) {
      report("{}: tasks are not sorted by server, document, q.begin, kv.begin", whose);
    }
    const bool q_right = check_range(whose + " q", task.document, task.q);
    const bool kv_right = check_range(whose + " kv", task.document, task.kv);
    if (!q_right || !kv_right) return;
    if (task.mask == MaskType::kFull && task.kv.end > task.q.begin + 1) {
      report("{}: a full mask on q {} and kv {} lets queries see later keys", whose, words(task.q),
             words(task.kv));
    }
    const auto& held = held_[task.document];
    const bool in_one_segment = std::any_of(held.begin(), held.end(), [&task](const Held& segment) {
      return segment.tokens.begin <= task.q.begin && task.q.end <= segment.tokens.end;
    });
    if (!in_one_segment) {
      report("{}: q {} of document {} does not lie in one segment", whose, words(task.q),
             task.document);
    }
    tasks_[task.document].push_back(&task);
  }
  static std::array<int64_t, 4> order(const Task& task) {
    return {task.server, task.document, task.q.begin, task.kv.begin};
  }

  /// Between two neighbouring edges of query ranges the same tasks are active for every row, so
  /// their key ranges must tile the keys that the last of these rows sees.
  void check_pairs(size_t document) {
    auto& tasks = tasks_[document];
    std::vector<int64_t> edges{0, length(document)};
    for (const Task* task : tasks) edges.insert(edges.end(), {task->q.begin, task->q.end});
    std::sort(edges.begin(), edges.end());
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    std::sort(tasks.begin(), tasks.end(),
              [](const Task* a, const Task* b) { return a->q.begin < b->q.begin; });

    std::vector<const Task*> active;
    size_t next = 0;
    for (size_t i = 0; i + 1 < edges.size(); ++i) {
      const Range rows{edges[i], edges[i + 1]};
      std::erase_if(active, [&rows](const Task* task) { return task->q.end <= rows.begin; });
      while (next < tasks.size() && tasks[next]->q.begin == rows.begin)
        active.push_back(tasks[next++]);
      std::sort(active.begin(), active.end(),
                [](const Task* a, const Task* b) { return a->kv.begin < b->kv.begin; });
      check_rows(document, rows, active);
    }
  }

  void check_rows(size_t document, const Range& rows, const std::vector<const Task*>& active) {
    int64_t seen = 0;
    const auto missing = [&](int64_t end) {
      report("document {}: queries {} x keys {} are computed by no task", document, words(rows),
             words({seen, end}));
    };
    for (const Task* task : active) {
      const int64_t begin = task->kv.begin;
      const int64_t end = std::min(task->kv.end, rows.end);
      if (begin >= end) continue;
      if (begin > seen) missing(begin);
      if (begin < seen) {
        report("document {}: queries {} x keys {} are computed twice", document, words(rows),
               words({begin, std::min(seen, end)}));
      }
      seen = std::max(seen, end);
    }
    if (seen < rows.end) missing(rows.end);
  }

  void check_load() {
    std::vector<ServerLoad> load(num_ranks());
    for (size_t document = 0; document < tasks_.size(); ++document) count_document(document, load);
    for (size_t rank = 0; rank < load.size(); ++rank) {
      const auto compare = [&](const char* what, int64_t claimed, int64_t found) {
        if (claimed != found)
          report("rank {}: {} {} claimed, {} found", rank, what, claimed, found);
      };
      const ServerLoad& claimed = plan_.load[rank];
      compare("pairs", claimed.pairs, load[rank].pairs);
      compare("send_bytes", claimed.send_bytes, load[rank].send_bytes);
      compare("receive_bytes", claimed.receive_bytes, load[rank].receive_bytes);
      compare("o_send_bytes", claimed.o_send_bytes, load[rank].o_send_bytes);
    }
    if (options_.tolerance_ppm) check_tolerance(load);
  }

  void check_tolerance(const std::vector<ServerLoad>& load) {
    double total = 0;
    double capacity = 0;
    for (const ServerLoad& server : load) total += static_cast<double>(server.pairs);
    for (const int64_t share : plan_.cluster.capacity) capacity += static_cast<double>(share);
    const double bound = 1 + static_cast<double>(*options_.tolerance_ppm) * 1e-6;
    for (size_t server = 0; server < load.size(); ++server) {
      const double mean = total * static_cast<double>(plan_.cluster.capacity[server]) / capacity;
      const auto pairs = static_cast<double>(load[server].pairs);
      if (pairs > bound * mean) {
        report("server {}: {} pairs are {:.4f} of its share, more than {:.4f}", server,
               load[server].pairs, pairs / mean, bound);
      }
    }
  }

  /// Tokens of a document between neighbouring edges are alike: one home, read by the same servers.
  void count_document(size_t document, std::vector<ServerLoad>& load) {
    auto& tasks = tasks_[document];
    std::vector<int64_t> edges;
    for (const Held& segment : held_[document]) edges.push_back(segment.tokens.begin);
    edges.push_back(length(document));
    for (const Task* task : tasks) {
      edges.insert(edges.end(), {task->q.begin, task->q.end, task->kv.begin, task->kv.end});
    }
    std::sort(edges.begin(), edges.end());
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    const auto at = [&edges](int64_t position) {
      return std::lower_bound(edges.begin(), edges.end(), position) - edges.begin();
    };

    std::sort(tasks.begin(), tasks.end(),
              [](const Task* a, const Task* b) { return a->server < b->server; });
    std::vector<bool> reads_q(edges.size());
    std::vector<bool> reads_kv(edges.size());
    for (size_t begin = 0, end = 0; begin < tasks.size(); begin = end) {
      const int server = tasks[begin]->server;
      reads_q.assign(edges.size(), false);
      reads_kv.assign(edges.size(), false);
      for (; end < tasks.size() && tasks[end]->server == server; ++end) {
        const Task& task = *tasks[end];
        load[server].pairs += pairs_of(task);
        std::fill(reads_q.begin() + at(task.q.begin), reads_q.begin() + at(task.q.end), true);
        std::fill(reads_kv.begin() + at(task.kv.begin), reads_kv.begin() + at(task.kv.end), true);
      }
      size_t home = 0;
      const auto& held = held_[document];
      for (size_t i = 0; i + 1 < edges.size(); ++i) {
        while (held[home].tokens.end <= edges[i]) ++home;
        if (held[home].worker == server) continue;
        const int64_t tokens = edges[i + 1] - edges[i];
        const int64_t bytes = (reads_q[i] ? tokens * plan_.shape.q_token_bytes() : 0) +
                              (reads_kv[i] ? tokens * plan_.shape.kv_token_bytes() : 0);
        load[held[home].worker].send_bytes += bytes;
        load[server].receive_bytes += bytes;
        if (reads_q[i]) load[server].o_send_bytes += tokens * plan_.shape.o_token_bytes();
      }
    }
  }

  static int64_t pairs_of(const Task& task) {
    const int64_t rows = task.q.end - task.q.begin;
    if (task.mask == MaskType::kFull) return rows * (task.kv.end - task.kv.begin);
    // Pairs below the diagonal: of all rows with keys from `key` on, by the triangle's size.
    const auto from = [&task](int64_t key) {
      const auto triangle = [](int64_t n) { return n > 0 ? n * (n + 1) / 2 : 0; };
      return triangle(task.q.end - key) - triangle(task.q.begin - key);
    };
    return from(task.kv.begin) - from(task.kv.end);
  }

  const Plan& plan_;
  const ValidateOptions& options_;
  std::vector<std::vector<Held>> held_;          // [document] ascending position once checked
  std::vector<std::vector<const Task*>> tasks_;  // [document] those whose ranges exist
  std::vector<std::string> violations_;
};

}  // namespace

std::vector<std::string> validate(const Plan& plan, const ValidateOptions& options) {
  return Validator(plan, options).run();
}

}  // namespace distca
