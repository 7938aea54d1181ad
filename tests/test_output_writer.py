"""The writer of late outputs and of the outputs so far of a running cell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stepper.policy.journal_events import OutputsPending, RunStarted
from stepper.policy.model import Limits
from stepper.policy.notebook_state import State
from stepper.session.session_state.output_writer import OutputWriter


class CountingOutput:
    """The output so far of a running cell; counts how often it is built."""

    change_count = 1
    build_count = 0

    def get_outputs(self) -> list[dict[str, Any]]:
        self.build_count += 1
        return []


@pytest.mark.parametrize("is_pending", [False, True])
def test_outputs_so_far_are_built_only_if_they_can_be_written(is_pending: bool) -> None:
    state = State()
    state.running = RunStarted(run=2, key="b", at="", cell_id="b", source="2")
    if is_pending:
        state.pending_outputs["a"] = cast(OutputsPending, SimpleNamespace())
    writes = []

    def write(widgets: object, partial_outputs: object) -> list[Any]:
        writes.append(partial_outputs)
        return []

    late = SimpleNamespace(collect_pending=lambda: False, write=write)
    journal = SimpleNamespace(state=state)
    writer = OutputWriter(
        cast(Any, None), cast(Any, late), cast(Any, journal), cast(Any, None), Limits
    )
    output = CountingOutput()
    writer.write_late(None, cast(Any, output))
    expected_count = 0 if is_pending else 1
    assert output.build_count == expected_count
    assert len(writes) == expected_count
