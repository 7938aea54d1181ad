"""Explanations of errors in reading texts, bytes and files.

An explanation names the likely encoding or file type, and the position at which reading
stopped.
"""

from __future__ import annotations

import codecs
import os
import re
from typing import Any, Iterator

from stepper.diagnosis.in_kernel.expression_values import UserFrame
from stepper.diagnosis.in_kernel.value_summary import PATHS, STREAMS
from stepper.kernels.in_kernel.exception_facts import get_message
from stepper.kernels.in_kernel.safe_inspect import is_one_of, peek, shorten

# Sizes in bytes.
HEAD_SIZE = 4096
MAX_FILE_SIZE = 50_000_000
MAX_GUESS_SIZE = 1_000_000
CONTEXT_SIZE = 12  # before and after a position
SHOWN_SIZE = 40  # of the start of a file or text
SEARCHED_SIZE = 200  # before a position, to find it in a file
# Characters before a position in a quoted line: if there are more than the first
# number, only the second number of characters is quoted.
MAX_LINE_START = 60
SHOWN_LINE_START = 40
# Characters of a line or a path, of a part of a text, and of a decoded text.
LINE_LIMIT = 120
QUOTED_LINE_LIMIT = 100
PART_LIMIT = 80
DECODED_LIMIT = 40
# With fewer non-ASCII bytes, the encoding is uncertain.
MIN_HIGH_BYTES = 6
# First bytes of files that are not text, and the type of these files.
FILE_TYPES = (
    (b"PK\x03\x04", "a zip archive (.xlsx files are zip archives)"),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"\x89HDF", "HDF5"),
    (b"PAR1", "Parquet"),
    (b"SQLite format 3", "an SQLite database"),
    (b"%PDF", "a PDF"),
    (b"BZh", "compressed with bzip2"),
    (b"\xfd7zXZ", "compressed with xz"),
    (b"\x93NUMPY", "a numpy array"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
)
BYTE_ORDER_MARKS = (
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
    (b"\xef\xbb\xbf", "utf-8-sig"),
)
SURROGATES = range(0xD800, 0xE000)
# The surrogates that `errors="surrogateescape"` uses for bytes.
ESCAPED_BYTES = range(0xDC80, 0xDD00)
FIRST_ESCAPED_BYTE = 0xDC00  # the surrogate for the byte 0
# Names of exception classes.
TEXT_ERRORS = "Unicode|Parser|JSON"
READ_ERRORS = (
    "BadZipFile|Unpickling|EmptyData|BadGzip|ReadError|EOFError|ArrowInvalid"
    f"|UnidentifiedImage|{TEXT_ERRORS}"
)
FORMAT_MESSAGES = "(?i)magic|file format|not a gzip|pickled"


def explain_read_error(error: BaseException, frames: list[UserFrame]) -> Iterator[str]:
    """Yield sentences on the text, bytes or file that could not be read."""
    name = type(error).__name__
    message = get_message(error)
    # Attributes of a UnicodeError.
    data = peek(error, "object")
    position = peek(error, "start")
    # Attributes of a JSONDecodeError.
    document = peek(error, "doc")
    document_position = peek(error, "pos")
    has_position = type(position) is int
    files = list(find_files(frames))
    if has_position and type(data) is str:
        encoding = peek(error, "encoding")
        yield describe_character(data, position, encoding)
    if type(document) is str and type(document_position) is int:
        yield describe_document_position(document, document_position)
    if files and is_read_error(name, message):
        head = read_start(files[0])
        is_text_error = re.search(TEXT_ERRORS, name)
        # The line or byte of the error is only useful in a text file.
        if not head or not is_text_error or find_file_type(head):
            yield describe_file(files[0], head)
            return
    if has_position and type(data) is bytes:
        yield describe_byte(data, position, files)
    if document is None and files:
        match = re.search(r"\bline (\d+)", message)
        if match:
            number = int(match[1])
            yield from quote_line(files[0], number)


def is_read_error(name: str, message: str) -> bool:
    """Return whether an error with this name and message is about a file's content."""
    if re.search(READ_ERRORS, name):
        return True
    match = re.search(FORMAT_MESSAGES, message)
    return match is not None


def describe_character(text: str, position: int, encoding: Any) -> str:
    """Return a sentence on the character at a position that could not be encoded."""
    start = max(0, position - CONTEXT_SIZE)
    end = position + CONTEXT_SIZE
    context = escape_surrogates(text[start:end])
    character = escape_surrogates(text[position])
    sentence = f"{encoding} cannot encode the character {character} in {context}"
    code = ord(text[position])
    if code in SURROGATES:
        sentence += ", which is a surrogate"
        if code in ESCAPED_BYTES:
            byte = code - FIRST_ESCAPED_BYTE
            sentence += f", to which errors='surrogateescape' decodes byte 0x{byte:02x}"
        return sentence
    return f"{sentence}; utf-8 can"


def escape_surrogates(text: str) -> str:
    """Return the literal of a string, in which surrogates are escaped."""
    # `repr` escapes surrogates, which `shorten` would replace.
    return shorten(repr(text), PART_LIMIT)


def quote_line(path: str, number: int) -> Iterator[str]:
    """Yield a sentence that quotes a line of a file, if the file has this line."""
    content = read_start(path, MAX_FILE_SIZE) or b""
    lines = content.split(b"\n")
    if not 0 < number <= len(lines):
        return
    line = lines[number - 1].decode("utf-8", "replace")
    text = shorten(line.strip(), LINE_LIMIT)
    name = shorten(path, LINE_LIMIT)
    yield f"line {number} of `{name}` is `{text}`"


def find_files(frames: list[UserFrame]) -> Iterator[str]:
    """Yield the paths of the existing files in the values of the failing lines.

    A value can be a string, a path object or an open file.
    """
    for frame in frames:
        paths: dict[str, None] = {}
        for _, value, _ in frame.iterate_values():
            path = get_path(value)
            paths[path] = None
        for node in frame.nodes:
            constant = getattr(node, "value", None)
            path = get_path(constant)
            paths[path] = None
        for path in paths:
            if not path or len(path) >= HEAD_SIZE:
                continue
            if os.path.isfile(path):
                yield path


def get_path(value: Any) -> str:
    """Return the path in a string, path object or open file.

    Return an empty string for any other value.
    """
    kind = type(value)
    if is_one_of(kind, PATHS):
        return str(value)
    if is_one_of(kind, STREAMS):
        # A file descriptor is an integer, and a stream in memory has no name.
        name = getattr(value, "name", "")
        return name if type(name) is str else ""
    if kind is not str:
        return ""
    # A string with a line break is the content of a file rather than its path.
    if "\n" in value or "\0" in value:
        return ""
    return str(value)


def read_start(path: str, size: int = HEAD_SIZE) -> bytes | None:
    """Return the first bytes of a file, or None if the file cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(size)
    except OSError:
        return None


def find_file_type(head: bytes) -> str:
    """Return a description of the type of a file with these first bytes.

    Return an empty string if the type is unknown.
    """
    for mark, file_type in FILE_TYPES:
        if head.startswith(mark):
            return file_type
    return ""


def describe_file(path: str, head: bytes | None) -> str:
    """Return a sentence on the size, type and first bytes of a file.

    `head` is None if the file cannot be read.
    """
    name = shorten(path, LINE_LIMIT)
    if head is None:
        return f"`{name}` cannot be read"
    if not head:
        return f"`{name}` is empty (0 bytes)"
    size = os.path.getsize(path)
    size_text = ""
    if size:  # files in /proc have the size 0 although they have contents
        unit = "byte" if size == 1 else "bytes"
        size_text = f" ({size:,} {unit})"
    file_type = find_file_type(head)
    verb = f" is {file_type}:" if file_type else ":"
    first_bytes = repr(head[:SHOWN_SIZE])
    start = shorten(first_bytes)
    return f"`{name}`{size_text}{verb} it begins with {start}"


def describe_document_position(text: str, position: int) -> str:
    """Return a sentence that quotes the line at which the parser of a text stopped.

    The line before is quoted, too, because it often contains the mistake.
    """
    if not text.strip():
        return "the text is empty"
    # A parser that needs more text stops behind the last line break.
    position = min(position, len(text.rstrip()))
    line_start = text.rfind("\n", 0, position) + 1
    line_number = text.count("\n", 0, position) + 1
    line_count = len(text.rstrip().split("\n"))
    shown_start = line_start
    if position - line_start > MAX_LINE_START:
        shown_start = position - SHOWN_LINE_START
    line, _, _ = text[shown_start:].partition("\n")
    shown_line = shorten(line.strip(), QUOTED_LINE_LIMIT)
    sentence = f"line {line_number} of {line_count} in the text is `{shown_line}`"
    text_above = text[:line_start].rstrip()
    if text_above:
        lines = text_above.splitlines()
        previous = shorten(lines[-1].strip(), PART_LIMIT)
        sentence += f", after `{previous}`"
    return sentence


def describe_byte(data: bytes, position: int, files: list[str]) -> str:
    """Return a sentence on the byte at a position that could not be decoded.

    The sentence contains the likely encoding. If one of the files contains the byte,
    the sentence also contains the number of the line.
    """
    byte = f"byte 0x{data[position]:02x} at position {position:,}"
    file_type = find_file_type(data)
    if file_type:
        return f"{byte}; the bytes are {file_type}"
    encodings = guess_encodings(data[:MAX_GUESS_SIZE])
    encoding = encodings[0]
    start = max(0, position - CONTEXT_SIZE)
    end = position + CONTEXT_SIZE
    context = data[start:end]
    if encoding in ("utf-16", "utf-8-sig"):
        context = data[:SHOWN_SIZE]  # with the byte order mark
    guess = describe_encodings(encodings, context)
    sentence = f"{byte}; {guess}"
    if encoding.startswith("utf-16"):
        return sentence
    for path in files:
        line = find_byte_line(path, data, position)
        if line is not None:
            name = shorten(path, LINE_LIMIT)
            return f"{sentence}; the byte is on line {line:,} of `{name}`"
    return sentence


def describe_encodings(encodings: list[str], context: bytes) -> str:
    """Return a clause with the likely encodings and the text decoded with each."""
    texts = []
    for encoding in encodings:
        decoded = context.decode(encoding, "replace")
        text = shorten(decoded, DECODED_LIMIT)
        texts.append(repr(text))
    if len(encodings) == 1:
        return f"the bytes look like {encodings[0]} ({texts[0]})"
    choices = []
    for encoding, text in zip(encodings, texts):
        choices.append(f"{encoding} ({text})")
    alternatives = " or ".join(choices)
    return f"the bytes may be {alternatives}"


def find_byte_line(path: str, data: bytes, position: int) -> int | None:
    """Return the line number of a byte in a file.

    If the file does not start with `data`, the byte is found with the bytes that
    precede it in `data`. Return None if the file does not contain these bytes exactly
    once.
    """
    contents = read_start(path, MAX_FILE_SIZE) or b""
    if contents.startswith(data):
        return contents.count(b"\n", 0, position) + 1
    start = max(0, position - SEARCHED_SIZE)
    searched = data[start : position + 1]
    index = contents.find(searched)
    if index < 0 or contents.find(searched, index + 1) >= 0:
        return None
    end = index + min(position, SEARCHED_SIZE)
    return contents.count(b"\n", 0, end) + 1


def is_decodable(data: bytes, encoding: str) -> bool:
    """Return whether bytes are valid in an encoding.

    Bytes that were cut to MAX_GUESS_SIZE may end within a character.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        decoder.decode(data, final=len(data) < MAX_GUESS_SIZE)
    except UnicodeDecodeError:
        return False
    return True


def guess_encodings(data: bytes) -> list[str]:
    """Return the encodings that a text may have, the likeliest first.

    More than one is returned only for a text with few non-ASCII bytes.
    """
    for mark, encoding in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return [encoding]
    if data.count(0) > len(data) // 4:
        # In UTF-16, one of the two bytes of most characters is zero: the second one in
        # little-endian texts.
        second_zeros = data[1::2].count(0)
        first_zeros = data[::2].count(0)
        encoding = "utf-16-le" if second_zeros > first_zeros else "utf-16-be"
        return [encoding]
    if is_decodable(data, "utf-8"):
        return ["utf-8"]
    # Western texts have few non-ASCII bytes. Cyrillic, Chinese and Japanese texts
    # consist mostly of non-ASCII bytes.
    high_count = sum(byte > 127 for byte in data)
    if high_count * 4 < len(data):
        return ["cp1252"]
    encoding = "cp1251"
    for asian_encoding in ("shift_jis", "gb18030"):
        if is_decodable(data, asian_encoding):
            encoding = asian_encoding
            break
    if high_count < MIN_HIGH_BYTES and is_decodable(data, "cp1252"):
        return ["cp1252", encoding]
    return [encoding]
