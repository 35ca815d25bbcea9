"""Files that were damaged, or written by somebody who understood the format otherwise: `damage(draw, path)`."""

import json
import math
import shutil

NUMBERS = (0, -1, 1, 2, 3, 7, 255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 53) + 1, (1 << 62),
           (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10 ** 30, -(1 << 63), 0.5, -0.0, 1e-320, 1e20, 1e308)
OTHERS = (None, True, False, "", "a", "\0", "\x1b[31m\n", "é東京", "../../x", "x" * 5000, [], {}, [[]], [0] * 1000, [1, "a", None],
          {"a": {"b": []}}, "float32", "NaN", "1")


class Pairs(list):
    """A JSON object, in which a key may stand twice."""


def written(value):
    if isinstance(value, (Pairs, dict)):
        pairs = value.items() if isinstance(value, dict) else value
        return "{" + ", ".join(f"{json.dumps(key)}: {written(one)}" for key, one in pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(value)


def read(text):
    return json.loads(text, object_pairs_hook=Pairs)


def junk(draw):
    if draw.random() < 0.02:
        return draw.choice((math.nan, math.inf, -math.inf))  # as Python writes them
    return draw.choice(draw.choice((NUMBERS, OTHERS)))


def places(value, found):
    """Every (container, index) of a document."""
    for index, one in enumerate(value) if isinstance(value, list) else ():
        found.append((value, index))
        places(one[1] if isinstance(value, Pairs) else one, found)
    return found


def json_changed(draw, text):
    """Some fields of the text deleted, doubled, renamed, moved or given other values; None where it is no JSON object."""
    try:
        value = read(text)
    except ValueError:
        return None
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        found = places(value, [])
        if not found:
            return None
        if draw.random() < 0.6:  # not always in a long list
            found = [(holder, index) for holder, index in found if isinstance(holder, Pairs)] or found
        holder, index = draw.choice(found)
        kind = draw.randrange(5)
        if kind == 0:
            del holder[index]
        elif kind == 1:
            holder.insert(index, holder[index])
        elif kind == 2:
            other, where = draw.choice(found)
            mine = holder[index][1] if isinstance(holder, Pairs) else holder[index]
            theirs = other[where][1] if isinstance(other, Pairs) and where < len(other) else junk(draw)
            put(holder, index, theirs if written(theirs) != written(mine) and len(written(theirs)) < 100_000 else junk(draw))
        elif kind == 3 and isinstance(holder, Pairs):
            holder[index] = (draw.choice(("", "a", holder[0][0], holder[index][0] + "x", "__metadata__")), holder[index][1])
        else:
            put(holder, index, junk(draw))
    return written(value)


def put(holder, index, value):
    value = read(written(value))  # a copy, which holds no holder
    holder[index] = (holder[index][0], value) if isinstance(holder, Pairs) else value


def bytes_changed(draw, data):
    data, size = bytearray(data), len(data)
    if size == 0:
        return b"\x00" * draw.choice((1, 8, 1000))
    # Near the beginning as often as anywhere: that is where headers are.
    at = draw.randrange(draw.choice((size, min(size, 64), min(size, 2000))))
    until = min(size, at + draw.choice((1, 2, 8, 100, size)))
    kind = draw.randrange(9)
    if kind == 0:
        for _ in range(draw.choice((1, 1, 3, 20))):
            data[draw.randrange(at, size)] ^= 1 << draw.randrange(8)
    elif kind == 1:
        data[at] = draw.randrange(256)
    elif kind == 2:
        del data[at:]
    elif kind == 3:
        del data[at:until]
    elif kind == 4:
        data[at:at] = data[at:until]
    elif kind == 5:
        data[at:until] = bytes(until - at)
    elif kind == 6:
        data += draw.choice((b"\0", b"\n", bytes(1000), bytes(data[:until])))
    elif kind == 7:
        data[at:at] = draw.choice((b"\xff\xfe", b"\0", b"{", b"[" * 100_000, b'"', b",", b"\xef\xbb\xbf"))
    else:  # a whole number in its place
        where = at // 8 * 8
        data[where:where + 8] = (draw.choice([n for n in NUMBERS if isinstance(n, int)]) % (1 << 64)).to_bytes(8, "little")[:max(size - where, 1)]
    return bytes(data)


def safetensors_changed(draw, data):
    """With another header, whose length is right."""
    length = int.from_bytes(data[:8], "little")
    header = json_changed(draw, data[8:8 + length])
    return None if header is None else len(header.encode()).to_bytes(8, "little") + header.encode() + data[8 + length:]


def damage(draw, path):
    """Changes a file, in words."""
    if draw.random() < 0.04:
        path.unlink()
        if draw.random() < 0.5:
            return "is missing"
        path.mkdir()
        return "is a folder"
    if draw.random() < 0.04:
        other = draw.choice(sorted(file for file in path.parent.parent.rglob("*") if file.is_file() and file != path))
        shutil.copy(other, path)
        return f"has what {other.name} has"
    data = path.read_bytes()
    changed, how = None, "has other fields"
    if draw.random() < 0.7:
        if path.suffix == ".safetensors":
            changed = safetensors_changed(draw, data)
        elif path.suffix in (".json", ".jsonl"):
            lines = data.decode().splitlines() if path.suffix == ".jsonl" else [data.decode()]
            line = draw.randrange(len(lines))
            text = json_changed(draw, lines[line])
            if text is not None:
                changed = "\n".join([*lines[:line], text, *lines[line + 1:]]).encode(errors="surrogatepass")
    if changed is None:
        changed, how = bytes_changed(draw, data), "has other bytes"
    path.write_bytes(changed)
    return how if changed != data else "is as it was"
