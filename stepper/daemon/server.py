"""The daemon: an asyncio server on the project's unix socket, and the only place that wires adapters to the engine.

(A few lines over 300: all that one daemon does from its start to its end.)
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import psutil

from stepper import __version__, diagnosis
from stepper.common import secure_files, wire_format
from stepper.common.errors import DaemonError, StepperError
from stepper.common.paths import Paths
from stepper.common.text import format_count
from stepper.daemon import claude_code, daemon_log
from stepper.daemon.command_handlers import answer
from stepper.daemon.hook_events import hook
from stepper.daemon.memory_trim import MemoryTrimmer
from stepper.daemon.request import Request
from stepper.daemon.statusline_file import StatusLineFile
from stepper.daemon.workspace.project_notebooks import Workspace
from stepper.diagnosis import ipython_syntax
from stepper.diagnosis.agent_images import SavedImages
from stepper.diagnosis.diagnoser import Diagnoser
from stepper.diagnosis.environment_facts import ProjectEnvironment
from stepper.hook.start import acquire_lock
from stepper.kernels import backend_registry
from stepper.kernels.outputs import image_diff
from stepper.kernels.outputs.late_outputs import LateOutputs
from stepper.notebooks import background_io
from stepper.notebooks.journal_file import JournalFile
from stepper.notebooks.notebook_file import IpynbFile
from stepper.policy.model import Limits
from stepper.session import (
    notebook_commands,
    progress_events,
    responses,
    status_queries,
)
from stepper.session.background import background_runs
from stepper.session.clients import Caller
from stepper.session.protocols import Journal, LaunchConfig
from stepper.session.run_recovery import recover_run
from stepper.session.session import Session

BEAT = wire_format.pack(wire_format.PROGRESS, b"")
# who only looks on keeps this daemon from nothing: not from its end, not by a version
# of its own
LOOK = b"look"
WAKERS = (b"hook Wake", b"hook Rearm")  # requests that wait for hours
TAKEN_SECONDS = 5.0  # for a waker to say that it has taken what it was told
# a client takes more than three times that without a word for a hang
BEAT_SECONDS = 2.0
# less than a client waits (8.5 s), by what it takes to start a Python on a busy machine
LOCK_SECONDS = 5.0
READ_SECONDS = 30.0  # for a whole request to come
LOOK_SECONDS = 1.0  # a kernel that died while nothing ran is noticed within this
WATCH_SECONDS = 30.0
# from a run's end to the lines that said it runs: the answer goes first
REFRESH_SECONDS = 0.05
SETTLE_SECONDS = 0.2  # from an answer to when memory is given back
IDLE_SECONDS = 30 * 60  # without kernels and requests
log = logging.getLogger("stepper")


class Daemon:
    """Serves one project until nothing needs it."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.workspace = Workspace(paths, self._open, self._replay)
        self.about = {
            "pid": os.getpid(),
            "version": __version__,
            "socket": paths.socket,
        }
        self.ending = asyncio.Event()
        self.replays = set[asyncio.Task[None]]()  # that nobody asked for
        self.working, self.wakers = 0, set[asyncio.Task[tuple[bytes, bytes]]]()
        self.began = time.monotonic()
        self.memory = MemoryTrimmer()
        self.beat_at = 0.0  # when the person is told next of what nobody waits for
        self.lines = StatusLineFile(self.workspace)
        self.shown = True  # what runs is, in files; a former daemon may have left them
        self.refreshing = False
        self.last_used = time.monotonic()

    def _open(self, name: str, path: str) -> Session:
        workspace = self.workspace
        store = workspace.notebook_paths.get_store(path)
        journal = JournalFile(os.path.join(self.paths.journals, store + ".jsonl"))
        record, figures = (
            os.path.join(self.paths.kernels, store + ".json"),
            os.path.join(self.paths.figures, store),
        )
        place = partial(workspace.place, path)
        session = self._session(
            name, path, journal, record, figures, workspace.config.limits, place
        )
        session.file.relocate = partial(workspace.renames.find, session)
        return session

    def _replay(
        self, name: str, copy: str, record: str, place: LaunchConfig, limits: Limits
    ) -> Session:
        """Return a session on a copy of a notebook that keeps nothing."""
        from stepper.session.verification.replay import NullJournal

        figures = os.path.join(os.path.dirname(copy), "figures")
        return self._session(
            name,
            copy,
            NullJournal(),
            record,
            figures,
            lambda: limits,
            lambda environ, kernel: place,
        )

    def _session(
        self,
        name: str,
        path: str,
        journal: Journal,
        record: str,
        figures: str,
        limits: Callable[[], Limits],
        place: Callable[[Mapping[str, str], str], LaunchConfig],
    ) -> Session:
        file = IpynbFile(path)
        kernels = backend_registry.BackendLauncher(
            record, self.paths.runtime, diagnosis.PARTS, lambda: self.workspace.environ
        )
        adviser = Diagnoser(
            path,
            ProjectEnvironment(self.paths.project),
            SavedImages(figures),
            ipython_syntax.get_transformer(),
        )
        session = Session(
            name,
            file,
            LateOutputs(file),
            journal,
            kernels,
            limits,
            place,
            adviser,
            recover_run,
        )
        session.on_change = self._changed
        session.compare_pixels = image_diff.compare_pixels
        return session

    async def serve(self) -> None:
        """Listen until a `shutdown`, a signal, a client of another version or half an hour without kernels."""
        self.paths.create_runtime_folder()
        with contextlib.suppress(FileNotFoundError):
            # we hold the daemon's lock: whoever made it is dead
            os.unlink(self.paths.socket)
        self.workspace.external_changes.start()
        server = await asyncio.start_unix_server(
            self._client, self.paths.socket, limit=1 << 20, backlog=128
        )
        os.chmod(self.paths.socket, 0o600)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ending.set)
        secure_files.replace(self.paths.daemon_json, json.dumps(self.about).encode())
        log.info("daemon %s listens, pid %d", __version__, os.getpid())
        gc.freeze()  # what is imported stays: no collection has to look at it again
        left = secure_files.list_names(self.paths.verify)  # by a daemon that was killed
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._watch(),
                self._look(),
                self._reconcile(),
                self._clear(left),
            )
        ]
        await self.ending.wait()
        for replay in self.workspace.replays:
            replay.set()
        for task in tasks:
            task.cancel()
        server.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.paths.socket)
        await asyncio.gather(*self.replays)
        while self.working > len(self.wakers):  # answers on their way; no new ones come
            await asyncio.sleep(0.02)
        # What was handed on is the next daemon's: those who wait to wake an agent ask
        # that.
        for waker in self.wakers:
            waker.cancel()
        for call in self.workspace.calls():
            call.task.cancel()
        while self.working:
            await asyncio.sleep(0.02)
        for session in self.workspace.sessions.values():
            if session.kernel_manager.kernel is not None:
                session.kernel_manager.kernel.detach()
            session.put_late()
            background_runs.finish_deliveries(session)
        background_io.start_pending_jobs()
        self.workspace.mark()
        self._show([])
        self.lines.remove()
        secure_files.remove(self.paths.daemon_json)
        log.info("daemon ended")

    async def _clear(self, replays: list[str]) -> None:
        """End what replays of a former daemon left; a server's token comes with whoever asks."""
        pause = 1.0
        while replays:
            from stepper.daemon import replay_workspace

            replays = await replay_workspace.clear(
                self.paths, replays, lambda: self.workspace.environ
            )
            await asyncio.sleep(pause := min(2 * pause, 300))

    async def _reconcile(self) -> None:
        """End what a former daemon had started elsewhere, and nothing tells of any more."""

        def recorded() -> Iterator[Path]:
            from stepper.kernels import sealed_records

            return sealed_records.find_project_records(self.paths)

        with contextlib.suppress(StepperError, OSError):
            places = self.workspace.config.limits().kernels.values()
            accepted = [
                place for place in places if self.paths.trusts_backend(place.definition)
            ]
            await backend_registry.reconcile(
                accepted, self.paths.runtime, recorded, os.environ
            )

    async def _look(self) -> None:
        """See to what no request asks for: runs that lost their daemon, kernels that died, outputs that wait."""
        looks: dict[str, asyncio.Task[None]] = {}
        with contextlib.suppress(StepperError, OSError):
            for session in self.workspace.all_sessions():
                await session.kernel_manager.find()
        while True:
            for session in list(self.workspace.sessions.values()):
                background_runs.check_background_calls(session, self.began)
                if session.needs_replay:
                    session.needs_replay = False
                    self.replays.add(
                        replay := asyncio.create_task(self._verify(session))
                    )
                    replay.add_done_callback(self.replays.discard)
                # one that waits holds up no other
                if session.name not in looks or looks[session.name].done():
                    looks[session.name] = asyncio.create_task(self._look_at(session))
            self.lines.update()
            self._show_running()
            await asyncio.sleep(LOOK_SECONDS)

    def _changed(self) -> None:
        """Schedule a refresh where a line says that something runs: it may have ended."""
        if self.refreshing or not (self.shown or self.lines.has_running):
            return
        self.refreshing = True
        asyncio.get_running_loop().call_later(REFRESH_SECONDS, self._refresh)

    def _refresh(self) -> None:
        """Rewrite or remove the lines on what runs, without measuring any kernel's memory."""
        self.refreshing = False
        if self.ending.is_set():
            return
        self.lines.update(measure_memory=False)
        self._show_running()

    def _show_running(self) -> None:
        self._show(
            [
                *filter(
                    None,
                    map(
                        status_queries.format_running, self.workspace.sessions.values()
                    ),
                )
            ]
        )

    async def _verify(self, session: Session) -> None:
        """Replay a notebook that is complete now; what came of it comes with the next prompt."""
        from stepper.daemon import replay_workspace

        try:
            await replay_workspace.unasked(self.workspace, session)
        except Exception:
            log.exception("replaying %s failed", session.name)

    def _show(self, lines: list[str]) -> None:
        """Keep the lines on what runs where people look on: a status line reads the one file, the hook the other.

        The hook's starts a process at each change: where nobody waits for what runs it is renewed now and then. The
        client shows it for five seconds and nothing can take it back, so it names the time at which it was true, and
        there is none for what is estimated to end sooner than that.
        """
        sessions, now = self.workspace.sessions.values(), time.monotonic()
        works = [
            each
            for each in sessions
            if each.state.running
            or each.scratch_run
            or each.kernel_manager.queue_status
        ]
        waited = not all(each.runs_in_background for each in works)
        lasts = not works or not all(map(status_queries.ends_soon, works))
        with contextlib.suppress(OSError):
            if lines:
                secure_files.replace(
                    self.paths.running,
                    "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"),
                )
            if lines and lasts and (waited or now >= self.beat_at):
                self.beat_at = now + min(
                    session.outputs.get_limits().heartbeat_seconds
                    for session in sessions
                )
                told = f"{time.strftime('%H:%M:%S')} {' · '.join(lines)}"
                secure_files.replace(self.paths.notice, claude_code.format_notice(told))
            elif not lines and self.shown:
                secure_files.remove(self.paths.running)
                # the client reads it up to 0.7 s after it was written
                secure_files.remove(self.paths.notice)
            self.shown = bool(lines)

    async def _look_at(self, session: Session) -> None:
        try:
            await session.do_maintenance()
        except StepperError as error:
            log.info("%s: %s", session.name, error)
        except Exception:
            log.exception("looking at %s failed", session.name)

    async def _watch(self) -> None:
        """End idle kernels beyond the limits, and the daemon when there are no kernels."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            now = time.monotonic()
            # A cleaner of /tmp took it, or callers meet elsewhere since
            # /tmp/stepper-UID has another owner.
            if (
                not os.path.exists(self.paths.socket)
                or Paths(self.paths.project).socket != self.paths.socket
            ):
                self.ending.set()
            with contextlib.suppress(StepperError, OSError):
                await self._end_idle_kernels(now)
            kernels = any(
                session.kernel_manager.kernel
                for session in self.workspace.sessions.values()
            )
            if kernels or self.working:
                self.last_used = now
            elif now - self.last_used > IDLE_SECONDS:
                self.ending.set()

    async def _end_idle_kernels(self, now: float) -> None:
        """End kernels that were idle for `kernel_idle_hours`, and those idle longest beyond `max_kernels`."""
        limits = self.workspace.config.limits()
        hours = limits.kernel_idle_hours
        idle = [
            session for session in self.workspace.sessions.values() if session.is_idle
        ]
        idle.sort(key=lambda session: session.last_used, reverse=True)
        for number, session in enumerate(idle):
            why = ""
            if now - session.last_used > hours * 3600:
                why = f"the kernel was idle for {hours:g} hours (kernel_idle_hours)"
            elif number >= limits.max_kernels:
                others = format_count(number, "idle kernel")
                were = "was" if number == 1 else "were"
                most = limits.max_kernels
                why = (
                    f"the kernel was shut down: {others} {were} used more recently,"
                    f" and max_kernels is {most}"
                )
            if why:
                log.info("%s: ending the kernel: %s", session.name, why)
                await notebook_commands.end_idle_kernel(session, session.last_used, why)

    async def _client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            uid = wire_format.get_peer_uid(writer.get_extra_info("socket"))
            if uid != os.getuid():  # the folder's 0700 says so already
                raise PermissionError(f"uid {uid} is not ours")
            parts = await _request(reader)
            if parts[0] == LOOK:
                return await self._answer(parts, reader, writer)
            self.last_used = time.monotonic()
            self.working += 1
            try:
                await self._answer(parts, reader, writer)
            finally:
                self.working -= 1
        except asyncio.TimeoutError:
            log.info(
                "a client was turned away: it sent no whole request in %g s",
                READ_SECONDS,
            )
        except (
            wire_format.FrameError,
            asyncio.IncompleteReadError,
            ConnectionError,
            PermissionError,
        ) as error:
            log.info("a client was turned away: %s", error)
        except asyncio.CancelledError:
            # the daemon ends; asyncio would log each as an error
            log.info("a client was turned away: the daemon ends")
        finally:
            writer.close()
            asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._settle)

    def _settle(self) -> None:
        if self.working <= len(self.wakers):  # those wait for hours
            self.memory.trim_if_grown()

    async def _answer(
        self,
        parts: list[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if len(parts) != 5:
            raise wire_format.FrameError(f"{len(parts)} parts")
        verb, version, environ, cwd, payload = parts
        if version != __version__.encode() and verb != b"shutdown":
            writer.write(wire_format.pack(wire_format.STALE, __version__.encode()))
            await writer.drain()
            if verb != LOOK:
                self.ending.set()
            return

        def progress(
            told: progress_events.TerminalEvent | progress_events.CellRunning,
        ) -> None:
            if not writer.is_closing():
                writer.write(
                    wire_format.pack(wire_format.PROGRESS, responses.to_json(told))
                )

        writer.write(BEAT)
        gone = asyncio.create_task(_said(reader))

        async def deliver(told: str) -> bool:
            writer.write(
                wire_format.pack(wire_format.PROGRESS, told.encode("utf-8", "replace"))
            )
            await asyncio.wait([gone], timeout=TAKEN_SECONDS)
            return gone.done() and gone.result() != b""

        def keep(told: bytes) -> None:
            writer.write(wire_format.pack(wire_format.PROGRESS, b"\0" + told))

        given = wire_format.unpack_environ(environ)
        if verb != LOOK:  # no kernel is to be started with its environment
            self.workspace.environ = given
        by = (
            "hook"
            if verb.startswith(b"hook ")
            else "mcp"
            if given.get("STEPPER_FACE") == "mcp"
            else "cli"
        )
        if verb != LOOK:
            self.workspace.note_caller(given, by)
        caller = Caller(
            given,
            interface=by,
            deliver=deliver,
            send_handover=keep,
            is_alive=lambda: _lives(given),
        )
        request = Request(
            self.workspace,
            caller,
            os.fsdecode(cwd),
            progress,
            self.about,
            self.ending.set,
        )
        work = asyncio.create_task(
            self._work(verb.decode("utf-8", "replace"), payload, request)
        )
        if verb.startswith(WAKERS):
            self.wakers.add(work)
            work.add_done_callback(self.wakers.discard)
        while not work.done():
            waited = [work] if gone.done() else [work, gone]
            await asyncio.wait(
                waited, timeout=BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if (
                gone.done()
                and gone.result() == b""
                and not caller.disconnected.is_set()
            ):
                caller.disconnected.set()
                log.info("the client of %r went away", verb[:100])
                for session in list(self.workspace.sessions.values()):
                    await session.cancel_for_caller(caller)
            elif not work.done() and not writer.is_closing():
                # a client that closed its half alone waits for the end
                writer.write(BEAT)
        gone.cancel()
        kind, body = work.result()
        if not writer.is_closing():
            writer.write(wire_format.pack(kind, body))
            await writer.drain()

    async def _work(
        self, verb: str, payload: bytes, request: Request
    ) -> tuple[bytes, bytes]:
        try:
            kind, _, event = verb.partition(" ")
            if kind == "hook":
                return wire_format.OK, await hook(
                    self.workspace, event, payload, request.caller
                )
            body = await answer(verb, payload, request)
            self.workspace.mark()
            return wire_format.OK, body
        except StepperError as error:
            failed = error
        except Exception as error:
            log.exception("%s failed", verb)
            why = f"stepper itself failed: {type(error).__name__}: {error}"
            failed = DaemonError(why, f"see {self.paths.log}")
        told = {
            "message": failed.message,
            "hint": failed.hint,
            "exit_code": failed.exit_code,
        }
        return wire_format.FAILED, json.dumps(told).encode()


def _lives(environ: Mapping[str, str]) -> bool:
    """Whether the client of Claude Code lives whose hook that environment is."""
    pid = environ.get(background_runs.CLIENT_PID, "")
    return not pid.isdecimal() or psutil.pid_exists(int(pid))


async def _said(reader: asyncio.StreamReader) -> bytes:
    """Return the next byte of a client, nothing where it went away; one that is killed with words unread resets."""
    try:
        return await reader.read(1)
    except ConnectionError:
        return b""


async def _request(reader: asyncio.StreamReader) -> list[bytes]:
    late = asyncio.get_running_loop().call_later(
        READ_SECONDS, reader.set_exception, asyncio.TimeoutError()
    )
    try:
        sizes = wire_format.parse_part_lengths(
            await reader.readexactly(
                8
                * wire_format.parse_part_count(
                    await reader.readexactly(wire_format.PREFIX)
                )
            )
        )
        return [await reader.readexactly(one) for one in sizes]
    finally:
        late.cancel()


def main() -> None:
    """Run the daemon of the project named on the command line; end at once where one runs already."""
    paths = Paths(sys.argv[1])
    paths.create_home_folder()
    lock = secure_files.open_private(paths.daemon_lock, os.O_CREAT | os.O_RDWR)
    # A former daemon (of another version) may still be finishing a cell: it keeps the
    # lock until it is through.
    if not acquire_lock(lock, LOCK_SECONDS):
        sys.exit(
            "an earlier one still runs a cell: ask again when that is through "
            "(`stepper shutdown` ends it, and the kernels with their state)"
        )
    daemon_log.configure_logging(paths.log)
    asyncio.run(Daemon(paths).serve())
