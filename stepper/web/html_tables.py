"""A parser for HTML that contains only tables, such as the HTML of a DataFrame.

The page gets the texts of the table cells instead of HTML from a notebook.
"""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

ALLOWED_TAGS = frozenset(
    [
        "table",
        "thead",
        "tbody",
        "tfoot",
        "tr",
        "th",
        "td",
        "br",
        "caption",
        "div",
        "p",
        "b",
        "i",
        "em",
        "strong",
        "span",
        "code",
        "small",
        "style",
        "colgroup",
        "col",
    ]
)
VOID_TAGS = ("br", "col")
# The maximum number of parsed cells of all tables. Further rows are only counted.
MAX_CELLS = 2_000
# Larger values of colspan and rowspan are ignored.
MAX_SPAN_DIGITS = 3
# The start of the ids in the style sheet of a pandas Styler.
STYLER_ID = "#T_"

Cell = dict[str, Any]
Table = dict[str, Any]


class NotATableError(Exception):
    """The HTML contains something other than tables."""


class TableParser(HTMLParser):
    """Collects the cells of tables; raises NotATableError for any other HTML."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[Table] = []
        self.open_tags: list[str] = []
        self.cell: Cell | None = None
        self.cell_count = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Start a table, a row or a cell.

        Raise NotATableError if the tag is not allowed.
        """
        has_handler = any(name.startswith("on") for name, _ in attrs)
        if tag not in ALLOWED_TAGS or has_handler:
            raise NotATableError
        if tag == "table":
            self._start_table()
        elif tag == "tr":
            self._start_row()
        elif tag in ("td", "th"):
            self._start_cell(tag, dict(attrs))
        elif tag == "br" and self.cell is not None:
            self.cell["text"] += "\n"
        if tag not in VOID_TAGS:
            self.open_tags.append(tag)

    def _start_table(self) -> None:
        """Start a table. Raise NotATableError if another table is open."""
        if "table" in self.open_tags:
            raise NotATableError
        self.tables.append({"head": [], "body": [], "foot": "", "left": 0})

    def _start_row(self) -> None:
        """Start a row. After MAX_CELLS cells, only count the row."""
        if not self.tables:
            return
        if self.cell_count > MAX_CELLS:
            self.tables[-1]["left"] += 1
        else:
            self._get_rows().append([])

    def _start_cell(self, tag: str, attributes: dict[str, str | None]) -> None:
        """Start a cell of the last row, with its spans.

        Do nothing if no row is open, or if the cells of the row are not parsed.
        """
        rows = self._get_rows()
        if not rows or self.tables[-1]["left"]:
            return
        self.cell_count += 1
        cell: Cell = {"text": ""}
        if tag == "th":
            cell["head"] = True
        for name in ("colspan", "rowspan"):
            value = attributes.get(name) or ""
            if not value.isdecimal() or len(value) > MAX_SPAN_DIGITS:
                continue
            span = int(value)
            if span > 1:
                cell[name] = span
        rows[-1].append(cell)
        self.cell = cell

    def handle_endtag(self, tag: str) -> None:
        """Close an element and all open elements inside it."""
        if tag in ("td", "th"):
            self.cell = None
        if tag not in self.open_tags:
            return
        while self.open_tags.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        """Add a text to the open cell, or to the text below the table.

        The text of a style sheet is only checked. Raise NotATableError if the text or
        the style sheet is not allowed.
        """
        if "style" in self.open_tags:
            _check_style(data)
        elif self.cell is not None:
            self.cell["text"] += data
        elif data.strip():
            self._add_foot(data)

    def _add_foot(self, data: str) -> None:
        """Add a text that is not in a cell, such as "5 rows × 2 columns".

        Raise NotATableError if the text is not a caption and not below a table.
        """
        in_table = "table" in self.open_tags
        if in_table and self.tables[-1]["left"]:
            return  # the text of a row that is not parsed
        if not self.tables:
            raise NotATableError
        if in_table and "caption" not in self.open_tags:
            raise NotATableError
        text = " ".join(data.split())
        self.tables[-1]["foot"] += f"{text} "

    def _get_rows(self) -> list[list[Cell]]:
        """Return the rows of the open table's head or body."""
        if not self.tables:
            return []
        part = "head" if "thead" in self.open_tags else "body"
        rows: list[list[Cell]] = self.tables[-1][part]
        return rows


def _check_style(css: str) -> None:
    """Raise NotATableError unless a style sheet belongs to a plain DataFrame.

    HTML from a pandas Styler is not parsed, because its colors would be lost.
    """
    is_dataframe = "dataframe" in css and "}" in css
    has_colors = "background" in css or STYLER_ID in css
    if not is_dataframe or has_colors:
        raise NotATableError


def parse_tables(html: str) -> list[Table]:
    """Return the tables in HTML, or an empty list for HTML with other contents.

    A table has the keys `head` and `body` (lists of rows of cells), `foot` (the text
    below the table) and `left` (the number of rows that were not parsed).
    """
    parser = TableParser()
    try:
        parser.feed(html)
        parser.close()
    except (NotATableError, AssertionError):  # HTMLParser asserts valid declarations
        return []
    tables = parser.tables
    has_rows = any(table["head"] or table["body"] for table in tables)
    return tables if has_rows else []
