#include "distca/comm/first_ranks.h"

#include "distca/base/error.h"

namespace distca {
namespace {

class FirstRanks final : public Communicator {
 public:
  FirstRanks(Communicator& whole, int size) : whole_(whole), size_(size) {}

  int rank() const override { return whole_.rank(); }
  int size() const override { return size_; }
  int cuda_device() const override { return whole_.cuda_device(); }
  std::unique_ptr<PendingExchange> post(std::span<const Message> sends,
                                        std::span<const Message> receives,
                                        std::string_view operation, TakePart) override {
    return whole_.exchange_among_some(sends, receives, operation);
  }
  void set_step(int64_t step) override { whole_.set_step(step); }

 private:
  Communicator& whole_;
  int size_;
};

}  // namespace

std::unique_ptr<Communicator> first_ranks(Communicator& whole, int size) {
  DISTCA_CHECK(whole.rank() < size && size <= whole.size(), "rank {} in the first {} of {}",
               whole.rank(), size, whole.size());
  return std::make_unique<FirstRanks>(whole, size);
}

}  // namespace distca
