// The validation loss of `distca train`, in all and by position in the document: the same however
// many ranks there are and however they play.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

class ValidationTest : public TrainingTest {
 protected:
  /// The last line of a run that validates on five nano-batches, of documents of up to 2048 tokens.
  Json last_line(const std::string& name, const Words& more) const {
    const Words long_documents = {"batch.nano_batch_tokens=2048",
                                  "batch.max_document_tokens=2048",
                                  "data.validation_fraction=0.7",
                                  "train.validation_nano_batches=5",
                                  "train.steps=2",
                                  "train.validation_every=1",
                                  "optimizer.warmup_steps=0",
                                  "comm.backend=threads"};
    train(name, joined(long_documents, more));
    return metrics(name).back();
  }
};

TEST_F(ValidationTest, loss_by_position_is_that_of_one_worker) {
  const Json one = last_line("one", {"model.dtype=float64"});
  const Json& want = one.at("validation_loss_by_position");
  ASSERT_EQ(want.size(), 2u);
  EXPECT_EQ(want[0].at("begin"), 0);
  EXPECT_EQ(want[0].at("end"), 1024);
  EXPECT_EQ(want[1].at("begin"), 1024);
  EXPECT_EQ(want[1].at("end"), 4096);
  double sum = 0, targets = 0;
  for (const Json& band : want) {
    sum += band.at("loss").get<double>() * band.at("targets").get<double>();
    targets += band.at("targets").get<double>();
  }
  EXPECT_NEAR(one.at("validation_loss").get<double>(), sum / targets, 1e-12);
  EXPECT_NE(want[0].at("loss"), want[1].at("loss"));
  for (const auto& [name, more] :
       std::map<std::string, Words>{{"two", {"2"}},
                                    {"three", {"3"}},
                                    {"three_none", {"3", "train.overlap=none"}},
                                    {"split_kv", {"3", "plan.split_kv=true"}},
                                    {"dedicated", {"2", "servers.dedicated=1"}},
                                    {"processes", {"2", "comm.backend=gloo"}},
                                    {"stages", {"4", "parallel.pipeline_model_parallel_size=2"}}}) {
    const Json line = last_line(name, joined({"model.dtype=float64", "--workers"}, more));
    const Json& got = line.at("validation_loss_by_position");
    EXPECT_NEAR(line.at("validation_loss").get<double>(), sum / targets, 1e-10 * sum / targets);
    ASSERT_EQ(got.size(), want.size()) << name;
    for (size_t band = 0; band < want.size(); ++band) {
      const double loss = want[band].at("loss");
      EXPECT_EQ(got[band].at("begin"), want[band].at("begin")) << name;
      EXPECT_EQ(got[band].at("end"), want[band].at("end")) << name;
      EXPECT_EQ(got[band].at("targets"), want[band].at("targets")) << name;
      EXPECT_NEAR(got[band].at("loss").get<double>(), loss, 1e-10 * loss) << name;
    }
  }
}

}  // namespace
}  // namespace distca::testing
