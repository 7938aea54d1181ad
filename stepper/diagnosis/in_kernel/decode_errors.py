"""Texts, bytes and files that could not be read: which encoding or kind they look like, and where it stopped."""

from __future__ import annotations

import os
import re
from typing import Any, Iterator

from stepper.diagnosis.in_kernel.expression_values import Spot
from stepper.diagnosis.in_kernel.value_summary import PATHS, STREAMS
from stepper.kernels.in_kernel.exception_facts import get_message
from stepper.kernels.in_kernel.safe_inspect import is_one_of, peek, shorten

HEAD, WHOLE, AROUND = 4096, 50_000_000, 12
FEW = 6  # bytes beyond ASCII, which tell no encoding
# How files begin that are no text, or another text than their name says.
KINDS = (
    (b"PK\x03\x04", "a zip archive (.xlsx files are such)"),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"\x89HDF", "HDF5"),
    (b"PAR1", "Parquet"),
    (b"SQLite format 3", "an SQLite database"),
    (b"%PDF", "a PDF"),
    (b"BZh", "compressed with bzip2"),
    (b"\xfd7zXZ", "compressed with xz"),
    (b"\x93NUMPY", "an array of numpy"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
)
MARKS = (
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
    (b"\xef\xbb\xbf", "utf-8-sig"),
)
TEXTUAL = "Unicode|Parser|JSON"
UNREADABLE = f"BadZipFile|Unpickling|EmptyData|BadGzip|ReadError|EOFError|ArrowInvalid|UnidentifiedImage|{TEXTUAL}"


def texts(error: BaseException, places: list[Spot]) -> Iterator[str]:
    """All that is known of the text or file that an error is about."""
    data, at, doc, position = (
        peek(error, name) for name in ("object", "start", "doc", "pos")
    )
    opened, name, said = list(files(places)), type(error).__name__, get_message(error)
    if type(data) is str and type(at) is int:
        around = shorten(data[max(0, at - AROUND) : at + AROUND], 40)
        encoding = peek(error, "encoding")
        yield f"the character {shorten(data[at])!r} in {around!r} has no place in {encoding}; utf-8 holds it"
    if type(doc) is str and type(position) is int:
        yield where_it_stopped(doc, position)
    if re.search(UNREADABLE, name) or re.search(
        "(?i)magic|file format|not a gzip|pickled", said
    ):
        for path in opened[:1]:
            head = start_of(path)
            if not head or kind_of(head) or not re.search(TEXTUAL, name):
                yield of_file(path, head)
                return
    if type(data) is bytes and type(at) is int:
        yield of_byte(data, at, opened)
    line = re.search(r"\bline (\d+)", said) if doc is None else None
    lines = start_of(opened[0], WHOLE).split(b"\n") if line and opened else []
    if line and int(line[1]) <= len(lines):
        text = lines[int(line[1]) - 1].decode("utf-8", "replace").strip()
        yield f"line {line[1]} of `{shorten(opened[0], 120)}` is `{shorten(text, 120)}`"


def files(places: list[Spot]) -> Iterator[str]:
    for spot in places:
        constants = [getattr(node, "value", None) for node in spot.nodes]
        for path in dict.fromkeys(
            map(path_of, [*(value for _, value, _ in spot.known()), *constants])
        ):
            if path and len(path) < HEAD and os.path.isfile(path):
                yield path


def path_of(value: Any) -> str:
    if is_one_of(type(value), STREAMS):
        return value.name if type(value.name) is str else ""
    if is_one_of(type(value), PATHS):
        return str(value)
    return (
        value if type(value) is str and "\n" not in value and "\0" not in value else ""
    )


def start_of(path: str, count: int = HEAD) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read(count)
    except OSError:
        return b""


def kind_of(head: bytes) -> str:
    return next((kind for mark, kind in KINDS if head.startswith(mark)), "")


def of_file(path: str, head: bytes) -> str:
    if not head:
        return f"`{shorten(path, 120)}` is empty (0 bytes)"
    kind = f" is {kind_of(head)}:" if kind_of(head) else ":"
    return f"`{shorten(path, 120)}` ({os.path.getsize(path):,} bytes){kind} it begins with {shorten(repr(head[:40]))}"


def where_it_stopped(text: str, at: int) -> str:
    """The line at which a text stopped being JSON, and the one before it."""
    if not text.strip():
        return "the text is empty"
    number, start, count = (
        text.count("\n", 0, at) + 1,
        text.rfind("\n", 0, at) + 1,
        len(text.rstrip().split("\n")),
    )
    before = [line.strip() for line in text[:start].splitlines() if line.strip()][-1:]
    line = text[max(start, at - 40) if at - start > 60 else start :].partition("\n")[0]
    after = f", after `{shorten(before[0], 80)}`" if before else ""
    return (
        f"line {number} of {count} of the text is `{shorten(line.strip(), 100)}`{after}"
    )


def of_byte(data: bytes, at: int, opened: list[str]) -> str:
    """The byte, the encoding that all of them look like, and the line of the file on which it stands."""
    byte = f"byte 0x{data[at]:02x} at position {at:,}"
    if kind_of(data):
        return f"{byte}; the bytes are {kind_of(data)}"
    likely = guesses(data[:1_000_000])
    near = (
        data[:40]
        if likely[0] in ("utf-16", "utf-8-sig")
        else data[max(0, at - AROUND) : at + AROUND]
    )
    read = {name: repr(shorten(near.decode(name, "replace"), 40)) for name in likely}
    looks = (
        f"{byte}; the bytes look like {likely[0]}: there they read {read[likely[0]]}"
    )
    if len(likely) > 1:  # too few for a guess
        looks = f"{byte}; the bytes may be {' or '.join(f'{name} ({text})' for name, text in read.items())}"
    for path in opened:
        whole = start_of(path, WHOLE)
        begin = whole.find(data[max(0, at - 200) : at + 1])
        if begin >= 0 and not likely[0].startswith("utf-16"):
            line = whole.count(b"\n", 0, begin + min(at, 200)) + 1
            return f"{looks}; it stands on line {line:,} of `{shorten(path, 120)}`"
    return looks


def decodes(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def guesses(data: bytes) -> list[str]:
    """The encodings that a text may have, the likeliest first; several only where it is short."""
    marked = next((name for mark, name in MARKS if data.startswith(mark)), "")
    if marked or data.count(0) > len(data) // 4:
        return [
            marked
            or (
                "utf-16-le" if data[1::2].count(0) > data[::2].count(0) else "utf-16-be"
            )
        ]
    # Western text has few high bytes, each between letters; Cyrillic, Chinese or
    # Japanese is made of them.
    high = sum(byte > 127 for byte in data)
    if high * 4 < len(data) or decodes(data, "utf-8"):
        return ["utf-8" if decodes(data, "utf-8") else "cp1252"]
    some = [name for name in ("shift_jis", "gb18030") if decodes(data, name)][:1] or [
        "cp1251"
    ]
    return ["cp1252", *some] if high < FEW and decodes(data, "cp1252") else some
