"""Kernel messages → a cell's outputs as nbformat dicts, bounded while they arrive: the head and the tail stay."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import orjson

from stepper.adapters.figures import LOOKED_AT, picture_in
from stepper.core.pictures import key
from stepper.ports import LeftOut

EACH = 110  # bytes that an output takes besides what it holds, as Jupyter writes it
LINE = 9  # … and each line of a text
LARGE = 8 << 20  # characters whose escapes are not counted
ROOM = 4  # how many times the limit is held before the middle is let go
RESULT, UPDATE = "execute_result", "update_display_data"
SHOWN = ("display_data", UPDATE, RESULT)
KINDS = (*SHOWN, "stream", "error", "clear_output")  # the messages that change a cell's outputs
WHY = "left out by stepper (max_output_bytes) …"
GAP = re.compile(rf"\n… ([\d,]+) characters {re.escape(WHY)}\n")
GAPS = re.compile(rf"… ([\d,]+) outputs \(([\d,]+) bytes\) {re.escape(WHY)}\n")
ONE_OF_MANY = {"data": {"image/png": "one of too many"}}  # counted, never looked at


class Text:
    """A stream's text, bounded while it arrives: the head and the tail stay, the middle is counted."""

    def __init__(self, limit: int) -> None:
        self.half = max(1, limit // 2)
        self.head: list[str] = []
        self.head_size = 0
        self.tail: deque[str] = deque()
        self.tail_size = 0
        self.left_out = 0

    @classmethod
    def of(cls, value: str, limit: int, cut: bool = False) -> Text:
        """Return a text as the notebook holds it; where it was `cut`, a line in it says how much was left out."""
        made, gap = cls(limit), GAP.search(value) if cut else None
        if gap is None:
            made.add(value)
        else:
            head, tail = value[: gap.start()], value[gap.end() :]
            made.head, made.head_size, made.tail, made.tail_size = [head], len(head), deque([tail]), len(tail)
            made.left_out = number(gap[1])
        return made

    def add(self, text: str) -> None:
        """Take the next piece."""
        begin = 0
        if self.head_size < self.half and not self.tail and not self.left_out:
            begin = min(len(text), self.half - self.head_size)
            self.head.append(text[:begin])
            self.head_size += begin
        self.left_out += max(0, len(text) - begin - self.half)
        text = text[max(begin, len(text) - self.half) :]
        if text:
            self.tail.append(text)
            self.tail_size += len(text)
        while self.tail_size > self.half:
            over = self.tail_size - self.half
            first = self.tail.popleft()
            if len(first) > over:
                self.tail.appendleft(first[over:])
            cut = min(len(first), over)
            self.tail_size -= cut
            self.left_out += cut

    def within(self, limit: int) -> Text:
        """Return the same text with a smaller limit."""
        less = Text(limit)
        for piece in self.head:
            less.add(piece)
        less.left_out += self.left_out  # from here on nothing goes to the head
        for piece in self.tail:
            less.add(piece)
        return less

    def value(self) -> str:
        """Return the text, with a line that says how much was left out."""
        gap = f"\n… {self.left_out:,} characters {WHY}\n" if self.left_out else ""
        return "".join(self.head) + gap + "".join(self.tail)


@dataclass
class Entry:
    """One output. A stream's text grows, a display is replaced; `picture` also holds one too large for the notebook."""

    output: dict[str, Any]
    size: int
    text: Text | None = None
    picture: dict[str, Any] | None = None
    cut: LeftOut = LeftOut()  # of what is no stream

    @property
    def missing(self) -> LeftOut:
        """What was left out of it."""
        return LeftOut(self.text.left_out) if self.text is not None else self.cut

    @property
    def whole(self) -> LeftOut:
        """What is left out with it."""
        if self.text is None:
            return self.cut if self.cut.outputs else LeftOut(self.cut.characters, 1, self.size)
        return LeftOut(self.text.left_out + self.text.head_size + self.text.tail_size, 1, self.size)

    def within(self, limit: int) -> Entry:
        """Return it, or the next best, within `limit` bytes, rendered for the notebook."""
        return _stream(self.output["name"], self.text, limit) if self.text is not None else _shortened(self, limit)

    @property
    def result(self) -> bool:
        """Whether it is what the cell's last line was worth."""
        return bool(self.output["output_type"] == RESULT)

    @property
    def held(self) -> int:
        """How many bytes it takes here."""
        apart = self.picture is not None and self.picture is not self.output
        return self.size + (len(picture_in(self.picture or {})) if apart else 0)


@dataclass
class Gap:
    """What was let go between head and tail."""

    missing: LeftOut = LeftOut()
    pictures: list[dict[str, Any]] = field(default_factory=list)


class OutputArea:
    """The outputs of one execution, what it holds bounded by the limit, and its times."""

    def __init__(self, max_output_bytes: int) -> None:
        self.limit = max_output_bytes
        self.execution_count: int | None = None
        self.timings: dict[str, str] = {}  # under the names that nbclient and JupyterLab use
        self.room = ROOM * self.limit
        self.clear_before_next_output = False
        self.clear()

    @classmethod
    def of(
        cls, outputs: Sequence[dict[str, Any]], displays: Mapping[str, Sequence[int]], missing: LeftOut, limit: int
    ) -> OutputArea:
        """Return the area of a cell that holds these outputs, to take what comes after its run.

        `displays` tells which of them show a display id. Only where something is `missing` the lines that say so are
        looked for: a cell may print the like.
        """
        area, places = cls(limit), list[Entry | None]()
        for output in map(_joined, outputs):
            is_stream = output["output_type"] == "stream"
            gap = GAPS.fullmatch(output["text"]) if is_stream and missing.outputs else None
            if gap is not None:
                area.head, area.entries = area.entries, []
                area.gap = Gap(LeftOut(0, number(gap[1]), number(gap[2])))
                places.append(None)
                continue
            text = Text.of(output["text"], limit, cut=bool(missing.characters)) if is_stream else None
            entry = Entry(output, size(output), text, output if picture_in(output) else None)
            area.entries.append(entry)
            places.append(entry)
        seen = sum((entry.missing for entry in (*area.head, *area.entries)), area.gap.missing)
        area.before = LeftOut(*(max(0, known - found) for known, found in zip(astuple(missing), astuple(seen))))
        for mark, held in displays.items():
            found = [places[place] for place in held if place < len(places)]
            area.displays[mark] = [entry for entry in found if entry is not None and "data" in entry.output]
        area.held = sum(entry.held for entry in (*area.head, *area.entries))
        return area

    def clear(self) -> None:
        """Forget all outputs."""
        self.before = LeftOut()  # what was left out before, as far as the outputs do not tell it
        self.head: list[Entry] = []  # of what was let go in the middle; empty where nothing was
        self.gap = Gap()
        self.entries: list[Entry] = []
        self.displays: dict[str, list[Entry]] = {}  # display id → where it shows
        self.latest: dict[str, dict[str, Any]] = {}  # … and what: put there when it matters, not at each update
        self.held = 0

    def take(self, message: dict[str, Any]) -> bool:
        """Take one iopub message; return True when it says that the execution is over."""
        kind, content = message["msg_type"], message["content"]
        self.execution_count = content.get("execution_count", self.execution_count)
        if kind == "status":
            state = content["execution_state"]
            if state in ("busy", "idle"):
                self.timings[f"iopub.status.{state}"] = date_of(message)
            return bool(state == "idle")
        if kind == "execute_input":
            self.timings["iopub.execute_input"] = date_of(message)
        elif kind == "clear_output":
            self.clear_before_next_output = bool(content.get("wait"))
            if not content.get("wait"):
                self.clear()
        elif kind == "stream":
            self._stream(str(content["name"]), str(content["text"]))
        elif kind in SHOWN:
            self._show(kind, content)
        elif kind == "error":
            said = {name: content.get(name) for name in ("ename", "evalue", "traceback")}
            self._add(self._entry({"output_type": "error", **said}))
        return False

    def reply(self, message: dict[str, Any]) -> None:
        """Take the execute_reply: its time and, where no execute_input came, the execution count."""
        self.timings["shell.execute_reply"] = date_of(message)
        count = message["content"].get("execution_count")
        if count is not None:
            self.execution_count = count

    def page(self, data: dict[str, Any]) -> None:
        """Show what a pager would (`obj?`), as JupyterLab does."""
        self._add(self._entry({"output_type": "display_data", "metadata": {}, "data": _bundle(data)}))

    def _stream(self, name: str, said: str) -> None:
        last = self.entries[-1] if self.entries and not self.clear_before_next_output else None
        if last is None or last.text is None or last.output["name"] != name:
            last = Entry({"output_type": "stream", "name": name}, 0, Text(self.limit))
            self._add(last)
        assert last.text is not None
        last.text.add(said)
        self._resize(last, EACH + last.text.head_size + last.text.tail_size)

    def _show(self, kind: str, content: dict[str, Any]) -> None:
        mark = display_id({"msg_type": kind, "content": content})
        shown = {"metadata": _object(content.get("metadata")), "data": _bundle(content.get("data"))}
        if mark in self.displays:
            self.latest[mark] = shown
            self.held += size(shown)
        if kind != UPDATE:
            count = {"execution_count": content.get("execution_count")} if kind == RESULT else {}
            entry = self._entry({"output_type": kind, **count, **shown})
            self._add(entry)
            if mark:
                self.displays.setdefault(mark, []).append(entry)
        self._bound()

    def _fold(self) -> None:
        """Show everywhere what was shown last under a display id."""
        for mark, shown in self.latest.items():
            for entry in self.displays[mark]:
                count = {"execution_count": entry.output["execution_count"]} if entry.result else {}
                made = self._entry({"output_type": RESULT if entry.result else "display_data", **count, **shown})
                entry.output, entry.size, entry.picture, entry.cut = made.output, made.size, made.picture, made.cut
        self.latest = {}

    def _entry(self, output: dict[str, Any]) -> Entry:
        """Return an output as it is held: one that can't be in the notebook whole is shortened at once."""
        entry = Entry(output, size(output), None, output if picture_in(output) else None)
        return entry if entry.size <= self.limit else _shortened(entry, self.limit // 2)

    def _add(self, entry: Entry) -> None:
        if self.clear_before_next_output:
            self.clear_before_next_output = False
            self.clear()
        self.entries.append(entry)
        self.held += entry.held
        self._bound()

    def _resize(self, entry: Entry, now: int) -> None:
        self.held += now - entry.size
        entry.size = now
        self._bound()

    def _bound(self) -> None:
        """Let the middle go where much more is held than the notebook gets."""
        if self.held <= self.room:
            return
        self._fold()
        most = self.limit + EACH  # the largest of all fits in
        if not self.head:
            end = _fits(self.entries, most)
            self.head, self.entries = self.entries[:end], self.entries[end:]
        begin = len(self.entries) - _fits(self.entries[::-1], most)
        gone, self.entries = self.entries[:begin], self.entries[begin:]
        if gone:
            self.gap.missing = sum((entry.whole for entry in gone), self.gap.missing)
            self.gap.pictures += [entry.picture for entry in gone if entry.picture]
            left = {id(entry) for entry in gone}
            kept = {mark: [one for one in all_ if id(one) not in left] for mark, all_ in self.displays.items()}
            self.displays = {mark: entries for mark, entries in kept.items() if entries}
        self._thin()
        self.held = sum(entry.held for entry in (*self.head, *self.entries))
        self.held += sum(len(picture_in(one)) for one in self.gap.pictures if one is not ONE_OF_MANY)
        self.room = max(ROOM * self.limit, 2 * self.held)

    def _thin(self) -> None:
        """Let go of the pictures that are neither for the notebook nor among those that are saved."""
        marks: dict[int, dict[str, Any]] = {}

        def kept(picture: dict[str, Any]) -> dict[str, Any]:
            if picture is ONE_OF_MANY:
                return picture
            mark = key(picture_in(picture))
            if len(marks) < LOOKED_AT:
                marks.setdefault(mark, picture)
            return marks.get(mark, ONE_OF_MANY)

        for entry in self.head:
            entry.picture = entry.picture and kept(entry.picture)
        self.gap.pictures = [kept(picture) for picture in self.gap.pictures]
        for entry in self.entries:
            entry.picture = entry.picture and kept(entry.picture)

    def outputs(self) -> list[dict[str, Any]]:
        """Return the outputs as plain nbformat dicts, within the limit: head and tail stay.

        `left_out` and `placed` tell then what is missing, and which outputs show a display id.
        """
        self._fold()
        held, end = [*self.head, *self.entries], len(self.head)
        for share in (self.limit, self.limit // 2):
            entries = [entry.within(share) if entry.text is not None else entry for entry in held]
            if sum(entry.size for entry in entries) <= self.limit:
                break
        first, last, missing = len(entries), 0, self.gap.missing  # how many stay on either side of the gap
        if missing.outputs or sum(entry.size for entry in entries) > self.limit:
            half = self.limit // 2
            entries = [entry.within(half) for entry in entries]
            first = _fits(entries[: end or None], half)
            last = _fits(entries[end or first :][::-1], half)
            missing = sum((entry.whole for entry in entries[first : len(entries) - last]), missing)
        kept = [*range(first), *range(len(entries) - last, len(entries))]
        found = [entries[number].output for number in kept]
        if missing.outputs:
            found.insert(first, left_out(f"{missing.outputs:,} outputs ({missing.bytes:,} bytes)"))
            kept.insert(first, -1)
        self.left_out = sum((entries[number].missing for number in kept if number >= 0), missing + self.before)
        places = {id(held[number]): place for place, number in enumerate(kept) if number >= 0}
        shown = {mark: [places[id(entry)] for entry in where if id(entry) in places]
                 for mark, where in self.displays.items()}  # fmt: skip
        self.placed = {mark: where for mark, where in shown.items() if where}
        return found

    def pictures(self) -> list[dict[str, Any]]:
        """Return the outputs that are pictures, also those that the limit keeps out of the notebook."""
        self._fold()
        head, tail = ([entry.picture for entry in part if entry.picture] for part in (self.head, self.entries))
        return head + self.gap.pictures + tail


def display_id(message: dict[str, Any]) -> str:
    """Return by which name a message's output is shown elsewhere, too, '' for none."""
    mark = _object(message["content"].get("transient")).get("display_id") if message["msg_type"] in SHOWN else ""
    return mark if isinstance(mark, str) else ""


def date_of(message: dict[str, Any]) -> str:
    """Return when a message was sent, as the kernel wrote it: ISO 8601."""
    return str(message["header"].get("date", "")).replace("+00:00", "Z")


def size(output: dict[str, Any]) -> int:
    """Return how many bytes an output takes in the notebook, near enough."""
    held = [output.get("text"), output.get("evalue"), output.get("traceback"), *(output.get("data") or {}).values()]
    return EACH + sum(_taken(content) for content in held if content)


def left_out(what: str) -> dict[str, Any]:
    """Return an output that says what is not there."""
    return {"output_type": "stream", "name": "stderr", "text": f"… {what} {WHY}\n"}


def number(text: str) -> int:
    """Return a number that was written for people."""
    return int(text.replace(",", ""))


def _joined(output: dict[str, Any]) -> dict[str, Any]:
    """Return an output with its texts in one piece, as messages have them."""
    if output.get("output_type") == "stream":
        return {**output, "text": _text(output.get("text", ""), "")}
    data = _object(output.get("data"))
    texts = {mime: _text(part, "") for mime, part in data.items() if not mime.endswith("json")}
    return {**output, "data": {**data, **texts}} if "data" in output else output


def _fits(entries: list[Entry], room: int) -> int:
    """Return how many of the entries, from the first on, fit in."""
    for number, entry in enumerate(entries):
        room -= entry.size
        if room < 0:
            return number
    return len(entries)


def _stream(name: str, text: Text, limit: int) -> Entry:
    """Return a stream's output within `limit` bytes: what a character takes is only known of the whole text."""
    output = {"output_type": "stream", "name": name, "text": text.value()}
    while (taken := size(output)) > limit and text.half > 1:
        text = text.within(int(0.95 * (text.head_size + text.tail_size) * limit / taken))
        output["text"] = text.value()
    return Entry(output, taken, text)


def _shortened(entry: Entry, limit: int) -> Entry:
    """Return an output that is no stream, or the next best within `limit` bytes."""
    output = entry.output
    if entry.size <= limit or output["output_type"] == "stream":  # which says already what was left out
        return entry
    data = output.get("data")
    if data is not None:
        sizes = {mime: len(_text(content)) for mime, content in data.items()}
        made = left_out(", ".join(f"{mime} of {taken:,} bytes" for mime, taken in sizes.items()))
        return Entry(made, size(made), None, entry.picture, LeftOut(0, 1, sum(sizes.values())))
    # characters of at most 6 bytes
    parts = Text(limit // 24), Text(limit // 12)
    parts[0].add(str(output.get("evalue")))
    parts[1].add(_text(output.get("traceback")))
    made = {**output, "evalue": parts[0].value(), "traceback": parts[1].value().split("\n")}
    return Entry(made, size(made), None, None, LeftOut(sum(part.left_out for part in parts)))


def _text(content: Any, between: str = "\n") -> str:
    if isinstance(content, str):
        return content
    lines = isinstance(content, list) and all(isinstance(line, str) for line in content)
    return between.join(content) if lines else json.dumps(content)


def _taken(content: Any) -> int:
    if isinstance(content, str) and len(content) > LARGE:
        return len(content)
    try:
        lines = LINE * content.count("\n") if isinstance(content, str) else 0
        return len(orjson.dumps(content)) + lines
    except TypeError:  # lone surrogates
        return len(json.dumps(content))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _bundle(data: Any) -> dict[str, Any]:
    """Return a mime bundle as nbformat allows it: what is not JSON by its type is text."""
    return {mime: part if mime.endswith("json") else _text(part) for mime, part in _object(data).items()}
