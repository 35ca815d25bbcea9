#pragma once
// The schedulers and layouts with which `balanced` is compared: the paper's greedy, plain packing,
// and layouts that are made for queries that stay at home. Any thread may call the functions.
//
//   const Layout layout = per_document_layout(request);  // PlanRequest request
//   const std::vector<Task> tasks = schedule_local(request, layout);

#include <cstdint>
#include <span>
#include <vector>

#include "distca/plan/scheduler.h"

namespace distca {

/// Scheduler `greedy`: the paper's communication-aware greedy (4.2, appendix B).
///
/// Every query starts where it lives. A server may carry at most (1 + tolerance) times its share of
/// the pairs. Servers below this bound, the one with most room first, take shards from servers
/// above it until they are full, the shard with most pairs for each byte first. Servers that are
/// still above the bound then give single blocks to the server with least load for its capacity, as
/// long as that lowers the higher of the two servers' loads for their capacity. The bound may stay
/// out of reach, for example with fewer blocks than servers; max_over_mean() shows that.
///
/// Counts: bytes of Q, O and keys; keys of the document that the receiver already reads are free.
/// Ignores: the window (pairs are those of all keys up to the query), latency, links, memory,
/// kernel efficiency, bytes of any one server, keys that the donor no longer needs.
///
/// Loads are integers, doubles are made by + - * / sqrt only, and ties go to the lowest id. Time:
/// moves x shards on servers above the bound.
std::vector<Task> schedule_greedy(const PlanRequest& request, const Layout& layout);

/// Scheduler `local`: every query is computed where it lives, which is plain packing.
///
/// Makes one task for each segment, on the worker that holds it. Keys that live elsewhere are
/// fetched. Capacity and tolerance are ignored.
std::vector<Task> schedule_local(const PlanRequest& request, const Layout& layout);

/// Layout `per-document-cp`: context parallelism for each document over all workers (paper 2 and
/// 3.2).
///
/// With c workers, a document is cut into 2c shards of whole blocks of 128 tokens (the last block
/// may be short), as equal as blocks allow. Worker i holds the shards i and 2c - 1 - i. Blocks that
/// are left over, and all blocks of a document with fewer than 2c, go one at a time to the workers
/// with the fewest tokens: first one to the lower shard of each, then one to the upper shard of
/// each. Ties go to the lowest id. Throws Error(kPlan) when a worker ends above
/// max_tokens_per_worker.
/// Time: documents x workers x log(workers).
Layout per_document_layout(const PlanRequest& request);

/// Places a document over some workers as per_document_layout() does. `tokens` are those that each
/// of them holds so far.
void place_head_and_tail(const Document& document, std::span<std::vector<Segment>> workers,
                         std::span<int64_t> tokens);

/// The work of a whole document by the measure of `wlb`: x^2 + x with x = tokens / 64,000, at which
/// attention and all other work cost the same, in units of 1 / 64,000^2.
int64_t document_work(int64_t tokens);
/// The documents that are not empty, the longest first, of equal ones the lowest id.
std::vector<Document> longest_first(const NanoBatch& nano_batch);

/// Layout `wlb`: variable-length packing without deferral, the paper's baseline WLB-ideal (section
/// 6).
///
/// Places whole documents, the longest first. A document goes to the worker with the least work, if
/// that worker then holds at most Lmax tokens. Otherwise it goes to the worker with the fewest
/// tokens, under the same condition. Documents that fit neither worker are placed last, to the
/// worker with the least work. Work is document_work(). Lmax is
/// cluster.max_tokens_per_worker. If that is 0, Lmax is the mean number of tokens (the released
/// driver's value, factor 1). Ties go to the lowest id. A document is never cut.
///
/// Layouts `wlb-cp2`, `wlb-cp4`, ...: data x context parallelism, over which the paper sweeps. The
/// workers are groups of neighbours, each as large as the largest divisor of their number that is
/// at most `most_of_group`, which is 1 for `wlb`. Whole documents are packed over the groups as
/// over workers, with Lmax for each worker of the group, and each is cut over its group as
/// per_document_layout() cuts it over all workers.
/// Both throw Error(kPlan) when a worker ends above max_tokens_per_worker.
/// Time: documents x workers.
Layout wlb_layout(const PlanRequest& request, int most_of_group);

/// Layout `karmarkar-karp`: whole documents for even work, tokens as they come, as frameworks
/// balance the samples of data-parallel ranks. By the largest differencing method of Karmarkar and
/// Karp: each document is a division of its own; the two divisions whose heaviest and lightest
/// workers differ most are made one, heavy parts on light ones, until one is left. Work is
/// document_work(). Ties go to the division with the longer document, then to the lower id. Throws
/// Error(kPlan) when a worker ends above max_tokens_per_worker. Time: documents x workers.
Layout karmarkar_karp_layout(const PlanRequest& request);

// For predictions of the paper's tables and for counting alone. No list has their names, so no
// configuration can ask for them.

/// Scheduler `greedy-original`: the released planner of the paper (distca/planner/planner.py of its
/// code). It cuts documents at any token.
///
/// An item is a document or a chunk of one: a head and the tail that mirrors it. Receivers, the
/// largest deficit first, take from servers above their share while they lack more than tolerance x
/// share: the item with the fewest elements per pair gives its middle-most pairs of (head, tail)
/// rows, as many as donor, receiver and item allow, cut at any token. The donors' load is bound by
/// nothing, so max/mean may exceed 1 + tolerance. Workers that hold nothing are receivers, too.
///
/// Counts, to choose: Q of the head rows and the keys of the whole document, wherever they are, as
/// the original does. Ignores: O, the Q of the tail rows, keys already there, capacities, caps,
/// windows, nodes.
///
/// Where the original needs even lengths, rows are counted one by one. Doubles by + - * / only,
/// ties by the item that came first. Time: moves x items.
std::vector<Task> schedule_original(const PlanRequest& request, const Layout& layout);

/// Its layout, `sequential-exact`: documents in order fill one worker after another, the mean
/// number of tokens each (to within one token where it is no integer). A document that does not fit
/// the rest of a worker is cut: half of what fits from its front, half from its back, and so on
/// with what is left on the next worker.
Layout exact_layout(const PlanRequest& request);

/// Scheduler `all-gather`: as `local`, but every task has all keys of its document, as if each
/// worker gathered those of all that hold a part of it.
std::vector<Task> schedule_all_gather(const PlanRequest& request, const Layout& layout);

/// Layout `given-groups`: documents of no token divide the nano-batch into groups, one behind the
/// other. Each group's documents are cut over its workers as per_document_layout() cuts them over
/// all; the groups have equally many workers (CHECK).
Layout given_groups_layout(const PlanRequest& request);

}  // namespace distca
