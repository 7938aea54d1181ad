"""Texts, bytes and files that could not be read: which encoding or kind they look like, and where it stopped."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any, Iterator

from stepper.diagnosis.inside.spots import Spot
from stepper.diagnosis.inside.words import STREAMS
from stepper.kernel.inside.base import one_of, peek, short
from stepper.kernel.inside.fault import message

HEAD, WHOLE, AROUND = 4096, 50_000_000, 12
# How files begin that are no text, or another text than their name says.
KINDS = ((b"PK\x03\x04", "a zip archive (.xlsx files are such)"), (b"\x1f\x8b", "compressed with gzip"),
         (b"\x89HDF", "HDF5"), (b"PAR1", "Parquet"), (b"SQLite format 3", "an SQLite database"), (b"%PDF", "a PDF"),
         (b"BZh", "compressed with bzip2"), (b"\xfd7zXZ", "compressed with xz"), (b"\x93NUMPY", "an array of numpy"),
         (b"version https://git-lfs", "a Git LFS pointer, not the file itself"))  # fmt: skip
MARKS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))
TEXTUAL = "Unicode|Parser|JSON"
UNREADABLE = f"BadZipFile|Unpickling|EmptyData|BadGzip|ReadError|EOFError|ArrowInvalid|UnidentifiedImage|{TEXTUAL}"


def texts(error: BaseException, places: list[Spot]) -> Iterator[str]:
    """All that is known of the text or file that an error is about."""
    data, at = peek(error, "object"), peek(error, "start")
    if type(data) is str and type(at) is int:
        yield of_character(data, at, str(peek(error, "encoding")))
    doc, position = peek(error, "doc"), peek(error, "pos")
    if type(doc) is str and type(position) is int:
        yield where_it_stopped(doc, position)
    opened = list(files(places))
    name, said = type(error).__name__, message(error)
    if re.search(UNREADABLE, name) or re.search("(?i)magic|file format|not a gzip|pickled", said):
        for path in opened[:1]:
            head = start_of(path)
            if not head or kind_of(head) or not re.search(TEXTUAL, name):
                yield of_file(path, head)
                return
    if type(data) is bytes and type(at) is int:
        yield of_byte(data, at, opened, str(peek(error, "encoding")))
    line = re.search(r"\bline (\d+)", said) if doc is None else None
    if line and opened:
        lines = start_of(opened[0], WHOLE).split(b"\n")
        if int(line[1]) <= len(lines):
            text = lines[int(line[1]) - 1].decode("utf-8", "replace").strip()
            yield f"line {line[1]} of `{short(opened[0], 120)}` is `{short(text, 120)}`"


def files(places: list[Spot]) -> Iterator[str]:
    """The existing files that values of the failing lines name."""
    seen = set()
    for spot in places:
        constants = [(node.value, node) for node in spot.nodes if type(getattr(node, "value", None)) is str]
        for value in [*(value for _, value, _ in spot.known()), *(value for value, _ in constants)]:
            path = path_of(value)
            if path and path not in seen and len(path) < HEAD and os.path.isfile(path):
                seen.add(path)
                yield path


def path_of(value: Any) -> str:
    if one_of(type(value), STREAMS):
        return value.name if type(value.name) is str else ""
    if one_of(type(value), (pathlib.PosixPath, pathlib.PurePosixPath)):
        return str(value)
    return value if type(value) is str and "\n" not in value and "\0" not in value else ""


def start_of(path: str, count: int = HEAD) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read(count)
    except OSError:
        return b""


def kind_of(head: bytes) -> str:
    return next((kind for mark, kind in KINDS if head.startswith(mark)), "")


def of_file(path: str, head: bytes) -> str:
    """What a file is by its first bytes."""
    if not head:
        return f"`{short(path, 120)}` is empty (0 bytes)"
    kind = f" is {kind_of(head)}:" if kind_of(head) else ":"
    return f"`{short(path, 120)}` ({os.path.getsize(path):,} bytes){kind} it begins with {short(repr(head[:40]))}"


def where_it_stopped(text: str, at: int) -> str:
    """The line at which a text stopped being JSON, and the one before it."""
    if not text.strip():
        return "the text is empty"
    start = text.rfind("\n", 0, at) + 1
    line = text[start : (text.find("\n", at) + 1 or len(text) + 1) - 1]
    cut = max(0, at - start - 40) if len(line) > 100 else 0
    before = text[:start].rstrip().rsplit("\n", 1)[-1].strip()
    after = f", after `{short(before, 80)}`" if before else ""
    lines = text.rstrip().count("\n") + 1
    shown = short(line[cut : cut + 100].strip(), 100)
    return f"line {text.count(chr(10), 0, at) + 1} of {lines} of the text {'has' if cut else 'is'} `{shown}`{after}"


def of_character(text: str, at: int, encoding: str) -> str:
    """A character that an encoding has no place for."""
    around = short(text[max(0, at - AROUND) : at + AROUND], 40)
    if "\udc80" <= text[at] <= "\udcff":
        return (f"in {around!r} stands a lone surrogate: what reading with errors='surrogateescape' (or a file's name)"
                f" makes of the byte 0x{ord(text[at]) - 0xDC00:02x}; writing with it gives the byte back")  # fmt: skip
    return f"the character {short(text[at])!r} in {around!r} has no place in {encoding}; utf-8 holds it"


def of_byte(data: bytes, at: int, opened: list[str], encoding: str) -> str:
    """The byte, the encoding that all of them look like, and the line of the file on which it stands."""
    byte = f"byte 0x{data[at]:02x} at position {at:,}"
    if kind_of(data):
        return f"{byte}; the bytes are {kind_of(data)}"
    head = data[:at]
    if len(data) - at < 4 and not head.isascii() and decodes(head, "utf-8"):
        before = short(head[-20:].decode("utf-8", "replace"), 40)
        return f"the {len(data):,} bytes end in the middle of a character, whose first {byte}, after {before!r}"
    likely = guess(data[:1_000_000])
    near = data[:40] if likely in ("utf-16", "utf-8-sig") else data[max(0, at - AROUND) : at + AROUND]
    looks = f"{byte}; the bytes look like {likely}: there they read {short(near.decode(likely, 'replace'), 40)!r}"
    for path in opened:
        whole = start_of(path, WHOLE)
        begin = whole.find(data[max(0, at - 200) : at + 1])
        if begin >= 0 and not likely.startswith("utf-16"):
            line = whole.count(b"\n", 0, begin + min(at, 200)) + 1
            return f"{looks}; it stands on line {line:,} of `{short(path, 120)}`"
    return looks


def decodes(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def guess(data: bytes) -> str:
    """The encoding that bytes look like."""
    for mark, name in MARKS:
        if data.startswith(mark):
            return name
    if data.count(0) > len(data) // 4:
        return "utf-16-le" if data[1::2].count(0) > data[::2].count(0) else "utf-16-be"
    high = [n for n in data if n > 127]
    if decodes(data, "utf-8"):
        return "utf-8"
    # Western text has few high bytes, each between letters; Cyrillic, Chinese or Japanese is made of them.
    if len(high) * 4 < len(data):
        return "cp1252" if not any(n in (0x81, 0x8D, 0x8F, 0x90, 0x9D) for n in high) else "latin-1"
    for name in ("shift_jis", "gb18030"):
        text = data.decode(name) if decodes(data, name) else ""
        if sum("\u3040" <= letter <= "\u30ff" or "\u4e00" <= letter <= "\u9fff" for letter in text) * 4 > len(text):
            return name
    return "cp1251" if sum(n >= 0xC0 for n in high) * 10 > len(high) * 9 else "cp1252"
