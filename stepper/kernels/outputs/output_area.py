"""The outputs of one execution as nbformat dicts, built from kernel messages.

Memory use is limited while the messages arrive: if there are too many outputs, only the
first and the last are stored, and those in the middle are dropped and counted.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from stepper.common.text import TRUNCATED, format_count
from stepper.kernels.error_parsing import convert_error
from stepper.kernels.message_decoding import Message
from stepper.kernels.outputs.output_images import (
    MAX_SAVED_IMAGES,
    get_image,
    get_image_key,
    join_content,
)
from stepper.kernels.outputs.output_limits import (
    OUTPUT_BYTES,
    Entry,
    Output,
    build_omission_note,
    measure_output,
)
from stepper.kernels.outputs.stream_text import StreamText
from stepper.kernels.wake_pattern import WakeWatcher
from stepper.notebooks.notebook_json import is_json_type
from stepper.policy.model import NOTHING_OMITTED, OmittedOutput

# If the area holds more than this multiple of its limit, the middle is dropped.
MAX_HELD_FACTOR = 4
DISPLAY = "display_data"
RESULT = "execute_result"
UPDATE = "update_display_data"
DISPLAY_TYPES = (DISPLAY, UPDATE, RESULT)
# The messages that change the outputs of a cell.
OUTPUT_TYPES = (*DISPLAY_TYPES, "stream", "error", "clear_output")
# Message type → name of its time in the metadata of nbclient and JupyterLab.
TIMING_NAMES = {
    "execute_input": "iopub.execute_input",
    "execute_reply": "shell.execute_reply",
}
OMITTED_OUTPUTS = re.compile(
    rf"… ([\d,]+) outputs? \(([\d,]+) bytes?\) {re.escape(TRUNCATED)}\n"
)
# The beginning of a text that redraws a progress bar, or a text that only moves to the
# next line.
CONTINUES_BAR = re.compile(r"\r|\x1b\[\d*A|[\r\n]+\Z")
# How many outputs, and lines of each, are searched for progress.
PROGRESS_OUTPUTS = 4
PROGRESS_LINES = 20
# The output of an entry that is stored only for its image.
NO_OUTPUT: Output = {}
# Replaces an image that is only counted.
COUNTED_IMAGE = {"data": {"image/png": "one of too many"}}


class RenderedOutputs(NamedTuple):
    """Outputs within the size limit, as they are written to the notebook.

    `omitted` counts the outputs and characters that were left out. `displays` maps each
    display id to the indices of the outputs that show it.
    """

    outputs: list[Output]
    omitted: OmittedOutput
    displays: dict[str, list[int]]


class OutputArea:
    """The outputs of one execution within a size limit, and the times of its messages.

    The keys of `timings` are those of nbclient and JupyterLab. `change_count` is the
    number of messages that may have changed the outputs.
    """

    def __init__(self, max_output_bytes: int) -> None:
        self.limit = max_output_bytes
        self.max_held_bytes = MAX_HELD_FACTOR * max_output_bytes
        self.execution_count: int | None = None
        self.timings: dict[str, str] = {}
        self.change_count = 0
        # Searches the printed text for the wake pattern.
        self.watch: WakeWatcher | None = None
        self.clear()

    def clear(self) -> None:
        """Remove all outputs."""
        self.clear_before_next_output = False
        # Earlier omissions that no line in the outputs reports.
        self.unreported = NOTHING_OMITTED
        # The outputs before the dropped outputs; empty if no outputs were dropped.
        self.head: list[Entry] = []
        # Entries with the images of dropped outputs.
        self.dropped_images: list[Entry] = []
        self.dropped = NOTHING_OMITTED
        self.entries: list[Entry] = []
        # Stream → its progress bar, if it may be redrawn.
        self.progress_bars: dict[str, Entry] = {}
        self.displays: dict[str, list[Entry]] = {}
        # Display id → its last update. Updates are applied only when it matters: a cell
        # may send thousands.
        self.pending_updates: dict[str, Output] = {}
        self.held_bytes = 0

    @classmethod
    def from_notebook(
        cls,
        outputs: Sequence[Output],
        displays: Mapping[str, Sequence[int]],
        omitted: OmittedOutput,
        limit: int,
    ) -> OutputArea:
        """Return an area with the outputs of a cell, for messages after its run.

        `displays` maps each display id to the indices of the outputs that show it.
        `omitted` counts the outputs and characters that are missing in the notebook. If
        nothing is missing, a line that looks like the report of an omission is text
        that the cell has printed.
        """
        area = cls(limit)
        entries = []
        for output in outputs:
            entry = area._restore_output(join_texts(output), omitted)
            entries.append(entry)
        reported_counts = sum_omitted(area._iterate_entries(), area.dropped)
        unreported_counts = []
        for count, reported_count in zip(omitted, reported_counts, strict=True):
            unreported_counts.append(max(0, count - reported_count))
        area.unreported = OmittedOutput(*unreported_counts)
        for display_id, indices in displays.items():
            shown_entries = [
                entries[index] for index in indices if index < len(entries)
            ]
            # A display that was too large was replaced by a note.
            display_entries = [
                entry for entry in shown_entries if "data" in entry.output
            ]
            area.displays[display_id] = display_entries
        area.held_bytes = area._count_held_bytes()
        return area

    def _restore_output(self, output: Output, omitted: OmittedOutput) -> Entry:
        """Add an output of the notebook, and return its entry."""
        text = None
        omission = None
        if output["output_type"] == "stream":
            is_cut = bool(omitted.characters)
            text = StreamText.from_notebook(output["text"], self.limit, is_cut=is_cut)
            if omitted.outputs:
                omission = OMITTED_OUTPUTS.fullmatch(output["text"])
        entry = Entry.from_output(output, text)
        if omission is None:
            self.entries.append(entry)
        else:
            # The outputs before this line are the head.
            count, size = omission.groups()
            outputs = parse_count(count)
            size_bytes = parse_count(size)
            self.dropped = OmittedOutput(outputs=outputs, bytes=size_bytes)
            self.head = self.entries
            self.entries = []
        return entry

    @property
    def matched_line(self) -> str:
        """The first printed line that matches the wake pattern, or an empty string."""
        if self.watch:
            return self.watch.matched_line
        return ""

    def _iterate_entries(self) -> Iterator[Entry]:
        """Yield all entries, including those that are stored only for their image."""
        yield from self.head
        yield from self.dropped_images
        yield from self.entries

    def _count_held_bytes(self) -> int:
        """Return the number of bytes that the entries take in memory."""
        return sum(entry.held_bytes for entry in self._iterate_entries())

    def add_message(self, message: Message) -> bool:
        """Add a message, and return whether it is the idle status of the execution."""
        message_type = message["msg_type"]
        content = message["content"]
        if message_type in OUTPUT_TYPES:
            self.change_count += 1
        count = content.get("execution_count")
        if count and isinstance(count, int):
            self.execution_count = count
        if message_type == "stream":
            stream_name = str(content["name"])
            text = str(content["text"])
            self._add_stream(stream_name, text)
        elif message_type in DISPLAY_TYPES:
            self._add_display(message)
        elif message_type == "error":
            self._add_error(content)
        elif message_type == "clear_output":
            self.clear_before_next_output = bool(content.get("wait"))
            if not self.clear_before_next_output:
                self.clear()
        elif message_type == "status":
            state = content.get("execution_state")
            if state in ("busy", "idle"):
                self._record_time(f"iopub.status.{state}", message)
            return bool(state == "idle")
        elif message_type in TIMING_NAMES:
            self._record_time(TIMING_NAMES[message_type], message)
        return False

    def _record_time(self, name: str, message: Message) -> None:
        """Store the date of a message in `timings`."""
        date = str(message["header"].get("date", ""))
        self.timings[name] = date.replace("+00:00", "Z")

    def _add_stream(self, name: str, text: str) -> None:
        """Append a text to the output that it continues, or to a new output."""
        entry = self._find_stream_entry(name, text)
        if entry is None:
            output = {"output_type": "stream", "name": name}
            stream_text = StreamText(self.limit)
            entry = self._add(Entry(output, 0, stream_text))
        stream = entry.text
        assert stream is not None
        stream.add(text)
        self.progress_bars.pop(name, None)
        if stream.is_bar:
            self.progress_bars[name] = entry
        text_size = stream.head_size + stream.tail_size
        size = OUTPUT_BYTES + text_size
        self.held_bytes += size - entry.size
        entry.size = size
        self._drop_excess()
        if self.watch:
            self.watch.search(name, text)

    def _find_stream_entry(self, name: str, text: str) -> Entry | None:
        """Return the entry that a text continues, or None if it needs a new entry.

        A progress bar is redrawn in its own entry, even if other outputs follow.
        """
        if not self.entries or self.clear_before_next_output:
            return None
        last = self.entries[-1]
        if last.text is not None and last.output["name"] == name:
            return last
        if CONTINUES_BAR.match(text):
            return self.progress_bars.get(name)
        return None

    def _add_display(self, message: Message) -> None:
        """Add a display or result, and update other displays with the same id."""
        message_type = message["msg_type"]
        content = message["content"]
        display_id = get_display_id(message)
        bundle = {
            "metadata": coerce_to_dict(content.get("metadata")),
            "data": build_mime_bundle(content.get("data")),
        }
        if display_id in self.displays:
            self.pending_updates[display_id] = bundle
            self.held_bytes += measure_output(bundle)
        if message_type != UPDATE:
            output: Output = {"output_type": message_type}
            if message_type == RESULT:
                count = content.get("execution_count")
                output["execution_count"] = count if isinstance(count, int) else None
            entry = self._add(Entry.from_output(output | bundle))
            if display_id:
                entries = self.displays.setdefault(display_id, [])
                entries.append(entry)
        self._drop_excess()

    def _add_error(self, content: Message) -> None:
        """Add an error."""
        output: Output = {"output_type": "error", **convert_error(content)}
        self._add(Entry.from_output(output))

    def _apply_updates(self) -> None:
        """Replace the content of displays that were updated."""
        for display_id, bundle in self.pending_updates.items():
            for entry in self.displays[display_id]:
                self._replace_display(entry, bundle)
        self.pending_updates = {}

    def _replace_display(self, entry: Entry, bundle: Output) -> None:
        """Replace the content of a display or result, and keep its output type.

        `bundle` contains the new data and metadata.
        """
        output: Output = {"output_type": DISPLAY}
        if entry.output["output_type"] == RESULT:
            count = entry.output.get("execution_count")
            output = {"output_type": RESULT, "execution_count": count}
        new_entry = self._limit_size(Entry.from_output(output | bundle))
        entry.output = new_entry.output
        entry.size = new_entry.size
        entry.image = new_entry.image
        entry.removed = new_entry.removed

    def _limit_size(self, entry: Entry) -> Entry:
        """Return an entry, shortened if it is larger than the limit."""
        if entry.size <= self.limit:
            return entry
        return entry.shorten(self.limit // 2)

    def _add(self, entry: Entry) -> Entry:
        """Add an entry and return it, shortened if necessary."""
        if self.clear_before_next_output:
            self.clear()
        entry = self._limit_size(entry)
        self.entries.append(entry)
        self.held_bytes += entry.held_bytes
        self._drop_excess()
        return entry

    def _drop_excess(self) -> None:
        """Drop outputs from the middle if the outputs take too much memory."""
        if self.held_bytes <= self.max_held_bytes:
            return
        self._apply_updates()
        self.held_bytes = self._count_held_bytes()
        # Only updates that were replaced by later ones have taken the memory.
        if self.held_bytes <= self.max_held_bytes / 2:
            return
        entries = self.entries
        part_bytes = self.limit + OUTPUT_BYTES  # enough for the largest entry
        if not self.head:
            end = count_fitting(entries, part_bytes)
            self.head = entries[:end]
            entries = entries[end:]
        tail_count = count_fitting(entries[::-1], part_bytes)
        start = len(entries) - tail_count
        self.entries = entries[start:]
        self.progress_bars = {}
        self._count_dropped(entries[:start])
        self._drop_excess_images()
        self.held_bytes = self._count_held_bytes()
        # Large images may remain: drop outputs again only after they have doubled.
        max_bytes = MAX_HELD_FACTOR * self.limit
        doubled_bytes = 2 * self.held_bytes
        self.max_held_bytes = max(max_bytes, doubled_bytes)

    def _count_dropped(self, dropped_entries: list[Entry]) -> None:
        """Count dropped entries, store their images and remove their displays."""
        dropped_ids = set(map(id, dropped_entries))
        for entry in dropped_entries:
            self.dropped += entry.total
            if entry.image:
                image_entry = Entry(NO_OUTPUT, 0, image=entry.image)
                self.dropped_images.append(image_entry)
        displays = {}
        for display_id, entries in self.displays.items():
            remaining = [entry for entry in entries if id(entry) not in dropped_ids]
            if remaining:
                displays[display_id] = remaining
        self.displays = displays

    def _drop_excess_images(self) -> None:
        """Replace images that will not be saved as files, and repeated images.

        The first MAX_SAVED_IMAGES different images are kept.
        """
        images: dict[int, Output] = {}
        for entry in self._iterate_entries():
            image = entry.image
            if image is None or image is COUNTED_IMAGE:
                continue
            text = get_image(image)
            key = get_image_key(text)
            if len(images) < MAX_SAVED_IMAGES:
                images.setdefault(key, image)
            entry.image = images.get(key, COUNTED_IMAGE)

    def get_outputs(self) -> list[Output]:
        """Return the outputs, shortened to the size limit."""
        return self.render().outputs

    def render(self) -> RenderedOutputs:
        """Return the outputs within the size limit, the omissions and the displays.

        Long outputs are shortened. If the outputs are still too large, those in the
        middle are replaced by a note.
        """
        self._apply_updates()
        stored_entries = [*self.head, *self.entries]
        omitted = self.dropped
        entries = [entry.shorten(self.limit) for entry in stored_entries]
        if omitted.outputs or not self._are_within_limit(entries):
            entries = [entry.shorten(self.limit // 2) for entry in stored_entries]
        if omitted.outputs or not self._are_within_limit(entries):
            middle = self._find_middle(entries)
            for entry in entries[middle]:
                omitted += entry.total
            output_count = format_count(omitted.outputs, "output")
            byte_count = format_count(omitted.bytes, "byte")
            note = Entry(build_omission_note(f"{output_count} ({byte_count})"), 0)
            entries[middle] = [note]
            stored_entries[middle] = [note]
        omitted = sum_omitted(entries, omitted + self.unreported)
        outputs = [entry.output for entry in entries]
        return RenderedOutputs(outputs, omitted, self._find_displays(stored_entries))

    def _are_within_limit(self, entries: list[Entry]) -> bool:
        """Return whether the entries are within the size limit together."""
        size = sum(entry.size for entry in entries)
        return size <= self.limit

    def _find_middle(self, entries: list[Entry]) -> slice:
        """Return the slice of entries that must be omitted to observe the limit.

        If outputs were dropped before, the slice contains their position.
        """
        half = self.limit // 2
        head_end = len(self.head)
        if head_end:
            start = count_fitting(entries[:head_end], half)
            tail = entries[head_end:]
        else:
            start = count_fitting(entries, half)
            tail = entries[start:]
        tail_count = count_fitting(tail[::-1], half)
        end = len(entries) - tail_count
        return slice(start, end)

    def _find_displays(self, entries: list[Entry]) -> dict[str, list[int]]:
        """Return the indices of the entries that show each display, by display id."""
        indices: dict[int, int] = {}
        for index, entry in enumerate(entries):
            indices[id(entry)] = index
        displays = {}
        for display_id, shown_entries in self.displays.items():
            ids = map(id, shown_entries)
            shown_indices = [indices[key] for key in ids if key in indices]
            if shown_indices:
                displays[display_id] = shown_indices
        return displays

    def get_last_line(self) -> str:
        """Return the progress bar or the last line of text, or an empty string."""
        for entry in (*self.progress_bars.values(), *reversed(self.entries)):
            if entry.text:
                line = entry.text.get_last_line()
                if line:
                    return line
        return ""

    def get_last_lines(self) -> list[str]:
        """Return the last lines of the last outputs, from top to bottom."""
        lines = []
        for entry in self.entries[-PROGRESS_OUTPUTS:]:
            if entry.text:
                last_lines = entry.text.get_last_lines()
                lines += last_lines[-PROGRESS_LINES:]
        return lines

    def list_images(self) -> list[Output]:
        """Return the outputs that contain images, including omitted outputs.

        COUNTED_IMAGE is returned in place of an image that was dropped.
        """
        self._apply_updates()
        return [entry.image for entry in self._iterate_entries() if entry.image]


def get_display_id(message: Message) -> str:
    """Return the display id of a message, or an empty string."""
    if message["msg_type"] not in DISPLAY_TYPES:
        return ""
    content = message["content"]
    transient = coerce_to_dict(content.get("transient"))
    display_id = transient.get("display_id")
    if isinstance(display_id, str):
        return display_id
    return ""


def parse_count(text: str) -> int:
    """Return the number in a text with thousands separators."""
    digits = text.replace(",", "")
    return int(digits)


def join_texts(output: Output) -> Output:
    """Return an output of a notebook file with each text as one string.

    This is the form of kernel messages. In the file, a text may be a list of lines.
    """
    if output.get("output_type") == "stream":
        text = join_content(output.get("text", ""))
        return output | {"text": text}
    if "data" in output:
        data = build_mime_bundle(output["data"])
        return output | {"data": data}
    return output


def sum_omitted(entries: Iterable[Entry], start: OmittedOutput) -> OmittedOutput:
    """Return the sum of `start` and the omissions of all entries."""
    return sum((entry.omitted for entry in entries), start)


def count_fitting(entries: list[Entry], max_bytes: int) -> int:
    """Return the number of first entries whose total size is at most `max_bytes`."""
    totals = list(accumulate(entry.size for entry in entries))
    return bisect_right(totals, max_bytes)


def coerce_to_dict(value: Any) -> dict[str, Any]:
    """Return a dict unchanged, and an empty dict for any other value."""
    if isinstance(value, dict):
        return value
    return {}


def build_mime_bundle(data: Any) -> dict[str, Any]:
    """Return a MIME bundle that is valid in nbformat.

    The content of a MIME type must be a string unless the type is JSON.
    """
    bundle = {}
    for mime_type, content in coerce_to_dict(data).items():
        is_json = is_json_type(mime_type)
        bundle[mime_type] = content if is_json else join_content(content)
    return bundle
