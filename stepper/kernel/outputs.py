"""Kernel messages → a cell's outputs as nbformat dicts, bounded while they arrive: the head and the tail stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from stepper.kernel.entries import EACH, GAPS, RESULT, Entry, Text, left_out, number, shortened, size, text_of
from stepper.kernel.pictures import LOOKED_AT, key, picture_in
from stepper.session.ports import NOTHING, LeftOut

ROOM = 4  # how many times the limit is held before the middle is let go
UPDATE = "update_display_data"
SHOWN = ("display_data", UPDATE, RESULT)
KINDS = (*SHOWN, "stream", "error", "clear_output")  # the messages that change a cell's outputs
ONE_OF_MANY = {"data": {"image/png": "one of too many"}}  # counted, never looked at


@dataclass
class Gap:
    """What was let go between head and tail."""

    missing: LeftOut = NOTHING
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
        area.before = LeftOut(
            *(max(0, known - found) for known, found in zip(astuple(missing), astuple(seen), strict=True))
        )
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
        return entry if entry.size <= self.limit else shortened(entry, self.limit // 2)

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


def _joined(output: dict[str, Any]) -> dict[str, Any]:
    """Return an output with its texts in one piece, as messages have them."""
    if output.get("output_type") == "stream":
        return {**output, "text": text_of(output.get("text", ""), "")}
    data = _object(output.get("data"))
    texts = {mime: text_of(part, "") for mime, part in data.items() if not mime.endswith("json")}
    return {**output, "data": {**data, **texts}} if "data" in output else output


def _fits(entries: list[Entry], room: int) -> int:
    """Return how many of the entries, from the first on, fit in."""
    for count, entry in enumerate(entries):
        room -= entry.size
        if room < 0:
            return count
    return len(entries)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _bundle(data: Any) -> dict[str, Any]:
    """Return a mime bundle as nbformat allows it: what is not JSON by its type is text."""
    return {mime: part if mime.endswith("json") else text_of(part, "") for mime, part in _object(data).items()}
