#include "distca/plan/baselines/baselines.h"

#include <algorithm>
#include <span>

#include "distca/plan/bounds.h"

namespace distca {
namespace {

int lowest(const std::vector<int64_t>& values) {
  return static_cast<int>(std::min_element(values.begin(), values.end()) - values.begin());
}

struct Placed {
  Document document;
  int bin;
};

/// Documents, in their order, packed into this many bins of `most` tokens. Those that fit into none
/// are placed last.
std::vector<Placed> packed(const std::vector<Document>& documents, int num_bins, int64_t most) {
  std::vector<int64_t> works(num_bins, 0), tokens(num_bins, 0);
  std::vector<Placed> placed;
  std::vector<Document> left;
  const auto place = [&](const Document& document, int bin) {
    placed.push_back({document, bin});
    works[bin] += document_work(document.length);
    tokens[bin] += document.length;
  };
  for (const Document& document : documents) {
    int bin = lowest(works);
    if (tokens[bin] + document.length > most) bin = lowest(tokens);
    if (tokens[bin] + document.length > most) {
      left.push_back(document);
    } else {
      place(document, bin);
    }
  }
  for (const Document& document : left) place(document, lowest(works));
  return placed;
}

int64_t most_tokens(const PlanRequest& request) {
  const int64_t cap = request.cluster.max_tokens_per_worker;
  return cap > 0 ? cap : request.nano_batch.num_tokens() / request.cluster.num_workers;
}

}  // namespace

int64_t document_work(int64_t tokens) {
  constexpr int64_t kBreakpoint = 64'000;  // tokens at which attention and the rest cost the same
  return tokens * tokens + kBreakpoint * tokens;
}

std::vector<Document> longest_first(const NanoBatch& nano_batch) {
  std::vector<Document> documents = nano_batch.documents;
  std::erase_if(documents, [](const Document& document) { return document.length == 0; });
  std::ranges::stable_sort(documents, std::ranges::greater(), &Document::length);
  return documents;
}

Layout wlb_layout(const PlanRequest& request, int most_of_group) {
  const int num_workers = request.cluster.num_workers;
  int of_group = std::min(most_of_group, num_workers);
  while (num_workers % of_group != 0) --of_group;
  Layout layout;
  layout.workers.resize(num_workers);
  std::vector<int64_t> tokens(num_workers, 0);
  for (const auto& [document, group] :
       packed(longest_first(request.nano_batch), num_workers / of_group,
              most_tokens(request) * of_group)) {
    const size_t first = static_cast<size_t>(group) * static_cast<size_t>(of_group);
    place_head_and_tail(document, std::span(layout.workers).subspan(first, of_group),
                        std::span(tokens).subspan(first, of_group));
  }
  check_workers_fit(request, layout);
  return layout;
}

}  // namespace distca
