"""Kernel messages → a cell's outputs as nbformat dicts, bounded while they arrive: the head and the tail stay."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import orjson

from stepper.adapters.figures import LOOKED_AT, picture_in
from stepper.core.pictures import key

EACH = 110  # bytes that an output takes besides what it holds, as Jupyter writes it
LINE = 9  # … and each line of a text
LARGE = 8 << 20  # characters whose escapes are not counted
ROOM = 4  # how many times the limit is held before the middle is let go
CUT = "stepper_cut"  # the helper's: the kernel has left out so much of a stream
RESULT = "execute_result"
SHOWN = ("display_data", "update_display_data", RESULT)
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

    def add(self, text: str) -> None:
        """Take the next piece."""
        begin = 0
        if self.head_size < self.half and not self.tail:
            begin = min(len(text), self.half - self.head_size)
            self.head.append(text[:begin])
            self.head_size += begin
        self.skip(max(0, len(text) - begin - self.half))
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

    def skip(self, characters: int) -> None:
        """Count what is not even given: what comes next fills the tail."""
        self.left_out += characters

    def within(self, limit: int) -> Text:
        """Return the same text with a smaller limit."""
        less = Text(limit)
        for piece in (*self.head, *self.tail):
            less.add(piece)
        less.left_out += self.left_out
        return less

    def value(self) -> str:
        """Return the text, with a line that says how much was left out."""
        gap = f"\n… {self.left_out:,} characters left out by stepper (max_output_bytes) …\n" if self.left_out else ""
        return "".join(self.head) + gap + "".join(self.tail)


@dataclass
class Entry:
    """One output. A stream's text grows, a display is replaced; `picture` also holds one too large for the notebook."""

    output: dict[str, Any]
    size: int
    text: Text | None = None
    picture: dict[str, Any] | None = None

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

    outputs: int = 0
    size: int = 0
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

    def clear(self) -> None:
        """Forget all outputs."""
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
        elif kind == CUT:
            self._stream(str(content["name"]), "", int(content["left_out"]))
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

    def _stream(self, name: str, said: str, skipped: int = 0) -> None:
        last = self.entries[-1] if self.entries and not self.clear_before_next_output else None
        if last is None or last.text is None or last.output["name"] != name:
            last = Entry({"output_type": "stream", "name": name}, 0, Text(self.limit))
            self._add(last)
        assert last.text is not None
        last.text.add(said)
        last.text.skip(skipped)
        self._resize(last, EACH + last.text.head_size + last.text.tail_size)

    def _show(self, kind: str, content: dict[str, Any]) -> None:
        mark = (content.get("transient") or {}).get("display_id")
        shown = {"metadata": _object(content.get("metadata")), "data": _bundle(content.get("data"))}
        if mark in self.displays:
            self.latest[mark] = shown
            self.held += size(shown)
        if kind != "update_display_data":
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
                entry.output, entry.size, entry.picture = made.output, made.size, made.picture
        self.latest = {}

    def _entry(self, output: dict[str, Any]) -> Entry:
        """Return an output as it is held: one that can't be in the notebook whole is shortened at once."""
        picture = output if picture_in(output) else None
        if size(output) > self.limit:
            output = _shortened(output, self.limit // 2)
        return Entry(output, size(output), None, picture)

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
            self.gap.outputs += len(gone)
            self.gap.size += sum(entry.size for entry in gone)
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
        """Return the outputs as plain nbformat dicts, within the limit: head and tail stay."""
        self._fold()
        entries = [*self.head, *self.entries]
        for share in (self.limit, self.limit // 2):
            for entry in entries:
                if entry.text is not None:
                    entry.output = _stream(entry.output["name"], entry.text, share)
            outputs = [entry.output for entry in entries]
            if sum(map(size, outputs)) <= self.limit:
                break
        return capped(outputs, self.limit, len(self.head), self.gap.outputs, self.gap.size)

    def pictures(self) -> list[dict[str, Any]]:
        """Return the outputs that are pictures, also those that the limit keeps out of the notebook."""
        self._fold()
        head, tail = ([entry.picture for entry in part if entry.picture] for part in (self.head, self.entries))
        return head + self.gap.pictures + tail


def date_of(message: dict[str, Any]) -> str:
    """Return when a message was sent, as the kernel wrote it: ISO 8601."""
    return str(message["header"].get("date", "")).replace("+00:00", "Z")


def size(output: dict[str, Any]) -> int:
    """Return how many bytes an output takes in the notebook, near enough."""
    held = [output.get("text"), output.get("evalue"), output.get("traceback"), *(output.get("data") or {}).values()]
    return EACH + sum(_taken(content) for content in held if content)


def capped(
    outputs: list[dict[str, Any]], limit: int, head: int = 0, gone: int = 0, gone_size: int = 0
) -> list[dict[str, Any]]:
    """Return the outputs within `limit` bytes: the first and the last stay, a line says how much was left out.

    What is too large alone is replaced by such a line, long plain text is cut. Of the outputs after the first `head`
    some are `gone` already.
    """
    if not gone and sum(map(size, outputs)) <= limit:
        return outputs
    half = limit // 2
    outputs = [_shortened(output, half) for output in outputs]
    first = _fits([Entry(output, size(output)) for output in outputs[: head or None]], half)
    rest = outputs[head if gone else first :]
    last = len(rest) - _fits([Entry(output, size(output)) for output in rest[::-1]], half)
    left = [*(outputs[first:head] if gone else []), *rest[:last]]
    if not left and not gone:
        return outputs
    count, total = len(left) + gone, sum(map(size, left)) + gone_size
    return [*outputs[:first], left_out(f"{count:,} outputs ({total:,} bytes)"), *rest[last:]]


def left_out(what: str) -> dict[str, Any]:
    """Return an output that says what is not there."""
    text = f"… {what} left out by stepper (max_output_bytes) …\n"
    return {"output_type": "stream", "name": "stderr", "text": text}


def _fits(entries: list[Entry], room: int) -> int:
    """Return how many of the entries, from the first on, fit in."""
    for number, entry in enumerate(entries):
        room -= entry.size
        if room < 0:
            return number
    return len(entries)


def _stream(name: str, text: Text, limit: int) -> dict[str, Any]:
    """Return a stream's output within `limit` bytes: what a character takes is only known of the whole text."""
    output = {"output_type": "stream", "name": name, "text": text.value()}
    while (taken := size(output)) > limit and text.half > 1:
        text = text.within(int(0.95 * (text.head_size + text.tail_size) * limit / taken))
        output["text"] = text.value()
    return output


def _shortened(output: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return the output, or the next best within `limit` bytes."""
    if size(output) <= limit:
        return output
    data = output.get("data")
    if data is not None:
        return left_out(", ".join(f"{mime} of {len(_text(content)):,} bytes" for mime, content in data.items()))
    if output["output_type"] == "stream":
        text = Text(2 * len(output["text"]))
        text.add(output["text"])
        return _stream(output["name"], text, limit)
    # characters of at most 6 bytes
    evalue, trace = _cut(str(output.get("evalue")), limit // 24), _cut(_text(output.get("traceback")), limit // 12)
    return {**output, "evalue": evalue, "traceback": trace.split("\n")}


def _cut(content: str, limit: int) -> str:
    text = Text(limit)
    text.add(content)
    return text.value()


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    lines = isinstance(content, list) and all(isinstance(line, str) for line in content)
    return "\n".join(content) if lines else json.dumps(content)


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
