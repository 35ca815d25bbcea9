// fmt's own functions, compiled once: programs need no libfmt.so, which is not where a wheel is
// installed, and no source compiles them for itself (FMT_HEADER_ONLY), which takes 3 s. What lies
// in fmt's library differs between its versions. These two format every type, and so they need all
// of it. Nothing is inlined here (CMakeLists.txt): what they need is there for other sources, too.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

namespace distca {
namespace {

[[gnu::used]] std::string (*const kVformat)(fmt::string_view, fmt::format_args) = fmt::vformat;
[[gnu::used]] void (*const kVprint)(fmt::string_view, fmt::format_args) = fmt::vprint;

}  // namespace
}  // namespace distca
