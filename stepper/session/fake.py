"""A kernel without a process, for tests of what a session does: a cell runs in a thread of this process.

Besides Python's own names its cells find `display` and `update_display`, `die(how)`, `late(text)` (said once the cell
is over) and `exit`. What a cell would do to its process it does to this one: `os.kill` ends the tests. Nothing is
bounded, there are no widgets, and only `print` writes to the notebook.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import ctypes
import inspect
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from stepper.policy.model import Death, Limits, Outcome
from stepper.policy.namespace import UNKNOWN, Namespace, Variable
from stepper.session.fakecell import Died, Running
from stepper.session.ports import About, Execution, KernelPlace, Models

TICK_SECONDS, GRACE_SECONDS = 0.001, 0.5
EXIT = "ended by exit() or quit()"
INTERRUPTED = {"deadline": Outcome.TIMEOUT, "memory": Outcome.MEMORY}


class FakeKernel:
    """A kernel of this process."""

    def __init__(self, place: KernelPlace) -> None:
        self.id, self.place = uuid.uuid4().hex, place
        self.busy = False
        self.interrupted = ""
        self.hears: Callable[[dict[str, Any], bool], bool] = lambda message, late: False
        self.ended: Death | None = None
        self.count, self.runs = 0, dict[str, Running]()
        self.now: Running | None = None
        self.listens = True  # a daemon is there
        self.forget: Callable[[], object] = bool  # what is on record of it
        self.waiting: list[dict[str, Any]] = []  # what came besides runs: to be listened to
        self.kept: list[dict[str, Any]] = []  # … while no daemon was there
        own = {"print": self._print, "exit": self._exit, "quit": self._exit, "input": _input}
        self.names: dict[str, Any] = {"__name__": "__main__", "__builtins__": {
            **vars(builtins), **own, "display": self._display, "update_display": self._update,
            "die": _die, "late": self._late}}  # fmt: skip

    def _print(self, *values: object, sep: str = " ", end: str = "\n", file: Any = None, flush: bool = False) -> None:
        assert self.now is not None  # it is a cell that calls these
        self.now.write("stderr" if file is sys.stderr else "stdout", sep.join(map(str, values)) + end)

    def _display(self, data: dict[str, Any], raw: bool = True, display_id: str = "") -> None:
        assert self.now is not None
        self.now.show({"data": data, "metadata": {}}, display_id)
        self._shown("display_data", data, display_id)

    def _update(self, data: dict[str, Any], raw: bool = True, display_id: str = "") -> None:
        assert self.now is not None
        for place in self.now.displays.get(display_id, []):
            self.now.outputs[place]["data"] = data
        self._shown("update_display_data", data, display_id)

    def _shown(self, kind: str, data: dict[str, Any], mark: str) -> None:
        if mark and self.now is not None:
            content = {"data": data, "metadata": {}, "transient": {"display_id": mark}}
            self.hears(_message(kind, self.now.request, content), False)

    def _late(self, text: str) -> None:
        assert self.now is not None
        self.now.unsaid.append(text)

    def _exit(self) -> None:
        raise Died(EXIT)

    def about(self) -> About:
        """Return the interpreter; there is no process."""
        return About(self.place.python)

    def memory(self) -> int:
        """Return none."""
        return 0

    def listen(self) -> None:
        """Take what was said while no cell ran."""
        self.listens = True
        said, self.waiting = self.waiting, []
        for message in said:
            self.hears(message, True)

    def models(self) -> Models | None:
        """Return None: there are no widgets."""

    async def execute(
        self, code: str, timeout: float, limits: Limits, request: str = "", scratch: bool = False
    ) -> Execution:
        """Run code to its end, its deadline in seconds, an interrupt or its death."""
        self.count += not scratch
        run = Running(request or uuid.uuid4().hex, self.count, code)
        self.now = self.runs[run.request] = run
        self.interrupted, self.listens = "", True
        threading.Thread(target=self._run, args=(run,), daemon=True).start()
        return await self._until_over(run, timeout)

    async def adopt(self) -> Death | None:
        """Take over a kernel found again: what runs in it is interrupted."""
        if self.now is not None and not self.now.over.is_set():
            _raise_in(self.now, KeyboardInterrupt)
            await self._until_over(self.now, GRACE_SECONDS)
        self.listens = True
        return self.ended

    async def recall(self, request: str, seconds: float, limits: Limits) -> Execution | None:
        """Return what came of a request whose daemon is gone, when it is over; None where it never began."""
        run = self.runs.get(request)
        return None if run is None else await self._until_over(run, max(0.0, seconds))

    async def missed(self, request: str) -> list[dict[str, Any]]:
        """Return what a request that is over said while no daemon was there."""
        return [message for message in self.kept if message["parent_header"]["msg_id"] == request]

    async def namespace(self) -> Namespace:
        """Return the namespace in short."""
        modules, functions, variables = dict[str, str](), dict[str, str](), dict[str, Variable]()
        classes = []
        own = {name: value for name, value in self.names.items() if not name.startswith("__")}
        for name, value in own.items():
            if isinstance(value, types.ModuleType):
                modules[name] = value.__name__
            elif isinstance(value, types.FunctionType):
                functions[name] = str(inspect.signature(value))
            elif isinstance(value, type):
                classes.append(name)
            else:
                length = len(value) if hasattr(value, "__len__") else None
                variables[name] = Variable(type(value).__name__, length)
        return Namespace(modules, functions, tuple(classes), variables, (*own, *self.names["__builtins__"]))

    async def interrupt(self, reason: str) -> None:
        """Interrupt what runs now."""
        if self.busy and self.now is not None:
            self.interrupted = self.interrupted or reason
            _raise_in(self.now, KeyboardInterrupt)

    async def death(self) -> Death | None:
        """Return how the kernel ended, or None while it lives."""
        return self.ended

    async def shutdown(self) -> None:
        """End the kernel."""
        self.ends("SIGKILL")
        self.forget()

    def detach(self) -> None:
        """Leave the kernel to the next daemon."""
        self.busy = self.listens = False
        self.kept, self.waiting = self.kept + self.waiting, []

    def ends(self, how: str) -> None:
        """Die, as a kernel that is killed from outside."""
        self.ended = self.ended or Death(how)
        if self.now is not None and not self.now.over.is_set():
            _raise_in(self.now, Died)

    def _run(self, run: Running) -> None:
        """Run a cell to its end, in a thread of its own."""
        try:
            run.thread = threading.get_ident()
            try:
                self._execute(run)
            except Died as died:
                run.died = str(died) or "SIGKILL"
            except BaseException as error:  # noqa: BLE001  # whatever a cell raises
                run.fails(error)
            run.thread = None
            for text in run.unsaid:
                message = _message("stream", run.request, {"name": "stdout", "text": text})
                (self.waiting if self.listens else self.kept).append(message)
        finally:  # an interrupt may come that late
            run.over.set()

    def _execute(self, run: Running) -> None:
        tree = ast.parse(run.code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"<cell {run.number}>", "exec"), self.names)  # noqa: S102
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"<cell {run.number}>", "eval"), self.names)  # noqa: S307
            if value is not None:
                run.outputs.append({"output_type": "execute_result", "execution_count": run.number,
                                    "data": {"text/plain": repr(value)}, "metadata": {}})  # fmt: skip

    async def _until_over(self, run: Running, seconds: float) -> Execution:
        until, killed = time.monotonic() + seconds, float("inf")
        self.busy = True
        try:
            while not run.over.is_set():
                now = time.monotonic()
                if now > until and not self.interrupted:
                    run.sample()
                    await self.interrupt("deadline")
                killed = min(killed, now + GRACE_SECONDS) if self.interrupted else killed
                if now > killed or self.ended is not None:
                    run.died = self.ended.how if self.ended else "killed by stepper: the interrupt had no effect"
                    break
                await asyncio.sleep(TICK_SECONDS)
        finally:
            self.busy = False
        if run.died:
            self.ended = self.ended or Death(run.died, cause="SystemExit" if run.died == EXIT else "")
        outcome = Outcome.KERNEL_DIED if run.died else run.outcome
        outcome = INTERRUPTED.get(self.interrupted, Outcome.CANCELLED) if self.interrupted else outcome
        known = UNKNOWN if run.died else await self.namespace()
        return Execution(outcome, run.outputs, run.number, fault=run.fault, death=self.ended, namespace=known,
                         displays=run.displays)  # fmt: skip


class FakeKernels:
    """Starts fake kernels. What is in `left` outlives a daemon: a record's name → its kernel."""

    def __init__(self, left: dict[str, FakeKernel], record: str) -> None:
        self.left, self.record = left, record

    async def start(self, place: KernelPlace) -> FakeKernel:
        """Start a kernel."""
        self.left[self.record] = kernel = FakeKernel(place)
        kernel.forget = lambda: self.left.pop(self.record, None)
        return kernel

    async def attach(self) -> FakeKernel | Death | None:
        """Return the kernel that a former daemon left, or how it ended; None where there was none."""
        kernel = self.left.get(self.record)
        if kernel is not None and kernel.ended:
            kernel.forget()
        return kernel and (kernel.ended or kernel)


def _message(kind: str, request: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return {"msg_type": kind, "header": {"msg_id": uuid.uuid4().hex}, "parent_header": {"msg_id": request},
            "content": dict(content)}  # fmt: skip


def _raise_in(run: Running, kind: type[BaseException]) -> None:
    """Raise an exception in the thread of a cell, where Python runs in it."""
    if run.thread is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(run.thread), ctypes.py_object(kind))


def _die(how: str = "SIGKILL") -> None:
    raise Died(how)


def _input(prompt: str = "") -> str:
    raise NotImplementedError("raw_input was called, but this frontend does not support input requests.")
