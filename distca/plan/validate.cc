#include "distca/plan/validate.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "distca/plan/validate_parts.h"

namespace distca {
namespace {

std::string describe(const Range& range) { return fmt::format("[{}, {})", range.begin, range.end); }
constexpr auto kHeldFrom = [](const Held& segment) { return segment.tokens.begin; };

class Validator : Violations {
 public:
  Validator(const Plan& plan, const ValidateOptions& options)
      : Violations(options.max_violations),
        plan_(plan),
        options_(options),
        held_(plan.nano_batch.documents.size()),
        tasks_(plan.nano_batch.documents.size()) {}

  std::vector<std::string> run() {
    if (shapes_right()) {
      check_segments();
      for (size_t document = 0; document < held_.num_documents(); ++document) check_homes(document);
      check_tokens();
      check_tasks();
      for (size_t document = 0; document < held_.num_documents(); ++document) check_pairs(document);
      // Loads are checked only if the tasks make sense.
      if (none()) check_load(plan_, options_, held_, tasks_, *this);
      for (size_t document = 0; document < held_.num_documents(); ++document) check_cuts(document);
    }
    return std::move(*this).lines();
  }

 private:
  int64_t length(int64_t document) const { return plan_.nano_batch.documents[document].length; }
  int num_ranks() const { return std::max(plan_.cluster.num_workers, plan_.cluster.num_servers()); }

  bool shapes_right() {
    const auto& documents = plan_.nano_batch.documents;
    int64_t tokens = 0;
    if (plan_.shape.mask.kind != MaskKind::kCausal) report("the mask of the shape is not causal");
    for (size_t i = 0; i < documents.size(); ++i) {
      if (documents[i].id != static_cast<int64_t>(i))
        report("document {} has id {}", i, documents[i].id);
      const int64_t length = documents[i].length;
      if (length < 0) report("document {} has {} tokens", i, length);
      tokens += std::clamp<int64_t>(length, 0, kMostTokens + 1);
    }
    if (tokens > kMostTokens) report("a nano-batch of more than {} tokens", kMostTokens);
    if (plan_.layout.num_workers() != plan_.cluster.num_workers) {
      report("the layout has {} workers, the cluster {}", plan_.layout.num_workers(),
             plan_.cluster.num_workers);
    }
    if (plan_.load.size() != static_cast<size_t>(num_ranks())) {
      report("load of {} ranks, there are {}", plan_.load.size(), num_ranks());
    }
    return none();
  }

  /// A range of a document that exists, not empty.
  bool check_range(const char* whose, int64_t index, int64_t document, const Range& range) {
    if (document < 0 || document >= static_cast<int64_t>(held_.num_documents())) {
      report("{} {}: there is no document {}", whose, index, document);
      return false;
    }
    if (range.begin < 0 || range.begin >= range.end || range.end > length(document)) {
      report("{} {}: {} is not a range of document {} with {} tokens", whose, index,
             describe(range), document, length(document));
      return false;
    }
    return true;
  }

  void check_segments() {
    for (int worker = 0; worker < plan_.layout.num_workers(); ++worker) {
      for (const Segment& segment : plan_.layout.workers[worker]) {
        if (check_range("layout of worker", worker, segment.document, segment.tokens)) {
          held_.add(segment.document, {segment.tokens, worker});
        }
      }
    }
    held_.group();
  }

  void check_homes(size_t document) {
    const std::span<Held> held = held_[document];
    std::ranges::sort(held, {}, kHeldFrom);
    int64_t seen = 0;
    for (const Held& segment : held) {
      if (segment.tokens.begin > seen) {
        report("document {}: no worker holds {}", document, describe({seen, segment.tokens.begin}));
      } else if (segment.tokens.begin < seen) {
        report("document {}: {} is held twice", document,
               describe({segment.tokens.begin, std::min(seen, segment.tokens.end)}));
      }
      seen = std::max(seen, segment.tokens.end);
    }
    if (seen < length(document)) {
      report("document {}: no worker holds {}", document, describe({seen, length(document)}));
    }
  }

  void check_tokens() {
    const int64_t workers = plan_.cluster.num_workers;
    const int64_t cap = plan_.cluster.max_tokens_per_worker;
    std::vector<int64_t> tokens(workers, 0);
    for (size_t document = 0; document < held_.num_documents(); ++document) {
      for (const Held& segment : held_[document])
        tokens[segment.worker] += segment.tokens.end - segment.tokens.begin;
    }
    const int64_t total = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
    if (cap > 0 && ceil_div(total, workers) > cap) {
      report("{} tokens on {} workers, max_tokens_per_worker is {}", total, workers, cap);
    }
    for (int64_t worker = 0; worker < workers; ++worker) {
      if (options_.even_tokens && std::abs(tokens[worker] * workers - total) >= 128 * workers) {
        report("worker {} holds {} tokens, the mean is {:.1f}: not within 128", worker,
               tokens[worker], static_cast<double>(total) / static_cast<double>(workers));
      }
      if (cap > 0 && tokens[worker] >= cap + 128) {
        report("worker {} holds {} tokens, max_tokens_per_worker is {}", worker, tokens[worker],
               cap);
      }
    }
  }

  void check_tasks() {
    for (size_t i = 0; i < plan_.tasks.size(); ++i) {
      const Task& task = plan_.tasks[i];
      if (task.server < 0 || task.server >= plan_.cluster.num_servers()) {
        report("task {}: there is no server {}, only {}", i, task.server,
               plan_.cluster.num_servers());
      }
      if (i > 0 && order(plan_.tasks[i - 1]) > order(task)) {
        report("task {}: tasks are not sorted by server, document, q.begin, kv.begin", i);
      }
      const bool q_right = check_range("queries of task", i, task.document, task.q);
      const bool kv_right = check_range("keys of task", i, task.document, task.kv);
      if (!q_right || !kv_right) continue;
      check_mask(i, task);
      check_segment(i, task);
      tasks_.add(task.document, &task);
    }
    tasks_.group();
  }
  static std::array<int64_t, 4> order(const Task& task) {
    return {task.server, task.document, task.q.begin, task.kv.begin};
  }

  void check_mask(size_t index, const Task& task) {
    const int64_t window = plan_.shape.mask.window_left;
    if (task.mask == MaskKind::kFull) {
      if (task.kv.end > task.q.begin + 1) {
        report("task {}: a full mask on q {} and kv {} lets queries see later keys", index,
               describe(task.q), describe(task.kv));
      }
      if (window >= 0 && task.kv.begin < task.q.end - 1 - window) {
        report("task {}: a full mask on q {} and kv {} lets queries see keys before the window {}",
               index, describe(task.q), describe(task.kv), window);
      }
    }
    const Range seen = seen_keys(task.q, plan_.shape.mask);
    if (!plan_.options.split_kv && !task.kv.contains(seen)) {
      report("task {}: kv {} is a part of the keys {} that its queries see, split_kv is off", index,
             describe(task.kv), describe(seen));
    }
  }

  void check_segment(size_t index, const Task& task) {
    const std::span<const Held> held = held_[task.document];
    const auto after = std::ranges::upper_bound(held, task.q.begin, {}, kHeldFrom);
    if (after == held.begin() || (after - 1)->tokens.end < task.q.end) {
      report("task {}: q {} of document {} does not lie in one segment", index, describe(task.q),
             task.document);
    }
  }

  /// Between two neighbouring edges of query ranges the same tasks are active for every row, so
  /// their key ranges must tile the keys that these rows see.
  void check_pairs(size_t document) {
    by_begin_.assign(tasks_[document].begin(), tasks_[document].end());
    edges_.assign({0, length(document)});
    for (const Task* task : by_begin_) edges_.insert(edges_.end(), {task->q.begin, task->q.end});
    std::sort(edges_.begin(), edges_.end());
    edges_.erase(std::unique(edges_.begin(), edges_.end()), edges_.end());
    std::ranges::sort(by_begin_, {}, [](const Task* task) { return task->q.begin; });

    active_.clear();
    size_t next = 0;
    for (size_t i = 0; i + 1 < edges_.size(); ++i) {
      const Range rows{edges_[i], edges_[i + 1]};
      std::erase_if(active_, [&rows](const Task* task) { return task->q.end <= rows.begin; });
      while (next < by_begin_.size() && by_begin_[next]->q.begin == rows.begin)
        active_.push_back(by_begin_[next++]);
      std::ranges::sort(active_, {}, [](const Task* task) { return task->kv.begin; });
      check_rows(document, rows);
    }
  }

  void check_rows(size_t document, const Range& rows) {
    const Range keys = seen_keys(rows, plan_.shape.mask);
    int64_t seen = keys.begin;
    const auto missing = [&](int64_t end) {
      report("document {}: queries {} x keys {} are computed by no task", document, describe(rows),
             describe({seen, end}));
    };
    for (const Task* task : active_) {
      const Range part = intersect(task->kv, keys);
      if (part.empty()) continue;
      if (part.begin > seen) missing(part.begin);
      if (part.begin < seen) {
        report("document {}: queries {} x keys {} are computed twice", document, describe(rows),
               describe({part.begin, std::min(seen, part.end)}));
      }
      seen = std::max(seen, part.end);
    }
    if (seen < keys.end) missing(keys.end);
  }

  void check_cuts(size_t document) {
    const std::span<const Held> held = held_[document];
    const auto check = [&](const char* whose, int64_t index, const Range& range) {
      for (const int64_t cut : {range.begin, range.end}) {
        if (cut % 128 == 0 || cut == length(document)) continue;
        const bool is_cut_by_layout = std::ranges::binary_search(held, cut, {}, kHeldFrom);
        if (!options_.whole_blocks && is_cut_by_layout) continue;
        report("{} {}: document {} is cut at {}, neither a multiple of 128 nor its end {}", whose,
               index, document, cut, length(document));
      }
    };
    for (const Held& one : held) check("layout of worker", one.worker, one.tokens);
    for (const Task* task : tasks_[document]) {
      const int64_t index = task - plan_.tasks.data();
      check("queries of task", index, task->q);
      check("keys of task", index, task->kv);
    }
  }

  const Plan& plan_;
  const ValidateOptions& options_;
  ByDocument<Held> held_;          // ascending position once checked
  ByDocument<const Task*> tasks_;  // tasks whose ranges exist, in the plan's order
  // Lists of the document at hand. They are members to keep their memory.
  std::vector<const Task*> by_begin_, active_;
  std::vector<int64_t> edges_;
};

}  // namespace

std::vector<std::string> validate(const Plan& plan, const ValidateOptions& options) {
  return Validator(plan, options).run();
}

}  // namespace distca
