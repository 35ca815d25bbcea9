#include "distca/comm/launch/own_address.h"

#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/machine.h"
#include "distca/comm/launch/rendezvous.h"

namespace distca {

std::string network_id() {
  if (std::string space = namespace_id("net"); !space.empty()) return space;
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, sizeof(host) - 1);
  return host;
}

void check_address(const Rendezvous& rendezvous) {
  addrinfo* found = nullptr;
  const int code = getaddrinfo(rendezvous.address.c_str(), nullptr, nullptr, &found);
  if (code == 0) return freeaddrinfo(found);
  throw Error(ErrorKind::kConfig,
              "rank {} of {} (from {}) finds no address of \"{}\", where rank 0 runs: {}; set "
              "MASTER_ADDR to a name that all machines know, or to an address",
              rendezvous.rank, rendezvous.size, rendezvous.source, rendezvous.address,
              code == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(code));
}

std::optional<std::string> address_towards(const std::string& host, uint16_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;  // connecting one sends nothing
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return std::nullopt;
  }
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  char text[NI_MAXHOST] = "";
  const FileDescriptor fd(socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (fd.get() >= 0 && connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0 &&
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0) {
    getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof(text), nullptr, 0,
                NI_NUMERICHOST);
  }
  freeaddrinfo(found);
  if (*text == '\0') return std::nullopt;
  return text;
}

bool is_loopback(const std::string& address) {
  return address == "::1" || address.starts_with("127.") || address.starts_with("::ffff:127.");
}

std::string list_interfaces() {
  const std::unique_ptr<struct if_nameindex, void (*)(struct if_nameindex*)> all(if_nameindex(),
                                                                                 if_freenameindex);
  std::string text;
  for (const auto* one = all.get(); one != nullptr && one->if_index != 0; ++one) {
    text += (text.empty() ? "" : ", ") + std::string(one->if_name);
  }
  return text;
}

void check_interface(const std::string& name) {
  if (if_nametoindex(name.c_str()) != 0) return;
  throw Error(ErrorKind::kConfig, "GLOO_SOCKET_IFNAME={}: no such interface; there are {}", name,
              list_interfaces());
}

}  // namespace distca
