#pragma once
// Streams of a CUDA device, and marks in what they are given, through PyTorch's device-generic
// events: no header of CUDA is needed. Any thread.

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

}  // namespace distca
