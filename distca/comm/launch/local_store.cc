#include "distca/comm/launch/local_store.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "distca/base/error.h"
#include "distca/comm/health/heartbeat_keys.h"
#include "distca/comm/launch/run_store.h"

namespace distca {

namespace {

struct Address {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Address ipv6(const in6_addr& host, int port) {
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = host;
  v6.sin6_port = htons(static_cast<uint16_t>(port));
  Address address{.length = sizeof(v6)};
  std::memcpy(&address.storage, &v6, sizeof(v6));
  return address;
}

Address ipv4(in_addr_t host, int port) {
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(host);
  v4.sin_port = htons(static_cast<uint16_t>(port));
  Address address{.length = sizeof(v4)};
  std::memcpy(&address.storage, &v4, sizeof(v4));
  return address;
}

bool can_bind(const Address& address) {
  const int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool can = fd >= 0 && bind(fd, address.get(), address.length) == 0;
  if (fd >= 0) close(fd);
  return can;
}

bool has_ipv6() {
  static const bool has = can_bind(ipv6(in6addr_loopback, 0));
  return has;
}

std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

std::string loopback_address() { return has_ipv6() ? "::1" : "127.0.0.1"; }

ListenSocket::ListenSocket(Interface interface, int port) {
  const bool loopback = interface == Interface::kLoopback;
  Address address = has_ipv6() ? ipv6(loopback ? in6addr_loopback : in6addr_any, port)
                               : ipv4(loopback ? INADDR_LOOPBACK : INADDR_ANY, port);
  fd_ = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) throw Error(ErrorKind::kIo, "no socket for the store: {}", std::strerror(errno));
  const int yes = 1, no = 0;
  setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));  // after an earlier run
  if (has_ipv6()) setsockopt(fd_, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  auto* name = reinterpret_cast<sockaddr*>(&address.storage);
  if (bind(fd_, name, address.length) != 0 || listen(fd_, SOMAXCONN) != 0 ||
      getsockname(fd_, name, &address.length) != 0) {
    const int why = errno;
    close(fd_);
    throw Error(ErrorKind::kConfig, "port {} cannot be used: {}; choose another{}", port,
                why == EADDRINUSE ? "it is in use" : std::strerror(why),
                loopback ? ", or 0 to let the system choose" : " (MASTER_PORT)");
  }
  sockaddr_in6 bound = {};  // the port lies at the same place in both families
  static_assert(offsetof(sockaddr_in6, sin6_port) == offsetof(sockaddr_in, sin_port));
  std::memcpy(&bound, name, sizeof(bound));
  port_ = ntohs(bound.sin6_port);
}

ListenSocket::~ListenSocket() {
  if (fd_ >= 0) close(fd_);
}

int ListenSocket::release() { return std::exchange(fd_, -1); }

struct LocalStore::Impl {
  c10::intrusive_ptr<c10d::TCPStore> store;

  std::string read(const std::string& key) {
    if (!store->check({key})) return "";
    const std::vector<uint8_t> text = store->get(key);
    return {text.begin(), text.end()};
  }
};

LocalStore::LocalStore(ListenSocket& socket) : impl_(std::make_unique<Impl>()) {
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.port = socket.port();
  options.waitWorkers = false;
  options.masterListenFd = socket.release();
  impl_->store = c10::make_intrusive<c10d::TCPStore>(loopback_address(), options);
}

LocalStore::~LocalStore() = default;

void LocalStore::belong_to(const std::string& run, const std::string& prefix, int size) {
  impl_->store->set(kOwnerKey, to_bytes(run));
  impl_->store->set(size_key(prefix), to_bytes(std::to_string(size)));
}

void LocalStore::close_to_newcomers() { impl_->store->set(kOverKey, to_bytes("1")); }

int64_t LocalStore::farewells(const std::string& prefix) {
  return impl_->store->add(farewells_key(prefix), 0);
}

void LocalStore::post_death(const std::string& prefix, int rank, const std::string& how) {
  impl_->store->append(deaths_key(prefix), to_bytes(death_line(rank, how)));
}

std::string LocalStore::diagnosis(const std::string& prefix) {
  return impl_->read(diagnosis_key(prefix));
}

std::string LocalStore::heartbeat(const std::string& prefix, int rank) {
  return impl_->read(heartbeat_key(prefix, rank));
}

}  // namespace distca
