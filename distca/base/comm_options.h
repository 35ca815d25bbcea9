#pragma once
// How long the ranks of a group wait for each other (docs/comm.md). A plain value.

namespace distca {

/// How long a group waits before it gives up, in seconds.
struct CommOptions {
  /// How long one wait may last.
  double timeout_s = 60;
  /// How long live ranks have to end after one rank was lost.
  double grace_s = 5;
  /// How long the ranks may take to meet. It is long because programs load at their own pace.
  double startup_timeout_s = 300;
};

}  // namespace distca
