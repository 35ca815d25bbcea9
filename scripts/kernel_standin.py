"""Calls a compiled kernel with a stand-in of CUDA (check_kernels_cudart.c) in place of the library, and checks what the
kernel asks of it.
"""

import ctypes
import math
import struct

import kernel_images
from kernel_calls import TYPES, Tensor, packed

STREAM = 0x5EED0
RESERVED = 1024  # bytes of shared memory that the system keeps
MOST_SHARED = 232448  # bytes of a block on Hopper
DESCRIPTOR_BYTES = 128
RAGGED = 1 << 30  # rows by which a descriptor that cuts off a sequence's end lies before its tensor
INVALID_VALUE = 1
CLUSTER = 4  # cudaLaunchAttributeClusterDimension
EARLY = 6  # cudaLaunchAttributeProgrammaticStreamSerialization


class Fault(Exception):
    """A check that failed, in words."""


class Dim(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint32), ("y", ctypes.c_uint32), ("z", ctypes.c_uint32)]


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("zero", ctypes.c_int32), ("value", ctypes.c_uint32 * 16)]


class Config(ctypes.Structure):
    _fields_ = [("grid", Dim), ("block", Dim), ("shared", ctypes.c_size_t), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.POINTER(Attribute)), ("attribute_count", ctypes.c_uint32)]


class LoadedKernel(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 1024), ("image", ctypes.c_void_p), ("shared_limit", ctypes.c_int64)]


CALLED = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
LAUNCHED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(LoadedKernel), ctypes.POINTER(Config),
                            ctypes.POINTER(ctypes.c_void_p))


class Descriptor:
    """Of a tensor, as the kernels' own code on the host writes it for the GPU's copy engine: the address, strides in 16
    bytes from the second dimension on, and sizes less one."""

    def __init__(self, content):
        self.address, kind, *strides = struct.unpack_from("<QI4I", content)
        rank = (kind >> 4 & 7) + 1
        sizes = struct.unpack_from("<5I", content, 32)
        self.sizes = [size + 1 for size in sizes[:rank]]
        self.strides = [16 * stride for stride in strides[:rank - 1]]

    def is_of(self, tensor):
        """One that cuts off the ends of sequences begins RAGGED rows before the tensor, and has one dimension more."""
        element = TYPES[tensor.dtype][1] // 8
        wanted = {(size, element * stride) for size, stride in zip(tensor.sizes, tensor.strides()) if size > 1}
        described = {(size, stride) for size, stride in zip(self.sizes, [element, *self.strides]) if size > 1}
        if self.address == tensor.address:
            return described == wanted
        begin = tensor.address - RAGGED * element * tensor.strides()[0]
        return len(tensor.sizes) == 3 and self.address == begin and wanted - described <= {
            (tensor.sizes[0], element * tensor.strides()[0])}


class Standin:
    """One compiled kernel and what it has asked for."""

    def __init__(self, library, path):
        self.asked, self.launches, self.fault = set(), [], None
        self.kernels, self.arch, self.image = {}, 0, b""
        cuda = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        self.told = CALLED(lambda name: self.asked.add(name.decode())), LAUNCHED(self.on_launch)
        cuda.standin_tell(*self.told)
        try:
            made = ctypes.CDLL(str(path))
            self.function, set_stream, self.error = (
                getattr(made, name) for name in ("__tvm_ffi_func", "distca_kernel_stream", "distca_kernel_error"))
        except (OSError, AttributeError) as fault:
            raise Fault(f"{path.name} cannot be loaded: {fault}") from None
        self.function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p]
        self.error.restype = ctypes.c_char_p
        set_stream(ctypes.c_void_p(STREAM))

    # --- what the stand-in tells
    def on_launch(self, kernel, config, arguments):
        loaded, copy = kernel.contents, Config.from_buffer_copy(config.contents)
        try:
            if 0 in (copy.grid.x, copy.grid.y, copy.grid.z):
                raise Fault("a grid without blocks, which CUDA refuses")
            described = self.describe(loaded)
            contents = parameter_contents(described, arguments)
        except (Fault, kernel_images.NotAnImage) as fault:
            self.fault = self.fault or Fault(fault)
            return INVALID_VALUE
        attributes = {one.id: list(one.value) for one in copy.attributes[:copy.attribute_count]}
        self.launches.append((described, copy, contents, loaded.shared_limit, attributes))
        return 0

    def describe(self, loaded):
        """What the image says of a kernel."""
        name = loaded.name.decode()
        if name not in self.kernels:
            head = ctypes.string_at(loaded.image, 64)
            image = ctypes.string_at(loaded.image, kernel_images.image_bytes(head))
            self.image = kernel_images.elf_of(image)
            found, self.arch = kernel_images.kernels(self.image)
            if name not in found:
                raise Fault(f"{name} is launched, which the image does not have")
            self.kernels[name] = found[name]
        return self.kernels[name]

    # --- calls
    def call(self, arguments):
        """Calls the kernel; a refusal is a Fault."""
        values, kept = packed(arguments)
        self.launches, self.fault = [], None
        result = packed([None])[0]
        code = self.function(None, ctypes.addressof(values), len(values), ctypes.addressof(result))
        # Lists are lent: the kernel gives back what it has counted.
        if any(getattr(held, "references", 1) != 1 for held in kept):
            raise Fault("the kernel keeps a list that it was lent")
        if self.fault:
            raise self.fault
        if code:
            raise Fault(f"refused: {(self.error() or b'').decode()}")

    def checked_call(self, arguments):
        """The kernel that was launched, and how."""
        self.call(arguments)
        if len(self.launches) != 1:
            raise Fault(f"{len(self.launches)} launches instead of one")
        kernel, config, contents, shared_limit, attributes = self.launches[0]
        if config.stream != STREAM:
            raise Fault("the launch is on another stream than the one given")
        if config.block.x % 128 or kernel.threads not in ((), (config.block.x, config.block.y, config.block.z)):
            raise Fault(f"{config.block.x} threads in a block, the kernel demands {kernel.threads}")
        # The system's own part (1 KiB, which the image counts, too) lies outside a block's most.
        shared = config.shared + max(kernel.static_shared - RESERVED, 0)
        if config.shared > shared_limit or shared > MOST_SHARED:
            raise Fault(f"{shared} bytes of shared memory, where the kernel was allowed {shared_limit} and a block "
                        f"gets {MOST_SHARED}")
        cluster = attributes.get(CLUSTER, [1, 1, 1])[:3]
        if cluster != [1, 1, 1]:
            raise Fault(f"a cluster of {cluster} blocks, where each should be for itself")
        self.begins_early = bool(attributes.get(EARLY, [0])[0])
        self.check_addresses(arguments, contents)
        check_numbers(arguments, [content for content in contents if len(content) == 4])
        return kernel, config

    def check_addresses(self, arguments, contents):
        """Each tensor is where a parameter, or a descriptor with its sizes and strides, says."""
        numbers = [int.from_bytes(content[at:at + 8], "little") for content in contents
                   if len(content) != DESCRIPTOR_BYTES for at in range(0, len(content) - 7, 8)]
        descriptors = [Descriptor(content) for content in contents if len(content) == DESCRIPTOR_BYTES]
        described = 0
        for argument in arguments:
            if not isinstance(argument, Tensor):
                continue
            of = [descriptor for descriptor in descriptors if descriptor.is_of(argument)]
            described += len(of)
            if not of and argument.address not in numbers:
                raise Fault(f"no parameter has the address of {argument.name}, or its descriptor has other sizes")
        if described != len(descriptors):
            raise Fault(f"{len(descriptors)} descriptors, of which {described} are of a tensor that was given")

    def check_grid(self, step, caller, launch, config):
        """All blocks of all sequences have a place in the grid, which has no more than one block too many for each
        sequence and head."""
        heads = launch.key_heads * caller.group
        least, most_more = caller.blocks(step, launch), len(launch.queries) * heads
        if step == "forward":  # a warp group computes 64 rows, and one loads
            tile = 64 * (config.block.x // 128 - 1)
            # Rows of heads that share keys may stand in one block.
            least = sum(-(-rows * caller.group // tile) for rows in launch.queries) * launch.key_heads
        blocks = config.grid.x * config.grid.y * config.grid.z
        if not least <= blocks <= least + most_more:
            raise Fault(f"a grid of {blocks} blocks where {least} have work")


def check_numbers(arguments, contents):
    """Each number is a parameter: the scale as it is, or for powers of two. A scale of 1 may have been left out."""
    integers = {int.from_bytes(content, "little") for content in contents}
    singles = [struct.unpack("<f", content)[0] for content in contents]
    for argument in arguments:
        if isinstance(argument, int) and argument not in integers:
            raise Fault(f"no parameter is {argument}, as an argument is")
        if isinstance(argument, float) and argument != 1 and not any(
                math.isclose(single, number, rel_tol=1e-6) for single in singles
                for number in (argument, argument * math.log2(math.e))):
            raise Fault(f"no parameter is the scale {argument}")


def parameter_contents(kernel, arguments):
    """The bytes of each parameter. Each has a place of its own in the caller's memory."""
    places = []
    for i, (_, size) in enumerate(kernel.parameters):
        if not arguments[i]:
            raise Fault(f"parameter {i} of {len(kernel.parameters)} has no place in memory")
        places.append((arguments[i], arguments[i] + size))
    ordered = sorted(places)
    if any(end > begin for (_, end), (begin, _) in zip(ordered, ordered[1:])):
        raise Fault("parameters overlap: the launch gives others than the kernel has")
    last = kernel.parameters[-1] if kernel.parameters else (0, 0)
    if sum(last) != kernel.parameter_bytes:
        raise Fault(f"parameters end at {sum(last)}, the kernel says {kernel.parameter_bytes}")
    return [ctypes.string_at(begin, end - begin) for begin, end in places]
