"""HTML that is nothing but tables, such as a DataFrame's: read as rows of texts, so that no markup reaches the page."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

INNER = frozenset(
    (
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
    )
)
# cells that are read, of all tables; of the rows after them it is said how many there
# are
MOST = 2_000


class NoTableError(Exception):
    """There is more in it than tables."""


class Reader(HTMLParser):
    """Reads tables; raise NoTableError at what is none."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[dict[str, Any]] = []
        self.open: list[str] = []
        self.cell: dict[str, Any] | None = None
        self.count = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A part begins."""
        if tag not in INNER or any(name.startswith("on") for name, _ in attrs):
            raise NoTableError
        told = dict(attrs)
        if tag == "table":
            if "table" in self.open:
                raise NoTableError
            self.tables.append({"head": [], "body": [], "foot": "", "left": 0})
        elif tag == "tr" and self.tables:
            if self.count > MOST:
                self.tables[-1]["left"] += 1
            else:
                self.tables[-1]["head" if "thead" in self.open else "body"].append([])
        elif tag in ("td", "th") and self._rows() and not self.tables[-1]["left"]:
            self.count += 1
            self.cell = {"text": ""}
            self.cell |= {"head": True} if tag == "th" else {}
            for name in ("colspan", "rowspan"):
                number = told.get(name) or ""
                self.cell |= (
                    {name: int(number)}
                    if number.isdecimal() and 1 < int(number) < 1000
                    else {}
                )
            self._rows()[-1].append(self.cell)
        elif tag == "br" and self.cell is not None:
            self.cell["text"] += "\n"
        if tag not in ("br", "col"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """A part ends."""
        if tag in ("td", "th"):
            self.cell = None
        while tag in self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        """A text."""
        if "style" in self.open:
            if (
                not all(part in data for part in ("dataframe", "}"))
                or "background" in data
                or "#T_" in data
            ):
                raise NoTableError  # a Styler's: its colours say something
        elif self.cell is not None:
            self.cell["text"] += data
        elif data.strip() and not ("table" in self.open and self.tables[-1]["left"]):
            if not self.tables or ("table" in self.open and "caption" not in self.open):
                raise NoTableError
            self.tables[-1]["foot"] += " ".join(data.split()) + " "

    def _rows(self) -> list[list[dict[str, Any]]]:
        table = self.tables[-1] if self.tables else {"head": [], "body": []}
        rows: list[list[dict[str, Any]]] = (
            table["head"] if "thead" in self.open else table["body"]
        )
        return rows


def tables(html: str) -> list[dict[str, Any]]:
    """Return the tables that a piece of HTML is, as rows of cells; none where it is something else, too."""
    reader = Reader()
    try:
        reader.feed(html)
        reader.close()
    except NoTableError:
        return []
    return (
        reader.tables
        if any(table["head"] or table["body"] for table in reader.tables)
        else []
    )
