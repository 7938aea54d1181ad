"""The daemon: an asyncio server on the project's Unix socket."""

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
from collections.abc import Iterator, Mapping
from functools import partial
from operator import itemgetter
from pathlib import Path

import psutil

from stepper import __version__
from stepper.common import secure_files, wire_format
from stepper.common.errors import DaemonError, StepperError
from stepper.common.paths import Paths
from stepper.common.text import format_count
from stepper.daemon import daemon_log
from stepper.daemon.command_handlers import handle_command
from stepper.daemon.connection import (
    REQUEST_SECONDS,
    ClientRequest,
    Connection,
    Response,
)
from stepper.daemon.hook_events import handle_event
from stepper.daemon.memory_trim import MemoryTrimmer
from stepper.daemon.request import Request
from stepper.daemon.running_cell_files import RunningCellFiles
from stepper.daemon.statusline_file import StatusLineFile
from stepper.daemon.workspace import session_factory
from stepper.daemon.workspace.project_notebooks import Workspace
from stepper.hook.daemon_start import acquire_lock
from stepper.kernels import backend_registry
from stepper.notebooks import background_io
from stepper.policy.model import Limits
from stepper.session import notebook_commands
from stepper.session.background import background_runs
from stepper.session.caller import Caller
from stepper.session.protocols import LaunchConfig
from stepper.session.session import Session

# The command of viewers. It does not count as use of the daemon, and a viewer of
# another version does not make the daemon exit.
LOOK = b"look"
WAITING_HOOKS = (b"hook Wake", b"hook Rearm")  # requests that may wait for hours
# The time between two heartbeats. A client without a response for more than three times
# as long reports that the daemon does not respond.
BEAT_SECONDS = 2.0
# Shorter than a client's wait (8.5 s), because Python starts slowly on a busy machine.
LOCK_SECONDS = 5.0
MAINTENANCE_SECONDS = 1.0  # a kernel that dies while idle is noticed within this time
WATCH_SECONDS = 30.0  # the interval of checks for idle kernels and an unused daemon
# The delay between a change and the update of the status lines. The response to the
# request is sent first.
REFRESH_SECONDS = 0.05
TRIM_SECONDS = 0.2  # from a response to the release of memory
IDLE_SECONDS = 30 * 60  # without kernels and requests
FIRST_RETRY_SECONDS = 2.0  # doubled for each attempt to remove old replays
LONGEST_RETRY_SECONDS = 300.0
POLL_SECONDS = 0.02  # the interval of checks for requests in progress, on exit
BUFFER_BYTES = 1 << 20  # of received data for each connection
MAX_PENDING_CONNECTIONS = 128
SECONDS_PER_HOUR = 3600
log = logging.getLogger("stepper")


class Daemon:
    """Serves the requests of one project until it is no longer needed."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.workspace = Workspace(paths, self._open_session, self._open_replay)
        self.daemon_info = {
            "pid": os.getpid(),
            "version": __version__,
            "socket": paths.socket,
        }
        self.exit_requested = asyncio.Event()
        self.started_at = time.monotonic()
        self.last_used = self.started_at
        self.request_count = 0  # the number of requests in progress
        # The requests of hooks that wait for a message to the agent.
        self.waiting_hooks = set[asyncio.Task[Response]]()
        # The automatic replays of complete notebooks.
        self.replay_tasks = set[asyncio.Task[None]]()
        self.memory = MemoryTrimmer()
        self.status_lines = StatusLineFile(self.workspace)
        self.running_cell_files = RunningCellFiles(self.workspace)
        self.is_refresh_scheduled = False

    def _open_session(self, name: str, path: str) -> Session:
        """Return a new session for a notebook, by its name and path."""
        return session_factory.open_session(
            self._schedule_refresh, self.workspace, name, path
        )

    def _open_replay(
        self, name: str, copy: str, record: str, launch: LaunchConfig, limits: Limits
    ) -> Session:
        """Return a session without a journal, for a copy of a notebook."""
        return session_factory.open_replay(
            self._schedule_refresh, self.workspace, name, copy, record, launch, limits
        )

    async def serve(self) -> None:
        """Serve requests until the daemon must exit.

        The daemon exits after `stepper shutdown`, a signal, a request from a client of
        another version, or IDLE_SECONDS without kernels and requests. Kernels keep
        running unless they were shut down.
        """
        server = await self._start_server()
        old_replays = secure_files.list_names(self.paths.verify)
        tasks = [
            asyncio.create_task(self._watch_usage()),
            asyncio.create_task(self._maintain_sessions()),
            asyncio.create_task(self._cancel_unrecorded_jobs()),
            asyncio.create_task(self._remove_old_replays(old_replays)),
        ]
        await self.exit_requested.wait()
        for stop_replay in self.workspace.replays:
            stop_replay.set()
        for task in tasks:
            task.cancel()
        server.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.paths.socket)
        await self._finish_requests()
        self._detach_sessions()
        self.workspace.slim_copies.restore_all()
        background_io.start_pending_jobs()
        self.workspace.update_markers()
        self.running_cell_files.remove()
        self.status_lines.remove()
        secure_files.remove(self.paths.daemon_json)
        log.info("the daemon is exiting")

    async def _start_server(self) -> asyncio.AbstractServer:
        """Listen on the socket, handle signals and write the daemon's JSON file.

        First put back notebooks that a former daemon left as slim copies, and look for
        external changes.
        """
        self.paths.create_runtime_folder()
        with contextlib.suppress(FileNotFoundError):
            # This daemon has the lock, so the daemon that created the socket has
            # exited.
            os.unlink(self.paths.socket)
        # A former daemon may have been killed while a client read a notebook.
        self.workspace.slim_copies.restore_all()
        self.workspace.external_changes.start()
        server = await asyncio.start_unix_server(
            self._handle_client,
            self.paths.socket,
            limit=BUFFER_BYTES,
            backlog=MAX_PENDING_CONNECTIONS,
        )
        os.chmod(self.paths.socket, 0o600)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.exit_requested.set)
        info = json.dumps(self.daemon_info).encode()
        secure_files.replace(self.paths.daemon_json, info)
        log.info(
            "the daemon (version %s, PID %d) is listening", __version__, os.getpid()
        )
        gc.freeze()  # garbage collections need not visit the imported modules
        return server

    async def _finish_requests(self) -> None:
        """Wait for requests in progress, then cancel waiting hooks and background runs.

        The next daemon continues the background runs, and hooks that wait to notify an
        agent send their requests to the next daemon.
        """
        await asyncio.gather(*self.replay_tasks)
        while self.request_count > len(self.waiting_hooks):
            await asyncio.sleep(POLL_SECONDS)
        for hook in self.waiting_hooks:
            hook.cancel()
        for call in self.workspace.list_background_calls():
            call.task.cancel()
        while self.request_count:
            await asyncio.sleep(POLL_SECONDS)

    def _detach_sessions(self) -> None:
        """Detach from the kernels, which keep running, and save pending outputs.

        Results that a running client has accepted are marked as reported.
        """
        for session in self.workspace.sessions.values():
            kernel = session.kernel_manager.kernel
            if kernel is not None:
                kernel.detach()
            session.write_late_outputs()
            background_runs.finish_deliveries(session)

    async def _remove_old_replays(self, names: list[str]) -> None:
        """Remove the replay folders of a killed daemon, and shut down their kernels.

        `names` are the names of the folders. Failed removals are retried: a Jupyter
        server may require a token, which the daemon gets with the environment of a
        later request.
        """
        if not names:
            return
        from stepper.daemon.replay import replay_workspace

        retry_seconds = FIRST_RETRY_SECONDS
        while names:
            names = await replay_workspace.remove_workspaces(
                self.paths, names, lambda: self.workspace.environ
            )
            await asyncio.sleep(retry_seconds)
            retry_seconds = min(2 * retry_seconds, LONGEST_RETRY_SECONDS)

    async def _cancel_unrecorded_jobs(self) -> None:
        """Cancel cluster jobs of former daemons that no kernel record mentions."""

        def get_records() -> Iterator[Path]:
            """Return the kernel records of the project."""
            from stepper.kernels import sealed_kernel_records

            return sealed_kernel_records.find_project_records(self.paths)

        with contextlib.suppress(StepperError, OSError):
            trusted_backends = []
            for backend in self.workspace.config.load_limits().kernels.values():
                if self.paths.trusts_backend(backend.definition):
                    trusted_backends.append(backend)
            await backend_registry.remove_orphans(
                trusted_backends, self.paths.runtime, get_records, os.environ
            )

    async def _maintain_sessions(self) -> None:
        """Maintain all sessions every second, for example to detect dead kernels.

        Maintenance also continues runs of an earlier daemon, writes late outputs,
        starts replays of complete notebooks and updates the status line files.
        """
        tasks: dict[str, asyncio.Task[None]] = {}
        sessions: list[Session] = []
        with contextlib.suppress(StepperError, OSError):
            sessions = self.workspace.open_all_sessions()
        for session in sessions:
            # A backend that fails must not hide the kernels of other backends.
            with contextlib.suppress(StepperError, OSError):
                await session.kernel_manager.find_or_attach()
        while True:
            for session in list(self.workspace.sessions.values()):
                background_runs.process_background_calls(session, self.started_at)
                if session.requests.pop_replay_request():
                    self._start_replay(session)
                # In a separate task, so that a waiting session does not delay others.
                task = tasks.get(session.name)
                if task is None or task.done():
                    work = self._maintain_session(session)
                    tasks[session.name] = asyncio.create_task(work)
            self.status_lines.update()
            self.running_cell_files.update()
            await asyncio.sleep(MAINTENANCE_SECONDS)

    async def _maintain_session(self, session: Session) -> None:
        """Maintain a session, and log errors instead of raising them."""
        try:
            await session.do_maintenance()
        except StepperError as error:
            log.info("%s: %s", session.name, error)
        except Exception:
            log.exception("the maintenance of %s failed", session.name)

    def _start_replay(self, session: Session) -> None:
        """Start the replay of a complete notebook in a task."""
        task = asyncio.create_task(self._replay_notebook(session))
        self.replay_tasks.add(task)
        task.add_done_callback(self.replay_tasks.discard)

    async def _replay_notebook(self, session: Session) -> None:
        """Replay a complete notebook. The next prompt delivers the result."""
        from stepper.daemon.replay import replay_workspace

        try:
            await replay_workspace.verify_in_background(self.workspace, session)
        except Exception:
            log.exception("the replay of %s failed", session.name)

    def _schedule_refresh(self) -> None:
        """Schedule an update of the status lines if any shows a running cell.

        Sessions call this after each change of their state.
        """
        has_lines = self.running_cell_files.has_lines or self.status_lines.has_running
        if self.is_refresh_scheduled or not has_lines:
            return
        self.is_refresh_scheduled = True
        asyncio.get_running_loop().call_later(REFRESH_SECONDS, self._refresh)

    def _refresh(self) -> None:
        """Update the lines about running cells, without measuring kernel memory."""
        self.is_refresh_scheduled = False
        if self.exit_requested.is_set():
            return
        self.status_lines.update(measure_memory=False)
        self.running_cell_files.update()

    async def _watch_usage(self) -> None:
        """Shut down idle kernels, and make the daemon exit if it is not used.

        The daemon also exits if clients can't reach its socket.
        """
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            now = time.monotonic()
            # A cleaner of /tmp may delete the socket, and clients use another socket if
            # /tmp/stepper-UID now has another owner.
            client_socket = Paths(self.paths.project).socket
            is_reachable = os.path.exists(self.paths.socket)
            if not is_reachable or client_socket != self.paths.socket:
                self.exit_requested.set()
            with contextlib.suppress(StepperError, OSError):
                await self._shut_down_idle_kernels(now)
            sessions = self.workspace.sessions.values()
            has_kernels = any(session.kernel_manager.kernel for session in sessions)
            if has_kernels or self.request_count:
                self.last_used = now
            elif now - self.last_used > IDLE_SECONDS:
                self.exit_requested.set()

    async def _shut_down_idle_kernels(self, now: float) -> None:
        """Shut down kernels that exceed `kernel_idle_hours` or `max_kernels`.

        If there are too many idle kernels, the most recently used ones keep running.
        """
        limits = self.workspace.config.load_limits()
        idle_sessions = []
        for session in self.workspace.sessions.values():
            if session.is_idle:
                idle_sessions.append((session.requests.last_used, session))
        idle_sessions.sort(key=itemgetter(0), reverse=True)
        for rank, (last_used, session) in enumerate(idle_sessions):
            reason = _explain_idle_shutdown(limits, now - last_used, rank)
            # Code may have run in this kernel while other kernels were shut down.
            if not reason or not session.is_idle:
                continue
            log.info("%s: %s", session.name, reason)
            try:
                await notebook_commands.shut_down_idle_kernel(
                    session, last_used, reason
                )
            except (StepperError, OSError) as error:
                log.warning("%s: the kernel was not shut down: %s", session.name, error)

    async def _handle_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Handle the request of a client that connected."""
        connection = Connection(reader, writer)
        try:
            connection.check_peer()
            client_request = await connection.receive_request()
            if client_request.command == LOOK:
                await self._respond(connection, client_request)
                return
            self.last_used = time.monotonic()
            self.request_count += 1
            try:
                await self._respond(connection, client_request)
            finally:
                self.request_count -= 1
        except asyncio.TimeoutError:
            log.info(
                "rejected a client: its request was not complete after %g s",
                REQUEST_SECONDS,
            )
        except (
            wire_format.FrameError,
            asyncio.IncompleteReadError,
            ConnectionError,
            PermissionError,
        ) as error:
            log.info("rejected a client: %s", error)
        except asyncio.CancelledError:
            # Not raised again: asyncio would log an error for each client.
            log.info("disconnected a client because the daemon is exiting")
        finally:
            connection.close()
            loop = asyncio.get_running_loop()
            loop.call_later(TRIM_SECONDS, self._trim_memory)

    def _trim_memory(self) -> None:
        """Release freed memory to the system, unless a request is in progress."""
        if self.request_count <= len(self.waiting_hooks):
            self.memory.trim_if_grown()

    async def _respond(
        self, connection: Connection, client_request: ClientRequest
    ) -> None:
        """Process a request, and send the response.

        If the client has another version, send it the daemon's version instead. Then
        the daemon exits, unless the client is a viewer. The request `shutdown` is
        processed for clients of all versions.
        """
        command = client_request.command
        own_version = __version__.encode()
        if client_request.version != own_version and command != b"shutdown":
            stale = Response(wire_format.STALE, own_version)
            await connection.send_response(stale)
            if command != LOOK:
                self.exit_requested.set()
            return
        connection.send_heartbeat()
        connection.watch_client()
        request = self._create_request(connection, client_request)
        command_name = command.decode("utf-8", "replace")
        work = asyncio.create_task(
            self._process(command_name, client_request.payload, request)
        )
        if command.startswith(WAITING_HOOKS):
            self.waiting_hooks.add(work)
            work.add_done_callback(self.waiting_hooks.discard)
        await self._wait_for_response(connection, work, request.caller, command)
        connection.stop_watching()
        await connection.send_response(work.result())

    async def _wait_for_response(
        self,
        connection: Connection,
        work: asyncio.Task[Response],
        caller: Caller,
        command: bytes,
    ) -> None:
        """Wait until `work` is done, and send heartbeats to the client meanwhile.

        If the client disconnects, its runs are cancelled.
        """
        while not work.done():
            await connection.wait(work, BEAT_SECONDS)
            was_connected = not caller.disconnected.is_set()
            if connection.is_client_disconnected and was_connected:
                caller.disconnected.set()
                log.info("the client of %r disconnected", command[:100])
                for session in list(self.workspace.sessions.values()):
                    await session.cancel_for_caller(caller)
            elif not work.done():
                # A client that closed only its half of the connection still waits for
                # the response.
                connection.send_heartbeat()

    def _create_request(
        self, connection: Connection, client_request: ClientRequest
    ) -> Request:
        """Return a request with its caller, and record the caller's environment.

        The environment of a viewer is not recorded.
        """
        environ = wire_format.unpack_environ(client_request.environ)
        interface = "cli"
        if client_request.command.startswith(b"hook "):
            interface = "hook"
        elif environ.get("STEPPER_FACE") == "mcp":
            interface = "mcp"
        if client_request.command != LOOK:
            # No kernel may be started with a viewer's environment.
            self.workspace.environ = environ
            self.workspace.update_program(environ, interface)
        caller = Caller(
            environ,
            interface=interface,
            deliver=connection.deliver,
            send_handover=connection.send_handover,
            is_alive=partial(_is_client_running, environ),
        )
        return Request(
            self.workspace,
            caller,
            cwd=os.fsdecode(client_request.cwd),
            progress=connection.send_progress,
            daemon_info=self.daemon_info,
            shut_down=self.exit_requested.set,
        )

    async def _process(
        self, command: str, payload: bytes, request: Request
    ) -> Response:
        """Execute a request and return the response. Errors become error responses."""
        try:
            kind, _, event = command.partition(" ")
            if kind == "hook":
                output = await handle_event(
                    self.workspace, event, payload, request.caller
                )
                return Response(wire_format.OK, output)
            body = await handle_command(command, payload, request)
            self.workspace.update_markers()
            return Response(wire_format.OK, body)
        except StepperError as error:
            reported_error = error
        except Exception as error:
            log.exception("%s failed", command)
            message = f"internal error in stepper: {type(error).__name__}: {error}"
            reported_error = DaemonError(message, f"see {self.paths.log}")
        fields = {
            "message": reported_error.message,
            "hint": reported_error.hint,
            "exit_code": reported_error.exit_code,
        }
        return Response(wire_format.FAILED, json.dumps(fields).encode())


def _explain_idle_shutdown(limits: Limits, idle_seconds: float, rank: int) -> str:
    """Return the reason for shutting down an idle kernel.

    Return an empty string if the kernel keeps running. `rank` is the number of idle
    kernels that were used more recently.
    """
    hours = limits.kernel_idle_hours
    if idle_seconds > hours * SECONDS_PER_HOUR:
        unit = "hour" if hours == 1 else "hours"
        return (
            f"the kernel was shut down because it was idle for {hours:g} {unit}"
            " (kernel_idle_hours)"
        )
    if rank >= limits.max_kernels:
        other_kernels = format_count(rank, "idle kernel")
        verb = "was" if rank == 1 else "were"
        return (
            f"the kernel was shut down because {other_kernels} {verb} used more"
            f" recently and max_kernels is {limits.max_kernels}"
        )
    return ""


def _is_client_running(environ: Mapping[str, str]) -> bool:
    """Return whether the Claude Code process that started a hook is still running.

    `environ` is the environment of the hook. Return True if it contains no process ID.
    """
    pid = environ.get(background_runs.CLIENT_PID, "")
    return not pid.isdecimal() or psutil.pid_exists(int(pid))


def main() -> None:
    """Run the daemon for the project folder in `sys.argv[1]`.

    Exit with an error if another daemon of the project does not exit in time.
    """
    paths = Paths(sys.argv[1])
    paths.create_home_folder()
    lock = secure_files.open_private(paths.daemon_lock, os.O_CREAT | os.O_RDWR)
    # A daemon of another version keeps its lock until it has answered its last request.
    # That request may be running a cell.
    if not acquire_lock(lock, LOCK_SECONDS):
        sys.exit(
            "an earlier daemon has not exited yet: it may be running a cell. Try again"
            " when the cell has finished. Or run `stepper shutdown`, which stops the"
            " daemon and shuts down the kernels (their variables are lost)"
        )
    daemon_log.configure_logging(paths.log)
    asyncio.run(Daemon(paths).serve())
