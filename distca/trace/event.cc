#include "distca/trace/event.h"

namespace distca {

const char* trace_kind_name(TraceKind kind) {
  switch (kind) {
    case TraceKind::kStep:
      return "step";
    case TraceKind::kCompute:
      return "compute";
    case TraceKind::kCopy:
      return "copy";
    case TraceKind::kLaunch:
      return "launch";
    case TraceKind::kWait:
      return "wait";
    case TraceKind::kFlight:
      return "flight";
  }
  return "";
}

}  // namespace distca
