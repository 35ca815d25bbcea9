#pragma once
// Streams of a CUDA device, marks in what they are given, and a thread group whose messages lie
// there: through PyTorch's device-generic events, so no header of CUDA is needed. Any thread.

#include <memory>

#include "distca/comm/thread_group.h"

namespace c10 {
class Stream;
struct Device;
}  // namespace c10

namespace distca {

/// The stream of the calling thread.
c10::Stream current_stream(const c10::Device& device);
/// Marks the end of all that `stream` has been given.
DeviceMark end_of(const c10::Stream& stream);
/// Makes `stream` wait for the mark before what it is given from now on.
void follow(const c10::Stream& stream, const DeviceMark& mark);
/// Throws c10::Error if the device is lost.
bool has_passed(const DeviceMark& mark);

/// While what it returns lives, the calling thread gives the device its work on a stream of its
/// own. With one stream for all ranks that are threads, each would wait for what the others do, and
/// a wait that is missing would not show. To be destroyed by the same thread.
std::shared_ptr<void> begin_device_rank(int cuda_device);

/// Each rank's thread begins as begin_device_rank() says. Copies go through communication streams:
/// behind the current streams of both sides' threads when they issued, and before what the current
/// stream of a thread is given once it has waited. No host thread waits for the device.
ThreadDevice cuda_thread_device(int cuda_device);

}  // namespace distca
