#pragma once
// The functions of vectors that ATen takes from MKL on a CPU, and their first calls.

namespace distca {

/// Makes the first call of cos, sin, exp, log and tanh, in fp32 and in fp64, on one thread. Whoever
/// gives one of these operators of ATen an input that decides a result calls this before.
///
/// MKL chooses the code of each of these functions when it is first called. Where threads make that
/// call at the same time, one of them may compute it with another code, which is good to 1e-8 in
/// fp64 and to some thousand units in the last place in fp32 (PyTorch's issue 188792; oneMKL 2024,
/// which its wheels hold). Ranks that are threads of one process, and ATen's own threads on one
/// large tensor, make it so in the first step: a run then has other bits than the same run again.
///
/// Any thread, at any time. Callers wait until the first has ended; later calls cost a load.
void settle_vector_functions();

}  // namespace distca
