#pragma once
// Under which address the other ranks reach this one. Any thread.

#include <cstdint>
#include <optional>
#include <string>

namespace distca {

struct Rendezvous;

/// Throws Error(kConfig) with the resolver's reason, at once, if the place where ranks meet has a
/// name that the resolver does not know.
void check_address(const Rendezvous& rendezvous);

/// Returns an id that all processes have in common that reach each other through the loopback
/// interface: those of one machine, or of one network namespace of it.
std::string network_id();

/// The address, in figures, of the interface that leads to `host`: reachable for all who reach that
/// host, unless it is a loopback address. None if the system knows neither the host nor a way.
std::optional<std::string> address_towards(const std::string& host, uint16_t port);

bool is_loopback(const std::string& address);

/// "lo, eth0".
std::string list_interfaces();

/// Throws Error(kConfig) naming those that exist if GLOO_SOCKET_IFNAME, whose value is `name`,
/// names no interface of this machine.
void check_interface(const std::string& name);

}  // namespace distca
