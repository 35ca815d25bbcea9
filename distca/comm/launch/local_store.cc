#include "distca/comm/launch/local_store.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "distca/base/error.h"
#include "distca/comm/launch/run_store.h"
#include "distca/comm/launch/store_keys.h"

namespace distca {

namespace {

using AddressInfo = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

/// `host`: in figures, so that nobody is asked.
AddressInfo address_of(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int fault = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  DISTCA_CHECK(fault == 0, "{}:{}: {}", host, port, gai_strerror(fault));
  return {found, freeaddrinfo};
}

bool can_bind(const std::string& host) {
  const AddressInfo address = address_of(host, 0);
  const FileDescriptor fd(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd.get() >= 0 && bind(fd.get(), address->ai_addr, address->ai_addrlen) == 0;
}

bool has_ipv6() {
  static const bool has = can_bind("::1");
  return has;
}

}  // namespace

std::string loopback_address() { return has_ipv6() ? "::1" : "127.0.0.1"; }

ListenSocket::ListenSocket(Interface interface, int port) {
  const bool loopback = interface == Interface::kLoopback;
  const char* const all = has_ipv6() ? "::" : "0.0.0.0";
  const AddressInfo address = address_of(loopback ? loopback_address() : all, port);
  const int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw Error(ErrorKind::kIo, "no socket for the store: {}", std::strerror(errno));
  fd_ = FileDescriptor(fd);
  const int yes = 1, no = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));  // after an earlier run
  if (has_ipv6()) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  DISTCA_THROW_IF(bind(fd, address->ai_addr, address->ai_addrlen) != 0 ||
                      listen(fd, SOMAXCONN) != 0 ||
                      getsockname(fd, address->ai_addr, &address->ai_addrlen) != 0,
                  ErrorKind::kConfig, "port {} cannot be used: {}; choose another{}", port,
                  errno == EADDRINUSE ? "it is in use" : std::strerror(errno),
                  loopback ? ", or 0 to let the system choose" : " (MASTER_PORT)");
  sockaddr_in bound = {};  // the port lies at the same place in both families
  static_assert(offsetof(sockaddr_in6, sin6_port) == offsetof(sockaddr_in, sin_port));
  std::memcpy(&bound, address->ai_addr, sizeof(bound));
  port_ = ntohs(bound.sin_port);
}

LocalStore::LocalStore(ListenSocket& socket) {
  const c10d::TCPStoreOptions options{.port = socket.port(),
                                      .isServer = true,
                                      .waitWorkers = false,
                                      .masterListenFd = socket.release()};
  store_ = keep_store(*c10::make_intrusive<c10d::TCPStore>(loopback_address(), options));
}

void LocalStore::belong_to(const std::string& run, const std::string& prefix, int size) {
  store_->set(kOwnerKey, run);
  store_->set(size_key(prefix), std::to_string(size));
}

void LocalStore::close_to_newcomers() { store_->set(kOverKey, "1"); }

int64_t LocalStore::exit_reports(const std::string& prefix) {
  return store_->add(exit_reports_key(prefix), 0);
}

void LocalStore::post_death(const std::string& prefix, int rank, const std::string& how) {
  const std::string line = fmt::format("{} {}\n", rank, how);
  store_->append(deaths_key(prefix), {line.begin(), line.end()});
}

std::string LocalStore::read(const std::string& key) {
  return store_->check({key}) ? store_->get_to_str(key) : "";
}

}  // namespace distca
