"""What happens, as server-sent events: each part of the page whole where it changed, of the runs those to come."""

from __future__ import annotations

import asyncio
import contextlib
import time

from tornado import iostream

from stepper.web.access_control import Handler, dumped

# between two looks at a notebook, and at all of them
LOOK_SECONDS, LIST_SECONDS = 0.15, 1.0
# without news a line is sent, so that both sides know of each other
BEAT_SECONDS = 10.0


class EventsHandler(Handler):
    """What happens, as server-sent events: each part of the page whole where it changed, of the runs those to come."""

    gone = False

    def on_connection_close(self) -> None:
        """The page was closed."""
        self.gone = True

    async def get(self) -> None:
        """Tell until the page is closed, or the server ends."""
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        face, sent, runs, life, beat = (
            self.face,
            dict[str, bytes](),
            -1,
            0,
            time.monotonic(),
        )
        asked, shelf_at, book, listed = (
            self.get_query_argument("notebook", ""),
            0.0,
            None,
            "",
        )
        with contextlib.suppress(iostream.StreamClosedError):
            await self._send(
                "hello",
                dumped(
                    {"now": round(1000 * time.time()), "project": face.paths.project}
                ),
            )
            while not (self.gone or face.ending.is_set()):
                if time.monotonic() > shelf_at:
                    await face.look()
                    shelf_at = time.monotonic() + LIST_SECONDS
                name = asked or face.notebook or face.current
                if name != listed or book is None:
                    book, listed, runs = (
                        face.shelf.book(name) if name else None,
                        name,
                        -1,
                    )
                missing = "" if book else name
                project = {
                    "notebooks": face.rows,
                    "current": face.current,
                    "trouble": face.shelf.trouble,
                    "new": f'{face.shelf.program} new "PROBLEM"',
                }
                parts: dict[str, object] = {
                    "project": {**project, "missing": missing},
                    "status": None,
                }
                if book is not None:
                    parts |= await asyncio.to_thread(book.look, face.current)
                    past = book.past
                    if past.lives != life:
                        life, runs = past.lives, -1
                    if runs < 0 or runs < len(past.runs):
                        told = book.runs(start := max(0, runs))
                        await self._send("runs", dumped({"from": start, "runs": told}))
                        runs = start + len(told)
                for part, value in parts.items():
                    data = dumped(value)
                    if sent.get(part) != data:
                        sent[part], beat = data, time.monotonic()
                        await self._send(part, data)
                if time.monotonic() > beat + BEAT_SECONDS:
                    beat = time.monotonic()
                    await self._send("beat", b"0")
                await asyncio.sleep(LOOK_SECONDS)
            await self.finish()

    async def _send(self, event: str, data: bytes) -> None:
        self.write(b"event: " + event.encode() + b"\ndata: " + data + b"\n\n")
        await self.flush()
