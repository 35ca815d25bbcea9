#include "distca/comm/as_on_device.h"

namespace distca {
namespace {

thread_local int wanted = 0;

}  // namespace

bool as_on_device(int cuda_device) { return cuda_device >= 0 || wanted > 0; }

AsOnDevice::AsOnDevice() { ++wanted; }
AsOnDevice::~AsOnDevice() { --wanted; }

}  // namespace distca
