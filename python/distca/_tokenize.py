"""Tokenizes text for `distca data prepare`, which starts this program and reads what it prints.

  python3 distca-tokenize TOKENIZER {lines|files} KEY WORKERS {append-eod|no-append-eod} <FILES
  python3 distca-tokenize TOKENIZER {special|no-special}     for `distca generate`: see answer()

FILES are names, each with a NUL byte behind it. Each line of a file is a document, in JSON, with its text at KEY, or
each file is a document. Files may be compressed.

It needs the package `tokenizers` and no PyTorch. WORKERS processes tokenize; the order of documents is that of the
files and lines, whatever their number. Printed are a line of JSON, which says what the tokenizer is, and then blocks of
six little-endian 64-bit integers (documents, tokens, empty texts that were left out, files that are no text and were
left out, bytes of the documents' text, bytes of all files read so far), the tokens of each document (64 bits), and the
ids (32 bits). A block of -1 documents ends the data. If something is wrong, the first or the next thing printed is a
line {"error": ...} or a block of -2 documents (-3: the machine failed) with the words' length in the place of the
tokens, and the words.
"""

import hashlib
import importlib
import json
import os
import re
import signal
import sys
from array import array
from multiprocessing import get_context
from pathlib import Path

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this program's folder: nothing there stands in for a package

BLOCK_BYTES = 1 << 20  # of lines or files, which one process tokenizes at a time
# How a file begins that is no plain text, what it is, and the module of Python's that reads it.
FORMATS = ((rb"\x1f\x8b", "gzip", "gzip"), (rb"BZh[1-9]1AY&SY", "bzip2", "bz2"), (rb"\xfd7zXZ\0", "xz", "lzma"),
           (rb"\x28\xb5\x2f\xfd", "Zstandard", "compression.zstd"), (rb"\x04\x22\x4d\x18", "LZ4", None),
           (rb"PK\x03\x04", "a zip archive", None), (rb"PAR1", "Parquet", None))


class BadInput(Exception):
    """One line for the user."""


class Failed(Exception):
    """One line for the user; the input is not to blame."""


def read_json(path):
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise BadInput(f"{path}: not JSON") from None
    if not isinstance(value, dict):
        raise BadInput(f"{path}: not a JSON object")
    return value


def load(given):
    """The tokenizer and its tokenizer.json."""
    given = Path(given)
    path = given / "tokenizer.json" if given.is_dir() else given
    if not path.is_file():
        raise BadInput(f"{path}: no such file; --tokenizer is byte, a tokenizer.json or a folder that has one")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise BadInput(f"{sys.executable} has no package tokenizers: name a Python that has it with DISTCA_PYTHON, such as "
                       "VENV/bin/python after `python3 -m venv VENV && VENV/bin/pip install tokenizers`") from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise BadInput(f"{path}: not a tokenizer: {' '.join(str(error).split())}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, path


def end_token(tokenizer, path):
    """The end-of-document token that the tokenizer's folder names, and its id."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = path.parent / name
        token = read_json(file).get("eos_token") if path.name == "tokenizer.json" and file.is_file() else None
        if isinstance(token, dict):
            token = token.get("content")
        if token is None:
            continue
        number = tokenizer.token_to_id(token)
        if number is None:
            raise BadInput(f"{file}: eos_token {token!r} is not in the vocabulary of {path}")
        return token, number
    raise BadInput(f"{path}: no tokenizer_config.json beside it names an eos_token to end documents with: give "
                   "--no-append-eod")


def contents(file, path, kind):
    """What a file holds, which may be compressed. Of files that are documents, other formats are bytes."""
    for begin, name, module in FORMATS:
        if not re.match(begin, file.peek(10)):
            continue
        try:
            return importlib.import_module(module or "").open(file)
        except (ImportError, ValueError):
            if kind == "lines":
                raise BadInput(f"{path}: it is {name}, which is not read here: unpack it") from None
    return file


def blocks(kind, paths):
    """(path, number of the first line, what it holds), of about BLOCK_BYTES each, and the bytes of files that were read
    for it. It holds lines, or the bytes of whole files."""
    files, read = [], 0
    for path in paths:
        first, before = 1, 0
        try:
            with open(path, "rb") as file:
                if kind == "files":
                    files.append(contents(file, path, kind).read())
                    read += os.path.getsize(path)  # 0 of a pipe
                    if sum(map(len, files)) >= BLOCK_BYTES:
                        yield (path, 1, files), read
                        files, read = [], 0
                    continue
                inside = contents(file, path, kind)
                while lines := inside.readlines(BLOCK_BYTES):
                    here = file.tell() if file.seekable() else 0  # nobody knows how much a pipe holds
                    yield (path, first, lines), here - before
                    first, before = first + len(lines), here
        except BadInput:
            raise
        except Exception as error:  # those that decompress raise several kinds
            raise BadInput(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if files:
        yield (path, 1, files), read


def text_of(line, key):
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        raise BadInput(f"not UTF-8: byte {error.object[error.start]:#04x}, the line's byte {error.start + 1}") from None
    except (ValueError, RecursionError):
        raise BadInput("not JSON") from None
    if not isinstance(value, dict):
        raise BadInput("not a JSON object")
    if key not in value:
        raise BadInput(f"no key {key!r}; --json-key names the one that has the text")
    text = value[key]
    if not isinstance(text, str):
        raise BadInput(f"{key!r} is no text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{key!r} is no text: it has half of a surrogate pair") from None
    return text


def texts(kind, key, path, first, held):
    """Of what a block holds: the text of each document; None where it is none."""
    for number, one in enumerate(held, first):
        if kind == "files":
            try:
                yield None if b"\0" in one else one.decode()
            except UnicodeDecodeError:
                yield None
        elif one.strip():
            try:
                yield text_of(one, key)
            except BadInput as error:
                raise BadInput(f"{path} line {number}: {error}") from None


def tokenize(tokenizer, kind, key, end, *block):
    """Of a block: documents, tokens, texts that were empty, files that are no text, bytes of text, and the lengths and
    ids as bytes."""
    lengths, ids, empty, no_text, text_bytes = array("q"), array("i"), 0, 0, 0
    for text in texts(kind, key, *block):
        if text is None:
            no_text += 1
            continue
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        if not tokens:
            empty += 1
            continue
        text_bytes += len(text.encode())
        tokens.extend(end)
        lengths.append(len(tokens))
        ids.extend(tokens)
    return len(lengths), len(ids), empty, no_text, text_bytes, lengths.tobytes() + ids.tobytes()


def work(pipe, others, *settings):
    for other in others:  # held by the parent alone, so that its end is seen
        other.close()
    try:
        while True:
            block = pipe.recv()
            try:
                pipe.send(tokenize(*settings, *block))
            except BadInput as error:
                pipe.send(error)
    except (EOFError, OSError):  # the parent has ended
        pass


def in_order(todo, workers, settings):
    """What tokenize() gives of each of the blocks, in their order, and the bytes that were read for it."""
    context = get_context("fork")  # nothing has started a thread
    pipes = []
    for _ in range(workers):
        mine, its = context.Pipe()
        pipes.append(mine)
        context.Process(target=work, args=(its, list(pipes), *settings), daemon=True).start()
        its.close()
    given, taken, sizes = 0, 0, []
    more, fault = True, None
    while more or taken < given:
        # A process has one block at a time: while it waits to hand over a result, it takes no other.
        while more and given - taken < workers:
            try:
                block, size = next(todo, (None, 0))
            except BadInput as error:  # lines before it may be wrong, too
                block, fault = None, error
            more = block is not None
            if more:
                pipes[given % workers].send(block)
                sizes.append(size)
                given += 1
        if taken == given:
            break
        try:
            result = pipes[taken % workers].recv()
        except EOFError:
            raise Failed("a process that tokenizes ended without a result; often for memory: see dmesg") from None
        if isinstance(result, BadInput):
            raise result
        yield sizes[taken], result
        taken += 1
    if fault:
        raise fault


def answer(given, special):
    """Answers lines of JSON, each with a line: a prompt with its ids, then the id of each token that follows with what
    it adds to the text, and null with what was held back because a character might go on."""
    tokenizer = load(given)[0]
    ids, context, shown = [], 0, 0  # the text of ids[:shown] is known; what follows is decoded behind ids[context:shown]
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        if isinstance(asked, str):
            told = ids = tokenizer.encode(asked, add_special_tokens=special == "special").ids
            shown = len(ids)
        else:
            if asked is not None:
                ids.append(asked)
            before, now = tokenizer.decode(ids[context:shown]), tokenizer.decode(ids[context:])
            told = ""
            if asked is None or len(now) > len(before) and not now.endswith("\ufffd"):
                told, context, shown = now[len(before):], shown, len(ids)
        print(json.dumps(told), flush=True)


def main(arguments):
    out = sys.stdout.buffer
    begun = False
    try:
        if len(arguments) == 2:
            return answer(*arguments)
        given, kind, key, workers, append = arguments
        paths = [os.fsdecode(path) for path in sys.stdin.buffer.read().split(b"\0")[:-1]]
        tokenizer, path = load(given)
        token, number = end_token(tokenizer, path) if append == "append-eod" else (None, None)
        for each in paths:
            if not os.path.exists(each) or os.path.isdir(each):
                raise BadInput(f"{each}: no such file")
        about = {"vocab_size": max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
                 "eod_token": token, "eod_token_id": number,
                 "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                 "path": str(path),
                 "bytes": sum(os.path.getsize(each) for each in paths)}
        out.write(json.dumps(about).encode() + b"\n")
        begun = True
        workers = int(workers) or len(os.sched_getaffinity(0))
        read = 0
        settings = tokenizer, kind, key, [] if number is None else [number]
        for size, (*counts, data) in in_order(blocks(kind, paths), workers, settings):
            read += size
            out.write(array("q", [*counts, read]).tobytes() + data)
        out.write(array("q", [-1, 0, 0, 0, 0, read]).tobytes())
    except (BadInput, Failed) as error:
        words = str(error).encode(errors="backslashreplace")
        if begun:
            out.write(array("q", [-2 if isinstance(error, BadInput) else -3, len(words), 0, 0, 0, 0]).tobytes() + words)
        else:
            out.write(json.dumps({"error": words.decode()}).encode() + b"\n")
    out.flush()


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process tokenizes in its own thread
    for which in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(which, signal.SIG_DFL)  # whoever started this program has ended: nothing is to be said
    main(sys.argv[1:])
