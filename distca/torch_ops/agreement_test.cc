#include "distca/torch_ops/agreement.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <utility>

#include "distca/base/error.h"
#include "distca/comm/thread_group.h"

namespace distca::torch_ops {

// The planner of these tests. That of a rank that `errs` plans for windows that nobody asked for.
thread_local bool errs = false;
api::BatchPlan Ranks::plan(const api::BatchRequest& request) {
  api::BatchRequest mine = request;
  if (errs) mine.window_left = 3;
  return api::plan_batch(mine);
}

Ranks::~Ranks() = default;

namespace {

using ::testing::HasSubstr;

/// Counts the exchanges of one rank.
class Counting : public Communicator {
 public:
  Counting(Communicator& within, int64_t& count) : within_(within), count_(count) {}
  int rank() const override { return within_.rank(); }
  int size() const override { return within_.size(); }
  std::unique_ptr<PendingExchange> exchange(std::span<const Message> sends,
                                            std::span<const Message> receives,
                                            std::string_view operation) override {
    ++count_;
    return within_.exchange(sends, receives, operation);
  }
  void set_step(int64_t step) override { within_.set_step(step); }

 private:
  Communicator& within_;
  int64_t& count_;
};

LayerKind layer(int64_t window_left = -1, int64_t num_heads = 4) {
  return {.kind = {.shape = {.num_heads = num_heads, .num_kv_heads = 2, .head_dim = 16}},
          .softmax_scale = 0.25,
          .window_left = window_left};
}

/// Plays the body on three ranks. It calls `agreed` after each agreement. `want`: how many messages
/// each one took, to every other rank.
using Body = std::function<void(Ranks& ranks, int rank, const std::function<void()>& agreed)>;
void play(const Body& body, const std::vector<int64_t>& want) {
  run_ranks(3, {}, [&](Communicator& comm) {
    errs = false;
    int64_t count = 0;
    std::vector<int64_t> messages;
    Ranks ranks(std::make_unique<Counting>(comm, count));
    body(ranks, comm.rank(), [&] { messages.push_back(std::exchange(count, 0)); });
    EXPECT_EQ(messages, want) << "rank " << comm.rank();
  });
}

/// Whole documents that are others on every rank.
RankDocuments documents(int rank, int64_t more = 0) {
  RankDocuments made{.numbers = {300 + 40 * rank, 400 + 10 * rank}};
  for (int64_t i = 0; i < more; ++i) made.numbers.push_back(1 + i % 3);
  return made;
}

RankDocuments pieces(std::vector<int64_t> numbers) {
  return {.in_pieces = true, .numbers = std::move(numbers)};
}

std::string error_of(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Agreement, TakesOneMessageOnceItsKindsOfLayersAreKnown) {
  play(
      [](Ranks& ranks, int rank, const auto& agreed) {
        const LayerKinds both{layer(), layer(20)};
        for (const LayerKinds& kinds : {both, both, LayerKinds{layer()}, both, {}, both}) {
          const Agreement found = agree(ranks, documents(rank), kinds);
          EXPECT_EQ(found.planned.size(), kinds.size());
          agreed();
        }
        agree(ranks, documents(rank, rank == 1 ? 70 : 0), both);  // one rank has many documents
        agreed();
      },
      {2, 1, 2, 1, 1, 1, 2});
}

TEST(Agreement, HasTheDocumentsOfAllRanks) {
  play(
      [](Ranks& ranks, int rank, const auto& agreed) {
        const RankDocuments mine = documents(rank, rank == 1 ? 70 : 0);
        const Agreement found = agree(ranks, mine, {layer()});
        EXPECT_EQ(found.request.cu_seqlens.size(), 1u + 2 + 72 + 2);
        EXPECT_EQ(found.plan_of(layer())->num_tokens(rank),
                  std::accumulate(mine.numbers.begin(), mine.numbers.end(), int64_t{0}));
        EXPECT_EQ(found.plan_of(layer(20)), nullptr);
        agreed();
      },
      {3});
}

TEST(Agreement, PiecesAreRowsOfDocumentsThatAllRanksShare) {
  play(
      [](Ranks& ranks, int rank, const auto& agreed) {
        // Document -3 lies on ranks 2 and 0, document 9 on rank 0; rank 1 has no rows.
        const RankDocuments mine = rank == 0   ? pieces({9, 0, 130, -3, 5, 400, 9, 130, 130})
                                   : rank == 1 ? RankDocuments{}
                                               : pieces({-3, 400, 401, -3, 0, 5});
        const Agreement found = agree(ranks, mine, {layer()});
        agreed();
        EXPECT_EQ(found.request.cu_seqlens, (std::vector<int64_t>{0, 401, 531}));
        using Ranges = std::vector<std::vector<Range>>;
        EXPECT_EQ(found.request.tokens, (Ranges{{{401, 531}, {5, 400}}, {}, {{400, 401}, {0, 5}}}));
        EXPECT_NE(found.plan_of(layer()), nullptr);

        std::vector<int64_t> many;  // every third token of one document
        for (int64_t token = rank; token < 600; token += 3)
          many.insert(many.end(), {1, token, token + 1});
        EXPECT_EQ(agree(ranks, pieces(many), {layer()}).plan_of(layer())->num_tokens(rank), 200);
        agreed();
      },
      {2, 2});
}

TEST(Agreement, PiecesThatAreNoWholeDocumentsAreNamed) {
  play(
      [](Ranks& ranks, int rank, const auto& agreed) {
        const auto named = [&](const std::vector<RankDocuments>& of_ranks) {
          const auto found = error_of([&] { agree(ranks, of_ranks[rank], {layer()}); });
          agreed();
          return found;
        };
        EXPECT_THAT(named({pieces({7, 0, 512}), pieces({7, 640, 900}), pieces({8, 0, 5})}),
                    HasSubstr("document 7: tokens 512 to 640 lie on no rank, and rank 1 has those "
                              "from 640 on"));
        EXPECT_THAT(named({pieces({7, 0, 512}), pieces({8, 0, 5}), pieces({7, 500, 900})}),
                    HasSubstr("document 7: tokens 500 to 512 lie on rank 0 and on rank 2"));
        EXPECT_THAT(named({pieces({7, 0, 512, 7, 100, 200}), pieces({}), pieces({})}),
                    HasSubstr("document 7: tokens 100 to 200 lie on rank 0 and on rank 0"));
        EXPECT_THAT(
            named({pieces({7, 3, 512}), pieces({}), pieces({})}),
            HasSubstr("document 7: tokens 0 to 3 lie on no rank, and rank 0 has those from 3"));
        EXPECT_THAT(named({{}, pieces({7, 0, 512}), documents(2)}),
                    HasSubstr("rank 2 gives whole documents, rank 1 pieces of documents: all ranks "
                              "give pieces, or none does"));
      },
      {1, 1, 1, 1, 1});
}

TEST(Agreement, ComparesPlansWhereOneRankHasNotYet) {
  play(
      [](Ranks& ranks, int rank, const auto& agreed) {
        for (int i = 0; i < 2; ++i) {
          agree(ranks, documents(rank), {layer()});
          agreed();
          if (rank == 2) ranks.compared.clear();
        }
      },
      {2, 2});
}

TEST(Agreement, AWrongPlanIsFoundBeforeItIsFollowedWherePlansAreCompared) {
  play(
      [](Ranks& ranks, int rank, const auto& agreed) {
        errs = rank == 1;
        const auto found = error_of([&] { agree(ranks, documents(rank), {layer()}); });
        EXPECT_THAT(found, HasSubstr("rank 1 has plan ")) << rank;
        agreed();
        errs = false;
        EXPECT_EQ(error_of([&] { agree(ranks, documents(rank), {layer()}); }), "");
        agreed();
      },
      {2, 2});
}

TEST(Agreement, APlannerThatErrsLaterIsNamedByTheNextMessage) {
  play(
      [](Ranks& ranks, int rank, const auto& agreed) {
        agree(ranks, documents(rank), {layer()});
        agreed();
        errs = rank == 2;
        agree(ranks, documents(rank), {layer()});
        agreed();
        errs = false;
        const auto found = error_of([&] { agree_on_end(ranks, 3); });
        EXPECT_THAT(found, HasSubstr("rank 2 planned the forward before as ")) << rank;
        EXPECT_THAT(found, HasSubstr("the planner made two plans of one request")) << rank;
        agreed();
      },
      {2, 1, 1});
}

TEST(Agreement, KindsThatDifferAreNamed) {
  play(
      [](Ranks& ranks, int rank, const auto& agreed) {
        const auto named = [&](const LayerKinds& kinds) {
          const auto found = error_of([&] { agree(ranks, documents(rank), kinds); });
          agreed();
          return found;
        };
        agree(ranks, documents(rank), {layer(), layer(20)});
        agreed();
        EXPECT_THAT(named({layer(-1, rank == 1 ? 8 : 4)}),
                    HasSubstr("rank 1 calls attention with num_heads = 8, rank 0 with 4"));
        LayerKind on_device = layer();
        on_device.kind.cuda_device = rank;
        EXPECT_THAT(named({rank == 2 ? layer() : on_device}),
                    HasSubstr("rank 2 calls attention with a device (0: CPU, 1: CUDA) = 0, rank 0 "
                              "with 1"));
        EXPECT_THAT(named({layer(), layer(rank == 2 ? 30 : 20)}),
                    HasSubstr("rank 2 calls attention with window_left = 30, rank 0 with 20"));
        EXPECT_THAT(named(rank == 1 ? LayerKinds{layer()} : LayerKinds{layer(), layer(20)}),
                    HasSubstr("rank 1 had layers of 1 kinds, rank 0 of 2"));
      },
      {2, 1, 1, 2, 1});
}

TEST(Agreement, RanksMayHaveDevicesOfOtherNumbers) {
  play(
      [](Ranks& ranks, int rank, const auto& agreed) {
        LayerKind on_device = layer();
        on_device.kind.cuda_device = rank;
        EXPECT_NE(agree(ranks, documents(rank), {on_device}).plan_of(on_device), nullptr);
        agreed();
      },
      {2});
}

TEST(Agreement, ARankWhoseLoaderHasEndedIsNamed) {
  play(
      [](Ranks& ranks, int rank, const auto& agreed) {
        const auto early = error_of([&] {
          if (rank == 2) {
            agree_on_end(ranks, 5);
          } else {
            agree(ranks, documents(rank), {layer()});
          }
        });
        EXPECT_THAT(early, HasSubstr("the loader of rank 2 ended after 5 batches, that of rank 0 "
                                     "goes on: all ranks have equally many batches"));
        agreed();
        const auto unequal = error_of([&] { agree_on_end(ranks, rank == 1 ? 0 : 1); });
        EXPECT_THAT(unequal, HasSubstr("the loader of rank 1 ended after 0 batches, that of rank 0 "
                                       "ended after 1 batches"));
        agreed();
        agree_on_end(ranks, 6);
        agreed();
      },
      {1, 1, 1});
}

}  // namespace
}  // namespace distca::torch_ops
