// The only file, except a test, that includes ProcessGroupGloo.hpp. The wheel exports Gloo's group
// but lacks Gloo's headers; the system's are older, so a gloo type must never be constructed or
// derived here: its layout may differ from the wheel's. gloo_symbols_test.cmake holds us to it.
#include "distca/comm/gloo_group.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "distca/base/clock.h"
#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/comm/c10d_group.h"
#include "distca/comm/gloo_loop.h"
#include "distca/comm/health/health.h"
#include "distca/comm/health/startup.h"
#include "distca/comm/hushed_cerr.h"
#include "distca/comm/launch/own_address.h"
#include "distca/comm/launch/run_store.h"

namespace distca {
namespace {

/// Gloo's connecting, which waits for each of its tries as long as for all and cannot be ended.
struct Connecting {
  const Rendezvous rendezvous;
  const std::string place;  // an interface's name or address
  const bool by_name;

  const HushedCerr hushed = {};  // also of a thread that was left behind
  GlooLoop loop = {};
  c10::intrusive_ptr<c10d::Backend> group = {};

  void make_group(double timeout_s) {
    const auto store = c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(
        connect_to_store(rendezvous, timeout_s, "gloo").get());
    auto options = c10d::ProcessGroupGloo::Options::create(to_milliseconds(timeout_s));
    loop.start([&] {
      options->devices.push_back(by_name ? c10d::ProcessGroupGloo::createDeviceForInterface(place)
                                         : c10d::ProcessGroupGloo::createDeviceForHostname(place));
    });
    options->threads = 1;  // they serve collectives, which we do not use
    group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rendezvous.rank, rendezvous.size,
                                                        options);
  }
};

}  // namespace

std::unique_ptr<Communicator> make_gloo_group(const Rendezvous& rendezvous,
                                              const CommOptions& options) {
  const std::optional<std::string> interface = env_string("GLOO_SOCKET_IFNAME");
  if (interface) check_interface(*interface);  // before anybody waits for us
  auto health = std::make_unique<Health>(rendezvous, options);
  Heartbeat& heartbeat = health->heartbeat;
  heartbeat.wait_for_all();
  const std::shared_ptr<Connecting> connecting(
      new Connecting{.rendezvous = rendezvous,
                     .place = interface ? *interface : heartbeat.own_address(),
                     .by_name = interface.has_value()});
  connect_by_deadline(
      rendezvous, heartbeat, [connecting](double timeout_s) { connecting->make_group(timeout_s); },
      [connecting] { return "cannot connect through " + connecting->place; });
  heartbeat.end_startup();
  const c10::intrusive_ptr<c10d::Backend> group = std::move(connecting->group);
  return make_c10d_group(*group, std::move(health), connecting->loop);
}

}  // namespace distca
