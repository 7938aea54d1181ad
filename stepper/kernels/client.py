"""A live kernel, wherever it runs: what it is asked to run, how a daemon takes over another's."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any

from stepper.common.errors import (
    IpykernelMissingError,
    KernelError,
    KernelStartError,
    KernelUnreachableError,
)
from stepper.kernels import helper_loader
from stepper.kernels.backend_protocols import GRACE_SECONDS, PATIENCE_SECONDS, Inbox
from stepper.kernels.client_base import Connection
from stepper.kernels.execution import CUT, NO_DAEMON, Before, LineCutError, Running
from stepper.policy.kernel_namespace import UNKNOWN_NAMESPACE, Namespace
from stepper.policy.model import Death, Limits, Outcome
from stepper.session.protocols import Execution

log = logging.getLogger("stepper")
AGAIN_SECONDS = 2.0  # for which the line to a kernel found again may be down at first


class LiveKernel(Connection):
    """A live kernel: what a session asks of it."""

    # by which request, and when, it was asked whether another client's execution is
    # over
    asked = "", 0.0

    async def connect(self, seconds: float) -> None:
        """Open the channels, wait for an answer on both shell and iopub, install the helper; raise KernelError."""
        await self._reach(seconds)
        reached = time.monotonic()
        await self._set_up(seconds)
        if self.helped:  # another language's kernel has none
            log.info(
                "kernel connection: helper loaded after %.2f s",
                time.monotonic() - reached,
            )

    async def _reach(self, seconds: float) -> None:
        self.channels.open()
        began = time.monotonic()
        deadline = began + seconds
        replied = heard = False
        while not (replied and heard):
            self.channels.send("kernel_info_request", {})
            until = time.monotonic() + 0.2
            while time.monotonic() < until and not (replied and heard):
                replied = replied or await self._answers(self.channels.shell)
                # iopub: once a status came through, the subscription stands and nothing
                # will be missed
                heard = await self._answers(self.channels.iopub) or heard
            death = await self.check_death()
            if death is not None:
                hint = self.process.mends(death)
                error = IpykernelMissingError if hint else KernelStartError
                said = death.stderr or "it wrote nothing"
                raise error(
                    f"the kernel died at start ({death.reason}): {said.splitlines()[-1]}\n{said}",
                    hint,
                )
            if time.monotonic() > deadline:
                raise KernelStartError(
                    f"the kernel did not answer within {seconds:.0f} s: {self.unreachable_reason or self.process.log}"
                )
        log.info(
            "kernel connection: shell and iopub replied after %.2f s",
            time.monotonic() - began,
        )
        self.external_executions.forget_before(began)

    async def _answers(self, inbox: Inbox) -> bool:
        """Whether a message comes on that channel within 10 ms; what a thread says meanwhile is taken."""
        messages = [*inbox.messages()] if await inbox.ready(0.01) else []
        for message in messages:
            if message["msg_type"] == "kernel_info_reply" and isinstance(
                message["content"], dict
            ):
                self._is(message["content"])
            self.heard(message)
        return bool(messages)

    def _is(self, content: dict[str, Any]) -> None:
        """Take note of what the kernel says that it is."""
        self.helped, about = (
            content.get("implementation") == "ipython",
            content.get("language_info"),
        )
        self.language_info = about if isinstance(about, dict) else {}
        self.language = str(self.language_info.get("name") or "").lower()

    async def _set_up(self, seconds: float) -> None:
        """Install the helper where it is not there; other languages' kernels, and other Pythons', do without."""
        if not self.helped:
            return
        done = await self._housekeeping(
            helper_loader.INSTALL,
            seconds,
            helper_loader.build_metadata(self.parts, self.process.stack),
        )
        if done.outcome is not Outcome.OK:
            how = done.death.reason if done.death else done.outcome
            why = f"{done.fault.ename}: {done.fault.evalue}" if done.fault else how
            raise KernelError(f"stepper's helper can't be installed: {why}")

    async def execute(
        self,
        code: str,
        timeout: float,
        limits: Limits,
        request: str = "",
        scratch: bool = False,
        criterion: str = "",
        wake: str = "",
    ) -> Execution:
        """Run code to its end, its deadline, an interrupt, the memory limit or the kernel's death."""
        self.widgets.limits = limits
        running = Running(self, timeout, limits, wake)
        self.partial_output = running.area
        try:
            given = {"stepper_modules": limits.local_modules}
            given.update({"stepper_criterion": criterion} if criterion else {})
            while True:
                try:
                    done = await self._run(
                        running, code, history=not scratch, request=request, given=given
                    )
                    if not running.aborted:
                        done.language_info = self.language_info
                        return done
                    # It stood behind another client's that failed, which takes all with
                    # it that waits.
                    running = Running(self, timeout, limits, wake)
                    self.partial_output = running.area
                except LineCutError:
                    left = running.deadline - time.monotonic()
                    if (
                        found := await self.await_earlier_request(
                            running.msg_id, left, limits, wake, running
                        )
                    ) is not None:
                        found.reconnected = True
                        return found
                    running = Running(self, left, limits, wake)  # it never came there
                    self.partial_output = running.area
        finally:
            self.partial_output = None
            self.process.rest()

    async def _run(self, running: Running, code: str, **how: Any) -> Execution:
        self.is_busy, self.interrupted = True, ""
        try:
            return await running.run(code, **how)
        except (LineCutError, KernelUnreachableError):
            self.owed = self.owed or self.interrupted
            raise
        finally:
            self.is_busy = False

    async def _housekeeping(
        self, code: str, seconds: float, given: Mapping[str, Any] = {}
    ) -> Execution:
        """Run silent code of stepper's own, with a deadline; raise KernelUnreachableError."""
        await self.reached()
        while True:
            with contextlib.suppress(LineCutError):
                return await self._run(
                    Running(self, seconds), code, silent=True, given=given
                )

    def receive_pending(self) -> None:
        """Take what the kernel published while no cell ran."""
        if not self.is_busy and self.process.ended is None:
            self.channels.open()
            for message in self.channels.iopub.messages():
                self.heard(message)
            self._ask_others()
            self.sync_widgets()

    def _ask_others(self) -> None:
        """See whether another client's execution is over whose end was lost: what was asked later is answered then."""
        asked, at = self.asked
        if not self.external_executions.running_since:
            self.asked = "", 0.0
        elif not asked:
            self.asked = self.channels.send("kernel_info_request", {}), time.monotonic()
        elif any(
            message["parent_header"].get("msg_id") == asked
            for message in self.channels.shell.messages()
        ):
            self.asked = "", 0.0
            self.external_executions.forget_before(at)

    async def take_over(self) -> Death | None:
        """Take over a kernel found again, interrupting what runs in it; return its end where it gives no answer.

        Raise KernelUnreachableError where nothing reaches it, KernelError where what runs is known to be another client's.
        """
        for _ in range(2):
            # it may want a token, which whoever asks now has brought
            await self.reached(AGAIN_SECONDS)
            try:
                await self.connect(GRACE_SECONDS)
                return None
            except KernelUnreachableError:
                raise
            except KernelError as error:
                death, why = await self.check_death(), error.message
            if death is None and self.unreachable_reason:
                raise KernelUnreachableError(self.unreachable_reason)
            if death is None and self.external_executions.running_since:
                # which is not ours to interrupt
                raise KernelError("another client's execution runs in it")
            await self.process.interrupt()
        with contextlib.suppress(KernelError):  # it is let go
            await self.shutdown()
        return death or Death(f"it did not answer, not even to an interrupt: {why}")

    async def await_earlier_request(
        self,
        request: str,
        seconds: float,
        limits: Limits,
        wake: str = "",
        cut: Running | None = None,
    ) -> Execution | None:
        """Return what came of a request whose daemon is gone, when it is over; None where it never began.

        The line of one that is `cut` was, here: what was heard of it is all of it where the kernel published no more.

        What it published is in the helper's record; what comes meanwhile is for those who look on, and all that is
        known of it where there is no helper. Raise KernelError.
        """
        await self.reached(PATIENCE_SECONDS + (max(0.0, seconds) if cut else 0.0))
        self.channels.open()
        owed, self.owed = self.owed, ""
        seconds = 0.0 if owed else max(0.0, seconds)
        running, area = (
            Running(self, seconds, limits),
            (cut or Running(self, 0.0, limits, wake)).area,
        )
        running.before = before = Before(
            request, area, self, cut, cut is not None and cut.idle
        )
        self.partial_output = area
        try:
            ended = await self._after(running)
        except KernelUnreachableError:
            self.owed = owed or self.owed
            raise
        finally:
            self.partial_output = None
        if ended.death is not None:
            ended.outputs = area.outputs()  # the record is gone
            return ended
        why = self.interrupted and (owed or self.interrupted)
        while True:
            try:
                await self._reach(GRACE_SECONDS)
                break
            except KernelError:
                if not self.unreachable_reason or await self.check_death() is not None:
                    raise
                await self.reached()
        whole = cut if cut is not None and before.over and cut.reply else None
        if not self.helped:
            self.interrupted = why
            return (
                await whole.ended()
                if whole
                else await Running(self, 0.0, limits).heard(before)
            )
        done = await self._housekeeping(
            helper_loader.PUBLISH_RECORD.format(request), GRACE_SECONDS
        )
        if done.outcome is not Outcome.OK:
            raise KernelError(f"it did not tell what came of the run: {done.outcome}")
        told = done.diagnosis_data
        await self._set_up(GRACE_SECONDS)
        await self.fetch_namespace()  # what lasts, which the record leaves out
        if not told.get("record") and not (cut and self.channels.came(request)):
            return None
        self.interrupted, self.widgets.limits = why, limits
        if not told.get("record"):  # another client's has taken its place
            return await (
                whole.ended() if whole else Running(self, 0.0, limits).heard(before)
            )
        if whole and self.channels.came(request) == told["record"]["count"]:
            return await whole.ended()
        return await running.again(request, told, CUT if cut else NO_DAEMON)

    async def _after(self, running: Running) -> Execution:
        """Return once the kernel serves a request behind what runs in it; its line may be cut meanwhile."""
        while True:
            try:
                return await self._run(running, "", silent=True)
            except LineCutError:
                before, running = (
                    running.before,
                    Running(self, running.deadline - time.monotonic(), running.limits),
                )
                running.before = before

    async def fetch_missed_messages(self, request: str) -> list[dict[str, Any]]:
        """Return what a request that is over published while no daemon was there, as far as the kernel remembers.

        Also what a former daemon may have put on its cell; not what was heard here.
        """
        if not self.helped:
            return []
        told = await self._housekeeping(
            helper_loader.PUBLISH_RECORD.format(request), GRACE_SECONDS
        )
        messages = [*helper_loader.iterate_recorded_messages(told.diagnosis_data)]
        ends = [
            n
            for n, message in enumerate(messages)
            if message["content"].get("execution_state") == "idle"
        ]
        after = messages[ends[0] + 1 :] if ends else []
        return [
            message
            for message in after
            if message["header"].get("msg_id") not in self.heard_here
        ]

    async def fetch_namespace(self) -> Namespace:
        """Return the namespace in short, asked of the helper; UNKNOWN where it does not tell."""
        # whoever asked first is not held up, nor waited for
        if not self.helped or self.external_executions.running_since:
            return UNKNOWN_NAMESPACE
        return (
            await self._housekeeping(helper_loader.PUBLISH_FACTS, GRACE_SECONDS)
        ).namespace
