"""Kernel messages → a cell's outputs as nbformat dicts, bounded while they arrive: the head and the tail stay."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from stepper.kernels.output_images import LOOKED_AT, content_text, key, picture_in
from stepper.kernels.output_limits import EACH, Entry, left_out, size
from stepper.kernels.stream_text import WHY, Stream
from stepper.kernels.wake_pattern import WakeWatcher
from stepper.policy.model import NOTHING_OMITTED, OmittedOutput

ROOM = 4  # how many times the limit is held before the middle is let go
RESULT = "execute_result"
UPDATE = "update_display_data"
DISPLAY_TYPES = ("display_data", UPDATE, RESULT)
REQUEST = {
    "execute_input": "iopub.execute_input",
    "execute_reply": "shell.execute_reply",
}
# the messages that change a cell's outputs
OUTPUT_TYPES = (*DISPLAY_TYPES, "stream", "error", "clear_output")
GAPS = re.compile(rf"… ([\d,]+) outputs \(([\d,]+) bytes\) {re.escape(WHY)}\n")
# how a text begins that draws a bar on; all that ends one
GOES_BACK = re.compile(r"\r|\x1b\[\d*A|[\r\n]+\Z")
LAST, LAST_LINES = 4, 20  # outputs, and lines of each, in which progress is looked for
EMPTY: dict[str, Any] = {}  # one for all of whom only the picture is left
ONE_OF_MANY = {"data": {"image/png": "one of too many"}}  # counted, never looked at


class OutputArea:
    """The outputs of one execution, what it holds bounded by the limit, and its times."""

    def __init__(self, max_output_bytes: int) -> None:
        self.limit = max_output_bytes
        self.execution_count: int | None = None
        # under the names that nbclient and JupyterLab use
        self.timings: dict[str, str] = {}
        self.room = ROOM * self.limit
        self.change_count = 0  # how many messages could change what is shown
        self.watch: WakeWatcher | None = (
            None  # looks for the line that is to wake an agent
        )
        self.clear()

    @classmethod
    def of(
        cls,
        outputs: Sequence[dict[str, Any]],
        displays: Mapping[str, Sequence[int]],
        missing: OmittedOutput,
        limit: int,
    ) -> OutputArea:
        """Return the area of a cell that holds these outputs, to take what comes after its run.

        `displays` tells which of them show a display id. Only where something is `missing` the lines that say so are
        looked for: a cell may print the like.
        """
        area, entries = cls(limit), list[Entry]()
        for output in map(_joined, outputs):
            is_stream = output["output_type"] == "stream"
            gap = (
                GAPS.fullmatch(output["text"])
                if is_stream and missing.outputs
                else None
            )
            text = (
                Stream.of(output["text"], limit, bool(missing.characters))
                if is_stream
                else None
            )
            entries.append(Entry.of(output, text))
            if gap is not None:
                area.head, area.entries = area.entries, []
                area.missing = OmittedOutput(
                    0, *(int(number.replace(",", "")) for number in gap.groups())
                )
            else:
                area.entries.append(entries[-1])
        told = sum((entry.missing for entry in area._all()), area.missing)
        untold = (
            max(0, known - found) for known, found in zip(missing, told, strict=True)
        )
        area.before = OmittedOutput(*untold)
        for mark, places in displays.items():
            shown = [entries[place] for place in places if place < len(entries)]
            area.displays[mark] = [entry for entry in shown if "data" in entry.output]
        area.held = sum(entry.held for entry in area._all())
        return area

    def clear(self) -> None:
        """Forget all outputs."""
        self.clear_before_next_output = False
        # what was left out before, as far as the outputs do not tell it
        self.before = NOTHING_OMITTED
        # of what was let go in the middle; empty where nothing was
        self.head: list[Entry] = []
        self.gone: list[Entry] = []  # … what is left of the pictures in it
        self.missing = NOTHING_OMITTED  # … and all that was in it
        self.entries: list[Entry] = []
        # stream → its progress bar that may be drawn again
        self.bars: dict[str, Entry] = {}
        self.displays: dict[str, list[Entry]] = {}  # display id → where it shows
        # … and what: put there when it matters, not at each update
        self.latest: dict[str, dict[str, Any]] = {}
        self.held = 0

    @property
    def matched_line(self) -> str:
        """The first printed line that the wake pattern matches; '' before."""
        return self.watch.matched if self.watch else ""

    def _all(self) -> list[Entry]:
        return [*self.head, *self.gone, *self.entries]

    def take(self, message: dict[str, Any]) -> bool:
        """Take one message, or the reply; return True when it says that the execution is over."""
        kind, content = message["msg_type"], message["content"]
        self.change_count += kind in OUTPUT_TYPES
        self.execution_count = content.get("execution_count") or self.execution_count
        state = content.get("execution_state") if kind == "status" else None
        if kind in REQUEST or state in ("busy", "idle"):
            sent = str(message["header"].get("date", "")).replace("+00:00", "Z")
            self.timings[REQUEST.get(kind, f"iopub.status.{state}")] = sent
        elif kind == "clear_output":
            self.clear_before_next_output = bool(content.get("wait"))
            if not content.get("wait"):
                self.clear()
        elif kind == "stream":
            self._stream(str(content["name"]), str(content["text"]))
            if self.watch:
                self.watch.take(str(content["name"]), str(content["text"]))
        elif kind in DISPLAY_TYPES:
            self._show(message)
        elif kind == "error":
            said = {
                name: content.get(name) for name in ("ename", "evalue", "traceback")
            }
            self._add(Entry.of({"output_type": "error", **said}))
        return bool(state == "idle")

    def _stream(self, name: str, said: str) -> None:
        last = (
            self.entries[-1]
            if self.entries and not self.clear_before_next_output
            else None
        )
        if last is None or last.text is None or last.output["name"] != name:
            bar = self.bars.get(name) if last and GOES_BACK.match(said) else None
            last = bar or self._add(
                Entry({"output_type": "stream", "name": name}, 0, Stream(self.limit))
            )
        assert last.text is not None
        last.text.add(said)
        self.bars.pop(name, None)
        if last.text.is_bar:  # it is drawn on where it stands, whatever comes between
            self.bars[name] = last
        now = EACH + last.text.head_size + last.text.tail_size
        self.held += now - last.size
        last.size = now
        self._bound()

    def _show(self, message: dict[str, Any]) -> None:
        kind, content, mark = (
            message["msg_type"],
            message["content"],
            get_display_id(message),
        )
        shown = {
            "metadata": _object(content.get("metadata")),
            "data": _bundle(content.get("data")),
        }
        if mark in self.displays:
            self.latest[mark] = shown
            self.held += size(shown)
        if kind != UPDATE:
            count = (
                {"execution_count": content.get("execution_count")}
                if kind == RESULT
                else {}
            )
            entry = self._add(Entry.of({"output_type": kind, **count, **shown}))
            if mark:
                self.displays.setdefault(mark, []).append(entry)
        self._bound()

    def _fold(self) -> None:
        """Show everywhere what was shown last under a display id."""
        for mark, shown in self.latest.items():
            for entry in self.displays[mark]:
                kind, count = (
                    entry.output["output_type"],
                    entry.output.get("execution_count"),
                )
                known = (
                    {"output_type": kind, "execution_count": count}
                    if kind == RESULT
                    else {"output_type": DISPLAY_TYPES[0]}
                )
                made = self._held(Entry.of({**known, **shown}))
                entry.output, entry.size, entry.picture, entry.cut = (
                    made.output,
                    made.size,
                    made.picture,
                    made.cut,
                )
        self.latest = {}

    def _held(self, entry: Entry) -> Entry:
        """Return an output as it is held: one that can't be in the notebook whole is shortened at once."""
        return entry if entry.size <= self.limit else entry.within(self.limit // 2)

    def _add(self, entry: Entry) -> Entry:
        if self.clear_before_next_output:
            self.clear()
        entry = self._held(entry)
        self.entries.append(entry)
        self.held += entry.held
        self._bound()
        return entry

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
        gone, self.entries, self.bars = self.entries[:begin], self.entries[begin:], {}
        self.missing = sum((entry.whole for entry in gone), self.missing)
        self.gone += [
            Entry(EMPTY, 0, picture=entry.picture) for entry in gone if entry.picture
        ]
        left = set(map(id, gone))
        kept = {
            mark: [entry for entry in held if id(entry) not in left]
            for mark, held in self.displays.items()
        }
        self.displays = {mark: entries for mark, entries in kept.items() if entries}
        self._thin()
        self.held = sum(entry.held for entry in self._all())
        self.room = max(ROOM * self.limit, 2 * self.held)

    def _thin(self) -> None:
        """Let go of the pictures that are neither for the notebook nor among those that are saved."""
        marks: dict[int, dict[str, Any]] = {}
        for entry in self._all():
            if entry.picture is not None and entry.picture is not ONE_OF_MANY:
                mark = key(picture_in(entry.picture))
                if len(marks) < LOOKED_AT:
                    marks.setdefault(mark, entry.picture)
                entry.picture = marks.get(mark, ONE_OF_MANY)

    def outputs(self) -> list[dict[str, Any]]:
        """Return the outputs as plain nbformat dicts, within the limit: head and tail stay.

        `left_out` and `placed` tell then what is missing, and which outputs show a display id.
        """
        self._fold()
        held, end, missing, half = (
            [*self.head, *self.entries],
            len(self.head),
            self.missing,
            self.limit // 2,
        )
        for share in (self.limit, half):
            entries = [entry.within(share) for entry in held]
            whole = (
                not missing.outputs
                and sum(entry.size for entry in entries) <= self.limit
            )
            if whole:
                break
        if not whole:
            first = _fits(entries[: end or None], half)
            last = len(entries) - _fits(entries[end or first :][::-1], half)
            missing = sum((entry.whole for entry in entries[first:last]), missing)
            line = Entry(
                left_out(f"{missing.outputs:,} outputs ({missing.bytes:,} bytes)"), 0
            )
            entries[first:last] = held[first:last] = [line]
        self.left_out = sum((entry.missing for entry in entries), missing + self.before)
        places = {id(entry): place for place, entry in enumerate(held)}
        shown = {
            mark: [places[id(entry)] for entry in where if id(entry) in places]
            for mark, where in self.displays.items()
        }
        self.placed = {mark: where for mark, where in shown.items() if where}
        return [entry.output for entry in entries]

    def last_line(self) -> str:
        """Return the progress bar that is drawn, else the last line of text; '' where there is none."""
        texts = (
            entry.text.last_line()
            for entry in [*self.bars.values(), *self.entries[::-1]]
            if entry.text
        )
        return next(filter(str.strip, texts), "")

    def last_lines(self) -> list[str]:
        """Return the last lines of the last texts, from the top down."""
        texts = [
            entry.text.last_lines() for entry in self.entries[-LAST:] if entry.text
        ]
        return [line for lines in texts for line in lines[-LAST_LINES:]]

    def pictures(self) -> list[dict[str, Any]]:
        """Return the outputs that are pictures, also those that the limit keeps out of the notebook."""
        self._fold()
        return [entry.picture for entry in self._all() if entry.picture]


def get_display_id(message: dict[str, Any]) -> str:
    """Return by which name a message's output is shown elsewhere, too, '' for none."""
    mark = (
        _object(message["content"].get("transient")).get("display_id")
        if message["msg_type"] in DISPLAY_TYPES
        else ""
    )
    return mark if isinstance(mark, str) else ""


def _joined(output: dict[str, Any]) -> dict[str, Any]:
    """Return an output with its texts in one piece, as messages have them."""
    if output.get("output_type") == "stream":
        return {**output, "text": content_text(output.get("text", ""))}
    return {**output, "data": _bundle(output["data"])} if "data" in output else output


def _fits(entries: list[Entry], room: int) -> int:
    """Return how many of the entries, from the first on, fit in."""
    return bisect_right([*accumulate(entry.size for entry in entries)], room)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _bundle(data: Any) -> dict[str, Any]:
    """Return a mime bundle as nbformat allows it: what is not JSON by its type is text."""
    return {
        mime: part if mime.endswith("json") else content_text(part)
        for mime, part in _object(data).items()
    }
