"""What could not be read: the text that is no JSON, the file that is of another kind, the line of a file."""

from __future__ import annotations

import ast
import os
import pathlib
import re

from stepper.diagnosis.inside.fault import message
from stepper.diagnosis.inside.onspot import STREAMS, held
from stepper.kernel.inside.base import guarded, is_a, one_of, peek, short

HEAD, WHOLE = 4096, 20_000_000
# What a file begins with, and what it is then.
MAGIC = (
    (b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"7z\xbc\xaf", "7z"), (b"PK\x03\x04", "a zip archive"), (b"PK\x05\x06", "an empty zip archive"),
    (b"%PDF", "PDF"), (b"PAR1", "Parquet"), (b"\x89HDF", "HDF5"), (b"\x89PNG", "PNG"), (b"\xff\xd8\xff", "JPEG"),
    (b"GIF8", "GIF"), (b"SQLite format 3", "a SQLite database"), (b"\xd0\xcf\x11\xe0", "an old Excel or Word file"),
    (b"ARROW1", "Arrow/Feather"), (b"\x93NUMPY", "npy"), (b"version https://git-lfs", "a Git LFS pointer"),
)  # fmt: skip
INSIDE = ((b"xl/", "an Excel workbook (xlsx, a zip archive)"), (b"word/", "a Word document (docx, a zip archive)"))
MARKUP = ((b"<!doctype html", "HTML"), (b"<html", "HTML"), (b"<?xml", "XML"))


def kind_of(head):
    """What bytes are by what they begin with; '' where that is not known."""
    kind = next((kind for mark, kind in MAGIC if head.startswith(mark)), "")
    if kind == "a zip archive":
        return next((inner for mark, inner in INSIDE if mark in head), kind)
    return kind or next((kind for mark, kind in MARKUP if head.lstrip()[:20].lower().startswith(mark)), "")


def paths(places):
    """The existing files that the failing lines name: texts, paths, open files."""
    seen = set()
    for spot in places:
        texts = [one.value for one in spot.nodes if is_a(one, ast.Constant) and type(one.value) is str]
        for one in [*[value for _, value, _, _ in held([spot])], *texts]:
            path = named(one)
            if path and len(path) < 1000 and path not in seen and guarded(os.path.isfile, path):
                seen.add(path)
                yield path


def named(value):
    kind = type(value)
    if one_of(kind, STREAMS):
        return value.name if type(value.name) is str else ""
    if one_of(kind, (pathlib.PosixPath, pathlib.PurePosixPath)):
        return str(value)
    return value if kind is str and "\n" not in value and "\0" not in value else ""


def start_of(path, count=HEAD):
    with open(path, "rb") as file:
        return file.read(count)


def file_is(error, places, known_only=False):
    """The first file on the line: its size, how it begins and what it is by that."""
    for path in paths(places):
        head = start_of(path)
        kind = kind_of(head) if head else "empty"
        if kind or not known_only:
            return {"path": short(path, 120), "size": os.path.getsize(path), "is": kind, "head": short(repr(head[:40]))}
    return None


def file_is_other(error, places):
    """The same, said only where the file is known to be of a kind that is no text."""
    data = peek(error, "object")
    found = file_is(error, places, True)
    if found is None and type(data) is bytes and kind_of(data[:HEAD]):
        return {"path": "", "size": len(data), "is": kind_of(data[:HEAD]), "head": short(repr(data[:20]))}
    return found


def unparsed(error, places):
    """The line at which a text stopped being JSON."""
    text, at = peek(error, "doc"), peek(error, "pos")
    if type(text) is bytes:
        text = text[:WHOLE].decode("utf-8", "replace")
    if type(text) is not str or type(at) is not int:
        return None
    if not text.strip():
        return {"line": 0, "text": "", "lines": 0}
    start = text.rfind("\n", 0, at) + 1
    line = text[start : (text.find("\n", at) + 1 or len(text) + 1) - 1]
    column = at - start
    cut = max(0, column - 40) if len(line) > 100 else 0
    before = text[:start].rstrip().rsplit("\n", 1)[-1] if "delimiter" in message(error) else ""
    return {"line": text.count("\n", 0, at) + 1, "text": short(line[cut : cut + 100].strip(), 100), "from": cut,
            "lines": text.rstrip().count("\n") + 1, "before": short(before.strip(), 80)}  # fmt: skip


def line_of_table(error, places):
    """The line of a table's file that has another number of fields."""
    number = re.search(r"\bline (\d+)", message(error))
    for path in paths(places) if number else ():
        with open(path, "rb") as file:
            lines = file.read(WHOLE).split(b"\n")
        if kind_of(lines[0]):
            return None
        if 0 < int(number[1]) <= len(lines):
            text = lines[int(number[1]) - 1].decode("utf-8", "replace").strip()
            return {"path": short(path, 120), "line": int(number[1]), "text": short(text, 120),
                    "first": short(lines[0].decode("utf-8", "replace").strip(), 80)}  # fmt: skip
    return None


def line_of_byte(error, places):
    """The line of the file on which the first byte stands that its encoding has not."""
    name, data = peek(error, "encoding"), peek(error, "object")
    if type(name) is not str or type(data) is not bytes:
        return None
    for path in paths(places):
        whole = start_of(path, WHOLE)
        if kind_of(whole[:HEAD]):
            continue  # it has no lines
        at = position(whole, name)
        if at is not None and whole[at] == data[peek(error, "start")]:
            return {"path": short(path, 120), "line": whole.count(b"\n", 0, at) + 1, "at": at,
                    "lines": whole.count(b"\n") + (not whole.endswith(b"\n"))}  # fmt: skip
    return None


def position(data, encoding):
    try:
        data.decode(encoding)
    except UnicodeDecodeError as error:
        return error.start
    return None
