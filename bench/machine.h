#pragma once
// What /proc/cpuinfo says of this machine; "unknown" and no flags where there is none. Any thread.

#include <fstream>
#include <sstream>
#include <string>

namespace distca::bench {

/// The value of the first line of that name, "" if none.
inline std::string cpu_info(const std::string& name) {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind(name, 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

inline std::string cpu_name() {
  const std::string name = cpu_info("model name");
  return name.empty() ? "unknown" : name;
}

/// "avx512_bf16", "amx_bf16", ...
inline bool cpu_has(const std::string& flag) {
  std::istringstream flags(cpu_info("flags"));
  for (std::string word; flags >> word;) {
    if (word == flag) return true;
  }
  return false;
}

}  // namespace distca::bench
