"""Which clue is looked for when: the class of a fault and what its message says decide. A table, read from the top."""

from __future__ import annotations

import re

from stepper.diagnosis.inside.depth import recursion
from stepper.diagnosis.inside.fault import message
from stepper.diagnosis.inside.known import (
    answer,
    features,
    fitted,
    frames_columns,
    members,
    options,
    said_by_process,
    searched,
    tables,
)
from stepper.diagnosis.inside.odd import (
    below_zero,
    bound_at,
    low_rank,
    missing_at,
    no_numbers,
    not_called,
    not_json,
    odd_kind,
    odd_length,
    twice,
)
from stepper.diagnosis.inside.parsed import file_is, file_is_other, line_of_byte, line_of_table, unparsed
from stepper.diagnosis.inside.unpacked import at_hand, unpacked
from stepper.kernel.inside.base import class_names, clock, guarded

AT_MOST = 4
# What is said of a value of the wrong kind; an index or a keyword is another matter.
ITEMS = (
    "^(?!.*(indices|keyword|positional)).*(operand|supported|instance|has no len|object is not|must be|concat|unhash)"
)
SIZES = "(?i)length|inhomogeneous|shape|columns? passed|sequence|dimension"
UNREADABLE = (
    "BadZipFile|UnpicklingError|EmptyDataError|BadGzipFile|ReadError|EOFError|ArrowInvalid|UnidentifiedImageError"
)
# (name of the clue, classes, what the message says, who looks). `Exception` is any.
RULES = (
    ("unparsed", "JSONDecodeError", "", unparsed),
    ("answer", "JSONDecodeError|HTTPError|HTTPStatusError", "", answer),
    ("line_of_table", "ParserError", r"\bline \d", line_of_table),
    ("file_is", UNREADABLE, "", file_is),
    ("file_is", "UnicodeDecodeError|ParserError|JSONDecodeError", "", file_is_other),
    ("file_is", "ValueError|OSError", "(?i)magic|file format|not a gzipped|excel|pickled", file_is),
    ("line_of_byte", "UnicodeDecodeError", "", line_of_byte),
    ("process", "CalledProcessError", "", said_by_process),
    ("fitted", "NotFittedError", "", fitted),
    ("features", "ValueError", "(?i)feature", features),
    ("frames", "MergeError", "", frames_columns),
    ("tables", "OperationalError|DatabaseError", "no such|no column|has no column", tables),
    ("options", "NoOptionError|NoSectionError", "", options),
    ("members", "ValueError", "is not a valid", members),
    ("searched", "StopIteration", "", searched),
    ("low_rank", "LinAlgError", "(?i)singular", low_rank),
    ("recursion", "RecursionError", "", recursion),
    ("unpacked", "ValueError", "to unpack", unpacked),
    ("not_json", "TypeError", "JSON", not_json),
    ("not_called", "TypeError", "'(function|method|builtin_function_or_method)'", not_called),
    ("odd_kind", "TypeError", ITEMS, odd_kind),
    ("no_numbers", "TypeError", "operand|ufunc|convert|must be real|concatenate|agg function|numeric", no_numbers),
    ("odd_length", "ValueError|TypeError", SIZES, odd_length),
    ("bound_at", "ValueError", "(?i)inconsistent|mismatch|broadcast|lengths?|same (size|first)|must match", bound_at),
    ("twice", "ValueError|InvalidIndexError|MergeError", "(?i)duplicate|not unique|unique|non-unique", twice),
    ("below_zero", "ValueError", "(?i)negative|positive", below_zero),
    ("missing_at", "ValueError", r"\bNaN\b|\bNAs?\b|missing values|non-finite", missing_at),
    ("at_hand", "ValueError|TypeError|ArithmeticError|UnicodeError|AssertionError", "", at_hand),
)  # fmt: skip


def clues(error, places, until):
    """[{"clue": name, …}, …]: what the failing lines' values tell about this fault."""
    names = {name.rsplit(".", 1)[-1] for name in class_names(type(error))}
    said, found = message(error), []
    for name, classes, pattern, ask in RULES:
        if len(found) < AT_MOST and clock() < until and names & set(classes.split("|")) and re.search(pattern, said):
            fact = guarded(ask, error, places)
            if fact:
                found.append({"clue": name, **fact})
    return found
