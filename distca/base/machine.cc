#include "distca/base/machine.h"

#include <filesystem>
#include <fstream>
#include <system_error>

namespace distca {
namespace {

/// The value of the first line of that name, "" if none.
std::string cpu_info(std::string_view name) {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with(name) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

}  // namespace

std::string cpu_name() {
  const std::string name = cpu_info("model name");
  return name.empty() ? "unknown" : name;
}

std::string gpu_name() {
  const std::filesystem::path drivers = "/proc/driver/nvidia/gpus";
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(drivers, none)) {
    std::ifstream facts(entry.path() / "information");
    for (std::string line; std::getline(facts, line);) {
      const size_t name = line.find_first_not_of(" \t", line.find(':') + 1);
      if (line.starts_with("Model:") && name != std::string::npos) return line.substr(name);
    }
  }
  return "unknown CUDA device";
}

std::string namespace_id(const std::string& kind) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::error_code code;
  const auto space = std::filesystem::read_symlink("/proc/self/ns/" + kind, code);
  return std::getline(file, boot) && !code ? boot + " " + space.string() : "";
}

std::string steady_clock_id() { return namespace_id("time"); }

}  // namespace distca
