// Stands in for CUDA's run-time library and driver, for scripts/check_kernels.py: compiled kernels
// are loaded and called with it on a machine that has no GPU. It keeps nothing and computes
// nothing. It tells the script what it is asked for: every call by name, and launches with the
// image that the kernel is of. REST names the other functions that the kernels' objects need; who
// calls one of them gets an error.

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { kSuccess = 0, kInvalidValue = 1, kUnknown = 999, kDynamicShared = 8, kKernels = 16 };

typedef struct {
  uint32_t x, y, z;
} Dim;
typedef struct {  // cudaLaunchAttribute
  int32_t id;
  int32_t zero;
  char value[64];
} Attribute;
typedef struct {  // cudaLaunchConfig_t
  Dim grid, block;
  size_t shared;
  void* stream;
  const Attribute* attributes;
  uint32_t attribute_count;
} Config;
typedef struct {
  char name[1024];
  const void* image;
  int64_t shared_limit;  // dynamic shared memory that the kernel may ask for
} Kernel;
typedef struct {
  void (*called)(const char* name);
  int (*launched)(const Kernel* kernel, const Config* config, void** arguments);
} Told;

static Told told;
static Kernel kernels[kKernels];
static int kernel_count;

#define CALLED told.called(__func__)

void standin_tell(void (*called)(const char*),
                  int (*launched)(const Kernel*, const Config*, void**)) {
  told = (Told){called, launched};
}

// --- the driver
int cuDeviceGet(int* device, int ordinal) {
  CALLED;
  *device = ordinal;
  return kSuccess;
}

int cuKernelGetAttribute(int* value, int attribute, void* kernel, int device) {
  CALLED;
  (void)device;
  *value = attribute == kDynamicShared ? (int)((const Kernel*)kernel)->shared_limit : 0;
  return kSuccess;
}

int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                     unsigned long long flags, int* found) {
  CALLED;
  (void)version, (void)flags;
  static const struct {
    const char* name;
    void* function;
  } known[] = {{"cuDeviceGet", (void*)cuDeviceGet},
               {"cuKernelGetAttribute", (void*)cuKernelGetAttribute}};
  *function = NULL;
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (strcmp(name, known[i].name) == 0) *function = known[i].function;
  if (found) *found = *function ? 0 : 1;
  if (!*function) told.called(name);
  return *function ? kSuccess : kUnknown;
}

// --- the run-time library
int cudaDriverGetVersion(int* version) {
  CALLED;
  *version = 13000;
  return kSuccess;
}
int cudaGetDevice(int* device) {
  CALLED;
  *device = 0;
  return kSuccess;
}
int cudaSetDevice(int device) {
  CALLED;
  return device == 0 ? kSuccess : kInvalidValue;
}
int cudaGetDeviceCount(int* count) {
  CALLED;
  *count = 1;
  return kSuccess;
}
// A Hopper.
int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  CALLED;
  if (device != 0) return kInvalidValue;
  switch (attribute) {
    case 16:  // multiprocessors
      *value = 132;
      return kSuccess;
    case 75:  // the capability's first number, and its second
      *value = 9;
      return kSuccess;
    case 76:
      *value = 0;
      return kSuccess;
    case 97:  // shared memory of a block that asks for it
      *value = 232448;
      return kSuccess;
    default:
      told.called("cudaDeviceGetAttribute of another attribute");
      return kUnknown;
  }
}
int cudaGetLastError(void) {
  CALLED;
  return kSuccess;
}
const char* cudaGetErrorName(int error) {
  CALLED;
  return error == kInvalidValue ? "cudaErrorInvalidValue" : "cudaErrorUnknown";
}
const char* cudaGetErrorString(int error) {
  CALLED;
  return error == kInvalidValue ? "invalid argument" : "unknown error";
}

int cudaLibraryLoadData(void** library, const void* image, void* options, void** values,
                        unsigned count, void* more_options, void** more_values,
                        unsigned more_count) {
  CALLED;
  (void)options, (void)values, (void)count, (void)more_options, (void)more_values, (void)more_count;
  *library = (void*)image;
  return kSuccess;
}
int cudaLibraryUnload(void* library) {
  (void)library;  // when the process ends, and the script has ended before
  return kSuccess;
}
int cudaLibraryGetKernel(void** kernel, void* library, const char* name) {
  CALLED;
  if (kernel_count == kKernels || strlen(name) >= sizeof kernels[0].name) return kUnknown;
  Kernel* const made = &kernels[kernel_count++];
  *made = (Kernel){.image = library, .shared_limit = 48 * 1024};
  strcpy(made->name, name);
  *kernel = made;
  return kSuccess;
}
static int set_attribute(void* kernel, int attribute, int value) {
  if (attribute == kDynamicShared) ((Kernel*)kernel)->shared_limit = value;
  return kSuccess;
}
int cudaFuncSetAttribute(const void* kernel, int attribute, int value) {
  CALLED;
  return set_attribute((void*)kernel, attribute, value);
}
int cudaKernelSetAttributeForDevice(void* kernel, int attribute, int value, int device) {
  CALLED;
  return device == 0 ? set_attribute(kernel, attribute, value) : kInvalidValue;
}
int cudaLaunchKernelExC(const Config* config, const void* kernel, void** arguments) {
  CALLED;
  return told.launched((const Kernel*)kernel, config, arguments);
}

#define OTHER(name)  \
  int name(void) {   \
    CALLED;          \
    return kUnknown; \
  }
REST
