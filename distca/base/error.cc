#include "distca/base/error.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <string_view>
#include <system_error>

namespace distca {
namespace {

/// Returns what the machine refused, or "" if it refused nothing.
std::string failure_of_the_world(const std::exception& error) {
  const std::string what = error.what();
  const std::string_view allocator = "can't allocate memory: ";  // from PyTorch on the host
  if (const size_t at = what.find(allocator); at != std::string::npos) {
    const size_t begin = at + allocator.size();
    return "out of memory: " + what.substr(begin, what.find_first_of(".\n", begin) - begin);
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
  if (what.find("out of memory") != std::string::npos) return first_line(error);
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (system == nullptr) return "";
  return std::ferror(stdout) != 0 ? fmt::format("stdout: {}", system->code().message()) : what;
}

ExitMessage message_of(int exit_code, const char* kind, const std::string& what) {
  return {exit_code, fmt::format("distca: {}: {}", kind, detail::one_line(what))};
}

}  // namespace

std::string first_line(const std::exception& error) {
  std::string text = error.what();
  text = text.substr(0, text.find('\n'));  // c10 goes on with a stack
  // Gloo names its own file and line.
  for (size_t begin = 0; (begin = text.find("[/", begin)) != std::string::npos;) {
    const size_t end = text.find("] ", begin);
    if (end == std::string::npos) break;
    text.erase(begin, end + 2 - begin);
  }
  while (text.ends_with('.') || text.ends_with(' ')) text.pop_back();
  return text;
}

ExitMessage exit_message(const std::exception_ptr& why) {
  try {
    std::rethrow_exception(why);
  } catch (const Error& error) {
    return message_of(error.exit_code(), "error", error.what());
  } catch (const std::exception& error) {
    const std::string world = failure_of_the_world(error);
    return world.empty() ? message_of(70, "bug", error.what()) : message_of(1, "error", world);
  } catch (...) {
    return message_of(70, "bug", "an unknown error");
  }
}

std::string detail::one_line(std::string text) {
  const auto is_control = [](unsigned char c) { return c < ' ' || c == 0x7f; };
  std::ranges::replace_if(text, is_control, ' ');
  if (text.size() <= Error::kMostBytes) return text;
  // The beginning says what is wrong, and the end what would be right.
  constexpr std::string_view kLeftOut = " [...] ";
  constexpr size_t kPart = (Error::kMostBytes - kLeftOut.size()) / 2;
  const auto goes_on = [&](size_t at) { return (text[at] & 0xc0) == 0x80; };  // UTF-8
  size_t end = kPart, begin = text.size() - kPart;
  while (end > 0 && goes_on(end)) --end;
  while (begin < text.size() && goes_on(begin)) ++begin;
  return text.substr(0, end).append(kLeftOut).append(text, begin);
}

void detail::check_failed(const char* file, int line, const std::string& what) {
  throw CheckFailure(fmt::format("{}:{}: check failed: {}", file, line, what));
}

}  // namespace distca
