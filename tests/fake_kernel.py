"""A kernel without a process, for tests: cells run in a thread.

Cells can call `display`, `update_display`, `die(how)`, `late(text)` and `exit`. There
are no widgets and no limits.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import ctypes
import inspect
import re
import sys
import threading
import time
import traceback
import types
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepper.policy.execution_result import Execution
from stepper.policy.model import Death, Fault, Frame, Limits, Outcome
from stepper.policy.namespace_model import UNKNOWN_NAMESPACE, Namespace, Variable
from stepper.policy.undo_model import RestoreRequest, UndoFacts, UndoRequest
from stepper.session.protocols import (
    ExternalExecution,
    KernelDescription,
    LaunchConfig,
    QueueStatus,
)
from tests.fake_undo import FakeUndo

TICK_SECONDS, GRACE_SECONDS = 0.001, 2.0
EXIT = "ended by exit() or quit()"
INTERRUPTED = {"deadline": Outcome.TIMEOUT, "memory": Outcome.MEMORY}
ATTRIBUTES = ("errno", "code", "status", "name", "filename", "lineno")


class Died(BaseException):
    """Raised when a cell kills its kernel."""


@dataclass
class FakeRun:
    """A running or finished cell; it outlives the event loop of a daemon."""

    request: str
    number: int
    outputs: list[dict[str, Any]] = field(default_factory=list)
    displays: dict[str, list[int]] = field(default_factory=dict)
    late_texts: list[str] = field(default_factory=list)  # output after the run
    outcome: Outcome = Outcome.OK
    fault: Fault | None = None
    died: str = ""
    keeps_image: bool = False  # the state before it
    is_scratch: bool = False
    over: threading.Event = field(default_factory=threading.Event)
    thread: int | None = None

    def throw(self, kind: type[BaseException]) -> None:
        """Raise an exception in the thread of the cell."""
        if self.thread is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.thread), ctypes.py_object(kind)
            )

    def sample(self) -> None:
        """Record the line that the cell executes."""
        frames = _select_cell_frames(
            traceback.extract_stack(sys._current_frames().get(self.thread or 0))
        )
        self.fault = Fault("", "", (), frames[0].line, frames) if frames else None

    def fails(self, error: BaseException) -> None:
        """Record the exception that the cell raised."""
        name, frames = (
            type(error).__name__,
            _select_cell_frames(traceback.extract_tb(error.__traceback__)),
        )
        line = (
            error.lineno
            if isinstance(error, SyntaxError)
            else frames[0].line
            if frames
            else None
        )
        classes = tuple(
            f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
            for kind in type(error).__mro__
        )
        attributes = {
            name: value
            for name in ATTRIBUTES
            if isinstance(value := getattr(error, name, None), int | str)
        }
        message = "".join(traceback.format_exception(error))
        self.outcome, self.fault = (
            Outcome.ERROR,
            Fault(name, str(error), classes, line, frames, attributes, message),
        )
        raised = {
            "ename": name,
            "evalue": str(error),
            "traceback": message.splitlines(),
        }
        self.outputs.append({"output_type": "error", **raised})


class FakePartialOutput:
    """The output so far of a cell."""

    change_count = 0  # outputs are written only after the run

    def __init__(
        self, run: FakeRun, wake: str = "", before: Sequence[dict[str, Any]] = ()
    ) -> None:
        self.run, self.wake = run, wake
        self.skipped = [len(output.get("text", "")) for output in before]

    @property
    def matched_line(self) -> str:
        lines = (
            re.split("[\r\n]+", self._text("stdout") + "\n" + self._text("stderr"))
            if self.wake
            else []
        )
        return next((line for line in lines if re.search(self.wake, line)), "")

    def get_outputs(self) -> list[dict[str, Any]]:
        skip = dict(enumerate(self.skipped))
        return [
            {**item, "text": item["text"][skip.get(index, 0) :]}
            if "text" in item
            else item
            for index, item in enumerate(self.run.outputs)
        ]

    def get_last_line(self) -> str:
        return (self._text("stdout").splitlines() or [""])[-1]

    def get_last_lines(self) -> list[str]:
        return self._text("stdout").splitlines()[-20:]

    def _text(self, name: str) -> str:
        return "".join(
            output["text"]
            for output in self.get_outputs()
            if output.get("name") == name
        )


@dataclass
class FakeExternalExecutions:
    """Executions of other clients, as a test sets them."""

    running_since: float = 0.0
    on_finished: Callable[[ExternalExecution], None] = lambda result: None

    def forget_before(self, before: float) -> None:
        self.running_since = 0.0


class FakeKernel:
    """An implementation of `protocols.Kernel` without a process."""

    def __init__(self, launch_config: LaunchConfig) -> None:
        self.partial_output: FakePartialOutput | None = None
        self.id, self.language, self.launch_config = (
            uuid.uuid4().hex,
            "python",
            launch_config,
        )
        self.is_busy = False
        self.has_helper = True
        self.loses_undo_facts = False  # as if their message were lost
        self.interrupted = self.unreachable_reason = ""
        self.on_display: Callable[[dict[str, Any]], None] = lambda message: None
        self.on_late_output: Callable[[dict[str, Any]], bool] = lambda message: False
        self.external_executions = FakeExternalExecutions()
        self.ended: Death | None = None
        self.count, self.runs = 0, dict[str, FakeRun]()
        self.current_run = FakeRun("", 0)  # the cell that runs, or ran last
        self.current_run.over.set()
        self.is_connected = True  # a daemon is connected
        self.forget: Callable[[], object] = bool  # deletes its recorded messages
        # messages that belong to no run
        self.pending_messages: list[dict[str, Any]] = []
        self.recorded_messages: list[
            dict[str, Any]
        ] = []  # … recorded while no daemon was connected
        own = {
            "print": self._print,
            "display": self._display,
            "update_display": self._update,
            "exit": lambda: _die(EXIT),
            "die": _die,
            "late": self._late,
        }
        self.fingerprints: dict[str, tuple[int, str]] = {}
        self.names: dict[str, Any] = {
            "__name__": "__main__",
            "__builtins__": {**vars(builtins), **own},
        }
        self.undoes = FakeUndo(self.names)

    def _print(
        self,
        *values: object,
        sep: str = " ",
        end: str = "\n",
        file: Any = None,
        flush: bool = False,
    ) -> None:
        name, text = (
            "stderr" if file is sys.stderr else "stdout",
            sep.join(map(str, values)) + end,
        )
        outputs = self.current_run.outputs
        if outputs and outputs[-1].get("name") == name:
            outputs[-1]["text"] += text
        else:
            outputs.append({"output_type": "stream", "name": name, "text": text})

    def _display(
        self, data: dict[str, Any], raw: bool = True, display_id: str = ""
    ) -> None:
        outputs = self.current_run.outputs
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
        if display_id:
            self.current_run.displays.setdefault(display_id, []).append(
                len(outputs) - 1
            )
            self._notify_display("display_data", data, display_id)

    def _update(
        self, data: dict[str, Any], raw: bool = True, display_id: str = ""
    ) -> None:
        for index in self.current_run.displays.get(display_id, []):
            self.current_run.outputs[index]["data"] = data
        self._notify_display("update_display_data", data, display_id)

    def _notify_display(self, kind: str, data: dict[str, Any], mark: str) -> None:
        content = {"data": data, "metadata": {}, "transient": {"display_id": mark}}
        self.on_display(_message(kind, self.current_run.request, content))

    def _late(self, text: str) -> None:
        self.current_run.late_texts.append(text)

    def describe(self) -> KernelDescription:
        return KernelDescription(self.launch_config.python)

    def ensure_connection_file(self) -> str:
        return ""

    def measure_memory(self) -> int:
        return 0

    def receive_pending(self) -> None:
        self.is_connected = True
        messages, self.pending_messages = self.pending_messages, []
        for message in messages:
            self.on_late_output(message)

    def take_widget_state(self) -> None:
        return None

    async def execute(
        self,
        code: str,
        timeout: float,
        limits: Limits,
        request: str = "",
        scratch: bool = False,
        criterion: str = "",
        wake: str = "",
        undo: UndoRequest | None = None,
    ) -> Execution:
        if undo is not None:
            self.undoes.start(undo)
        self.count += not scratch
        run = FakeRun(request or uuid.uuid4().hex, self.count)
        run.keeps_image = undo is not None
        run.is_scratch = scratch
        self.current_run = self.runs[run.request] = run
        self.interrupted, self.is_connected = "", True
        threading.Thread(target=self._run, args=(run, code), daemon=True).start()
        response = await self._until_over(run, timeout, FakePartialOutput(run, wake))
        if self.loses_undo_facts:
            response.undo = None
        if criterion and response.outcome is Outcome.OK:
            with contextlib.suppress(Exception):
                value = eval(criterion, self.names)
                response.diagnosis_data["criterion"] = {"holds": value}
        return response

    async def undo(self, request: RestoreRequest) -> UndoFacts | None:
        facts = self.undoes.undo(request)
        return None if self.loses_undo_facts else facts

    async def take_over(self) -> Death | None:
        if not self.current_run.over.is_set():
            self.current_run.throw(KeyboardInterrupt)
            await self._until_over(self.current_run, GRACE_SECONDS)
        self.is_connected = True
        return self.ended

    async def await_earlier_request(
        self, request: str, seconds: float, limits: Limits, wake: str = ""
    ) -> Execution | None:
        run = self.runs.get(request)
        return (
            None
            if run is None
            else await self._until_over(
                run, seconds, FakePartialOutput(run, wake, [*run.outputs])
            )
        )

    async def fetch_missed_messages(self, request: str) -> list[dict[str, Any]]:
        return [
            message
            for message in self.recorded_messages
            if message["parent_header"]["msg_id"] == request
        ]

    async def fetch_namespace(self) -> Namespace:
        modules, functions, variables = (
            dict[str, str](),
            dict[str, str](),
            dict[str, Variable](),
        )
        classes = []
        own = {
            name: value
            for name, value in self.names.items()
            if not name.startswith("__")
        }
        for name, value in own.items():
            if isinstance(value, types.ModuleType):
                modules[name] = value.__name__
            elif isinstance(value, types.FunctionType):
                functions[name] = str(inspect.signature(value))
            elif isinstance(value, type):
                classes.append(name)
            else:
                small = (
                    repr(value) if isinstance(value, int | str | list | dict) else ""
                )
                length = len(value) if hasattr(value, "__len__") else None
                variables[name] = Variable(type(value).__name__, length, print=small)
        fingerprints = {
            name: (id(value), variables[name].print if name in variables else "")
            for name, value in own.items()
        }
        fresh = tuple(
            name
            for name in fingerprints
            if self.fingerprints.get(name) != fingerprints[name]
        )
        self.fingerprints = fingerprints
        names = (*own, *self.names["__builtins__"])
        return Namespace(
            modules, functions, tuple(classes), variables, names, rebound=fresh
        )

    async def interrupt(self, reason: str) -> None:
        if self.is_busy:
            self.interrupted = self.interrupted or reason
            self.current_run.throw(KeyboardInterrupt)

    async def check_death(self) -> Death | None:
        return self.ended

    async def shutdown(self) -> None:
        self.ends("SIGKILL")
        self.forget()

    def detach(self) -> None:
        self.is_busy = self.is_connected = False
        self.recorded_messages, self.pending_messages = (
            self.recorded_messages + self.pending_messages,
            [],
        )

    def ends(self, reason: str) -> None:
        """Die like a kernel that is killed from outside."""
        self.ended = self.ended or Death(reason)
        if not self.current_run.over.is_set():
            self.current_run.throw(Died)

    def _run(self, run: FakeRun, code: str) -> None:
        """Run a cell in a thread of its own."""
        try:
            run.thread = threading.get_ident()
            try:
                self._execute(run, code)
            except Died as died:
                run.died = str(died) or "SIGKILL"
            except BaseException as error:  # noqa: BLE001  # cells can raise anything
                run.fails(error)
            run.thread = None
            for text in run.late_texts:
                message = _message(
                    "stream", run.request, {"name": "stdout", "text": text}
                )
                (
                    self.pending_messages
                    if self.is_connected
                    else self.recorded_messages
                ).append(message)
        finally:  # an interrupt can still arrive here
            run.over.set()

    def _execute(self, run: FakeRun, code: str) -> None:
        tree, name = ast.parse(code), f"<cell {run.number}>"
        last = (
            tree.body.pop()
            if tree.body and isinstance(tree.body[-1], ast.Expr)
            else None
        )
        exec(compile(tree, name, "exec"), self.names)
        if not isinstance(last, ast.Expr):
            return
        value = eval(compile(ast.Expression(last.value), name, "eval"), self.names)
        if value is not None:
            content = {
                "execution_count": run.number,
                "data": {"text/plain": repr(value)},
                "metadata": {},
            }
            run.outputs.append({"output_type": "execute_result", **content})

    async def _until_over(
        self, run: FakeRun, seconds: float, coming: FakePartialOutput | None = None
    ) -> Execution:
        until, killed = time.monotonic() + seconds, float("inf")
        self.is_busy, self.partial_output = True, coming
        try:
            while not run.over.is_set():
                current_run = time.monotonic()
                if current_run > until and not self.interrupted:
                    run.sample()
                    await self.interrupt("deadline")
                killed = (
                    min(killed, current_run + GRACE_SECONDS)
                    if self.interrupted
                    else killed
                )
                if current_run > killed or self.ended is not None:
                    run.died = (
                        self.ended.reason
                        if self.ended
                        else "killed by stepper: the interrupt had no effect"
                    )
                    break
                await asyncio.sleep(TICK_SECONDS)
        finally:
            self.is_busy, self.partial_output = False, None
        if run.died:
            self.ended = self.ended or Death(
                run.died, cause="SystemExit" if run.died == EXIT else ""
            )
        outcome = Outcome.KERNEL_DIED if run.died else run.outcome
        outcome = (
            INTERRUPTED.get(self.interrupted, Outcome.CANCELLED)
            if self.interrupted
            else outcome
        )
        namespace = UNKNOWN_NAMESPACE if run.died else await self.fetch_namespace()
        facts = None
        if run.keeps_image and not run.died:
            run.keeps_image = False
            facts = self.undoes.finish()
        elif run.is_scratch and not run.died:
            facts = self.undoes.finish_other()
        return Execution(
            outcome,
            run.outputs,
            run.number,
            fault=run.fault,
            death=self.ended,
            namespace=namespace,
            displays=run.displays,
            undo=facts,
        )


class FakeKernelLauncher:
    """Starts fake kernels; those in `live_kernels` outlive a daemon."""

    queue_status: QueueStatus | None = None

    def __init__(self, live_kernels: dict[str, FakeKernel], record: str) -> None:
        self.kernels, self.record = live_kernels, record

    async def start(self, launch_config: LaunchConfig) -> FakeKernel:
        self.kernels[self.record] = kernel = FakeKernel(launch_config)
        kernel.forget = lambda: self.kernels.pop(self.record, None)
        return kernel

    async def cancel_request(self) -> None:
        pass

    async def attach(self) -> FakeKernel | Death | None:
        kernel = self.kernels.get(self.record)
        if kernel is not None and kernel.ended:
            kernel.forget()
        return kernel and (kernel.ended or kernel)


def _message(kind: str, request: str, content: dict[str, Any]) -> dict[str, Any]:
    return {
        "msg_type": kind,
        "header": {"msg_id": uuid.uuid4().hex},
        "parent_header": {"msg_id": request},
        "content": content,
    }


def _select_cell_frames(stack: traceback.StackSummary) -> tuple[Frame, ...]:
    """Return the frames of cells."""
    cell_frames = [entry for entry in stack if entry.filename.startswith("<cell ")]
    return tuple(
        Frame(int(entry.filename[6:-1]), entry.lineno or 0, entry.name)
        for entry in cell_frames
    )


def _die(reason: str = "SIGKILL") -> None:
    raise Died(reason)
