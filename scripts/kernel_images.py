"""What the file of a compiled kernel says of itself: the symbols that a shared object needs, and of each kernel in an
image for the GPU (ELF) its registers, memory and parameters. Nothing but the standard library is needed.
"""

import collections
import dataclasses
import struct

FAT, FAT_ELF = b"\x50\xed\x55\xba", 2
CUDA = 190  # ELF's number of the machine
# Attributes of .nv.info, as `cuobjdump --dump-elf` names them.
THREADS, FRAME_SIZE, PARAMETER, PARAMETER_BYTES, REGISTERS = 0x10, 0x11, 0x17, 0x19, 0x2F
PARAMETER_WIDE = 0x45  # the same for more than 4 KiB
OF_ALL = {REGISTERS: "registers", FRAME_SIZE: "frame"}  # what .nv.info says of each kernel
Section = collections.namedtuple("Section", "name offset size link")


class NotAnImage(Exception):
    """In words for people."""


@dataclasses.dataclass
class Kernel:
    """Sizes in bytes."""

    name: str
    registers: int = 0
    frame: int = 0  # of a thread, in local memory: spilled registers and arrays
    static_shared: int = 0
    threads: tuple = ()  # of a block, where only this many are allowed
    parameters: list = dataclasses.field(default_factory=list)  # (offset, size), in order
    parameter_bytes: int = 0


class Elf:
    def __init__(self, data):
        if data[:4] != b"\x7fELF" or len(data) < 64 or data[4:6] != b"\x02\x01":
            raise NotAnImage("is no ELF of 64 bits")
        self.data, self.abi = data, data[8]
        (_, self.machine, _, _, _, sections, self.flags, _, _, _, size, count, names) = struct.unpack_from(
            "<HHIQQQIHHHHHH", data, 16)
        if not count or sections + size * count > len(data):
            raise NotAnImage("is cut off")
        raw = [struct.unpack_from("<IIQQQQIIQQ", data, sections + size * i) for i in range(count)]
        strings = data[raw[names][4]:raw[names][4] + raw[names][5]]
        self.sections = [Section(text(strings, r[0]), *r[4:7]) for r in raw]

    def named(self, name):
        """The section of this name; an empty one if there is none."""
        return next((section for section in self.sections if section.name == name), Section(name, 0, 0, 0))

    def content(self, section):
        return self.data[section.offset:section.offset + section.size]

    def symbols(self, name):
        """(name, is undefined) of a table, by index."""
        table = self.named(name)
        strings = self.content(self.sections[table.link])
        entries = struct.iter_unpack("<IBBHQQ", self.content(table))
        return [(text(strings, entry[0]), entry[3] == 0) for entry in entries]


def text(strings, at):
    return strings[at:strings.index(b"\0", at)].decode()


def image_bytes(head):
    """The size of an image that begins with these 64 bytes: an ELF, or a fat binary."""
    if head[:4] == FAT:
        header, rest = struct.unpack_from("<HQ", head, 6)
        return header + rest
    if head[:4] != b"\x7fELF":
        raise NotAnImage(f"begins with {head[:4].hex()}, not as an image for a GPU")
    programs, sections, _, _, program, programs_count, section, count, _ = struct.unpack_from("<QQIHHHHHH", head, 32)
    return max(programs + program * programs_count, sections + section * count)


def elf_of(image):
    """The one ELF in a fat binary."""
    if image[:4] != FAT:
        return image
    found, at = [], struct.unpack_from("<H", image, 6)[0]
    while at + 16 <= len(image):
        kind, _, header, size = struct.unpack_from("<HHIQ", image, at)
        if kind == FAT_ELF:
            found.append(image[at + header:at + header + size])
        at += header + size
    if len(found) != 1 or found[0][:4] != b"\x7fELF":
        raise NotAnImage(f"has {len(found)} ELFs, or one that is compressed")
    return found[0]


def attributes(content):
    """(attribute, value) of a section .nv.info*: bytes, or a number."""
    at = 0
    while at + 4 <= len(content):
        form, attribute, value = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == 4:
            yield attribute, content[at:at + value]
            at += value
        else:
            yield attribute, value


def kernels(image):
    """The kernels of an image, by name, and the architecture's number (90 of sm_90a)."""
    elf = Elf(image)
    if elf.machine != CUDA:
        raise NotAnImage("is not for a GPU")
    arch = elf.flags >> 8 & 0xFF if elf.abi >= 8 else elf.flags & 0xFF
    names = [name for name, _ in elf.symbols(".symtab")]
    code = [section.name.removeprefix(".text.") for section in elf.sections if section.name.startswith(".text.")]
    found = {name: Kernel(name, static_shared=elf.named(f".nv.shared.{name}").size) for name in code}
    for name, kernel in found.items():
        describe(kernel, elf.content(elf.named(f".nv.info.{name}")))
    for attribute, value in attributes(elf.content(elf.named(".nv.info"))):
        if attribute in OF_ALL:
            symbol, number = struct.unpack("<II", value)
            if names[symbol] in found:
                setattr(found[names[symbol]], OF_ALL[attribute], number)
    return found, arch


def describe(kernel, content):
    by_place = {}
    for attribute, value in attributes(content):
        if attribute in (PARAMETER, PARAMETER_WIDE):
            _, place, offset, size = struct.unpack_from("<IHHI", value)
            by_place[place] = offset, size >> 18 if attribute == PARAMETER else size
        elif attribute == PARAMETER_BYTES:
            kernel.parameter_bytes = value
        elif attribute == THREADS:
            kernel.threads = struct.unpack("<III", value)
    if sorted(by_place) != list(range(len(by_place))):
        raise NotAnImage(f"parameters of {kernel.name} are not numbered from 0")
    kernel.parameters = [by_place[place] for place in sorted(by_place)]
