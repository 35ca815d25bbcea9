#include "distca/base/machine.h"

#include <filesystem>
#include <fstream>
#include <system_error>

namespace distca {
namespace {

/// The text behind the colon in the file's first line that begins with `name`; "" if nothing.
std::string fact(const std::filesystem::path& file, std::string_view name) {
  std::ifstream facts(file);
  for (std::string line; std::getline(facts, line);) {
    const size_t value = line.find_first_not_of(" \t", line.find(':') + 1);
    if (line.starts_with(name) && value != std::string::npos) return line.substr(value);
  }
  return "";
}

}  // namespace

std::string cpu_name() {
  const std::string name = fact("/proc/cpuinfo", "model name");
  return name.empty() ? "unknown" : name;
}

std::string gpu_name() {
  const std::filesystem::path drivers = "/proc/driver/nvidia/gpus";
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(drivers, none)) {
    if (std::string name = fact(entry.path() / "information", "Model:"); !name.empty()) return name;
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
