"""Random input: the daemon does not crash, hang or grow.

The hook prints JSON or nothing, and messages name the error. `make fuzz`
(HYPOTHESIS_PROFILE=nightly) tries 20,000 examples; CI tries about 500 fixed ones.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st

from stepper import __version__
from stepper.cli import rendering
from stepper.common import wire_format
from stepper.common.errors import NotebookError, UsageError
from stepper.daemon import config
from stepper.daemon.command_handlers import load_arguments
from stepper.install import claude_settings as merging
from stepper.kernels.wake_pattern import WakeWatcher
from stepper.messages import command_messages, quoted_output
from stepper.messages.quoted_output import split_pages
from stepper.notebooks import background_io
from stepper.notebooks.journal_file import JournalFile
from stepper.notebooks.notebook_file import IpynbFile
from stepper.notebooks.notebook_json import load_json
from stepper.policy import (
    cell_directives,
    edit_gate,
    journal_events,
    journal_reducer,
    plan,
)
from stepper.policy.changed_cells import select_runnable
from stepper.policy.commands import command_schema, mcp_cell_commands
from stepper.policy.configuration import wake_regex
from stepper.policy.execution_result import CellVersion
from stepper.policy.model import Cell
from stepper.policy.namespace_model import Namespace
from stepper.policy.notebook_state import State
from tests.conftest import Project, code, scratch

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
# thousands of examples take minutes
pytestmark = pytest.mark.timeout(3600 if NIGHTLY else 900)
NONE_SLOW = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.function_scoped_fixture,
]
GROWTH = 60 << 20  # bytes: a daemon that keeps all requests grows by more


def make_settings(ci: int, nightly: int) -> Callable[[Any], Any]:
    """Return the settings of a test: the number of examples in CI and by night."""
    phases = (
        (Phase.explicit, Phase.generate, Phase.shrink)
        if NIGHTLY
        else (Phase.explicit, Phase.generate)
    )
    return settings(
        max_examples=nightly if NIGHTLY else max(2, ci // 3),
        derandomize=not NIGHTLY,
        deadline=None,
        database=None,
        suppress_health_check=NONE_SLOW,
        phases=phases,
    )


# --- generated data -------------------------------------------------------------------

TEXTS = st.one_of(
    st.text(max_size=30),
    st.text(st.characters(categories=["Cc", "Cs", "Cf", "Lu"]), max_size=10),
    st.sampled_from(
        [
            "",
            "\0",
            "\ud800",
            "../..",
            "/",
            "~",
            "x" * 5000,
            "\x1b[31m",
            "\n",
            "stepper",
            "None",
            "cell-0",
            "cell-99999999999999999999",
            "NaN",
            "2026-01-01T00:00:00Z",
        ]
    ),
)
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.sampled_from([10**19, -(10**400), 1e308, float("nan")]),
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
    ),
    max_leaves=8,
)


DEEP = st.sampled_from([1, 100, 400, 800, 10_000]).map(
    lambda depth: "[" * depth + "]" * depth
)


def odd_objects(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Generate objects whose fields are valid, of another type, or missing."""
    absent = object()
    each = {
        name: st.one_of(right, right, VALUES, st.just(absent))
        for name, right in fields.items()
    }
    return st.fixed_dictionaries(each).map(
        lambda items: {k: v for k, v in items.items() if v is not absent}
    )


def encode_json(value: Any) -> bytes:
    """Return JSON with lone surrogates escaped."""
    return json.dumps(value).encode()


# --- through the real daemon ----------------------------------------------------------


@pytest.fixture(scope="module")
def fuzz_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """One daemon for all tests.

    At the end, it is the same process, without more descriptors or much more memory.
    """
    for project in scratch(tmp_path_factory.mktemp("fuzz") / "repo"):
        project.notebook("plain.ipynb", [code("1 + 1", "one")])
        # the kernel's descriptors are open before and after
        project.stepper("run", "plain")
        daemon = psutil.Process(project.json("status")["daemon"]["pid"])
        before, descriptors = daemon.memory_info().rss, daemon.num_fds()
        yield project
        assert project.json("status")["daemon"]["pid"] == daemon.pid
        until = time.monotonic() + 40  # silent connections are closed after 30 s
        while daemon.num_fds() > descriptors + 6 and time.monotonic() < until:
            time.sleep(0.1)
        assert daemon.num_fds() <= descriptors + 6
        assert daemon.memory_info().rss < before + GROWTH
        assert (
            "Traceback" not in (project.folder / ".stepper" / "daemon.log").read_text()
        )


def send_bytes(
    fuzz_project: Project, data: bytes, pieces: int = 1, timeout: float = 120
) -> bytes:
    """Send bytes to the daemon's socket, in pieces; return the whole response."""
    with (
        socket.socket(socket.AF_UNIX) as link,
        contextlib.suppress(BrokenPipeError, ConnectionResetError),
    ):
        link.settimeout(timeout)
        link.connect(fuzz_project.paths.socket)
        for at in range(pieces):
            link.sendall(
                data[at * len(data) // pieces : (at + 1) * len(data) // pieces]
            )
        link.shutdown(socket.SHUT_WR)
        response = b""
        while part := link.recv(65536):
            response += part
        return response
    return b""


def parts(response: bytes) -> list[list[bytes]]:
    """Return the frames of a response."""
    results, stream = [], io.BytesIO(response)
    while prefix := stream.read(wire_format.PREFIX):
        sizes = wire_format.parse_part_lengths(
            stream.read(8 * wire_format.parse_part_count(prefix))
        )
        results.append([stream.read(size) for size in sizes])
        assert [len(part) for part in results[-1]] == sizes
    return results


def send_request(
    fuzz_project: Project, verb: bytes, payload: bytes
) -> tuple[bytes, bytes]:
    """Send a request; return the kind and the body of the response."""
    frame = wire_format.pack(
        verb,
        __version__.encode(),
        b"PATH=/bin",
        os.fsencode(fuzz_project.folder),
        payload,
    )
    with socket.socket(socket.AF_UNIX) as link:
        # no timeout: with one, connect fails if the backlog is full
        link.connect(fuzz_project.paths.socket)
        link.settimeout(120)
        link.sendall(frame)
        stream = link.makefile("rb")
        while True:
            count = wire_format.parse_part_count(stream.read(wire_format.PREFIX))
            kind, body = (
                stream.read(size)
                for size in wire_format.parse_part_lengths(stream.read(8 * count))
            )
            if kind != wire_format.PROGRESS:
                return kind, body


def assert_daemon_responds(fuzz_project: Project) -> None:
    """Assert that the daemon responds."""
    kind, body = send_request(fuzz_project, b"status", b"{}")
    assert kind == wire_format.OK and json.loads(body)["daemon"]["pid"]


LENGTHS = st.sampled_from(
    [0, 1, 8, 2**20, 2**30, 2**32, 2**63, 2**64 - 1]
) | st.integers(0, 2**64 - 1)
HEADS = st.lists(LENGTHS, max_size=10).map(
    lambda sizes: (
        wire_format.MAGIC
        + bytes([len(sizes)])
        + b"".join(size.to_bytes(8, "big") for size in sizes)
    )
)
WHOLE = st.lists(st.binary(max_size=40), min_size=1, max_size=8).map(
    # A request of another version ends the daemon, so that the updated one takes over.
    lambda item: wire_format.pack(
        *([item[0], __version__.encode(), *item[2:]] if len(item) == 5 else item)
    )
)


@make_settings(60, 3000)
@given(
    data=st.one_of(
        st.binary(max_size=60),
        HEADS,
        st.tuples(HEADS, st.binary(max_size=99)).map(b"".join),
        WHOLE,
        st.tuples(WHOLE, st.integers(0, 60)).map(lambda item: item[0][: item[1]]),
    ),
    pieces=st.integers(1, 4),
)
def test_random_frames(fuzz_project: Project, data: bytes, pieces: int) -> None:
    send_bytes(fuzz_project, data, pieces)
    assert_daemon_responds(fuzz_project)


def test_frame_that_announces_4_gb_is_refused(fuzz_project: Project) -> None:
    head = wire_format.MAGIC + bytes([1]) + (4 << 30).to_bytes(8, "big")
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(120)
        link.connect(fuzz_project.paths.socket)
        link.sendall(head)
        assert link.recv(1) == b""  # closed immediately, without another byte
    assert_daemon_responds(fuzz_project)
    assert (
        f"a frame of {4 << 30} bytes is too large"
        in Path(fuzz_project.paths.log).read_text()
    )


def test_idle_connections_do_not_block_others(project: Project) -> None:
    project.notebook("plain.ipynb", [code("1 + 1", "one")])
    project.json("status")
    links = [socket.socket(socket.AF_UNIX) for _ in range(200)]
    try:
        for number, link in enumerate(links):
            link.connect(project.paths.socket)
            link.sendall(
                wire_format.pack(b"status", b"x", b"", b"", b"{}")[: number % 30]
            )
        assert_daemon_responds(project)
        project.stepper("shutdown")  # its end is not delayed either
        assert not os.path.exists(project.paths.socket)
    finally:
        for link in links:
            link.close()


VERBS = st.sampled_from(
    [
        "status",
        "history",
        "report",
        "output",
        "interrupt",
        "continue",
        "fix",
        "skip",
        "confirm",
        "context",
        "plan",
        "plan add",
        "plan edit",
        "plan remove",
        "plan move",
        "plan no",
        "eval",
        "restore",
        "no",
        "",
    ]
)
ARGUMENTS = odd_objects(
    notebook=st.sampled_from(["plain", "notebooks/plain.ipynb", "none", ".."]),
    run=st.integers(-1, 3),
    cell=st.sampled_from(["one", "1"]),
    page=st.integers(-1, 2),
    reason=TEXTS,
    words=TEXTS,
    answer=TEXTS,
    hint=TEXTS,
    title=TEXTS,
    after=st.integers(-1, 3),
    id=st.integers(-1, 3),
    source=TEXTS,
)


@make_settings(60, 2000)
@example(verb="plan edit", payload=b'{"id": 1, "title": ""}')
@example(verb="plan edit", payload=b'{"title": ""}')
@given(
    verb=VERBS,
    payload=st.one_of(
        ARGUMENTS.map(encode_json), VALUES.map(encode_json), st.binary(max_size=20)
    ),
)
def test_random_requests(fuzz_project: Project, verb: str, payload: bytes) -> None:
    kind, body = send_request(fuzz_project, verb.encode(), payload)
    assert kind in (wire_format.OK, wire_format.FAILED)
    response = json.loads(body)
    if kind == wire_format.FAILED:
        assert response["message"] and response["exit_code"] in (1, 2), response


PATHS = st.sampled_from(
    [
        "HERE/notebooks/plain.ipynb",
        "HERE/plain.ipynb",
        "none.ipynb",
        "../x.ipynb",
        "a\0b.ipynb",
        "\ud800.ipynb",
        "x" * 300 + ".ipynb",
    ]
)
TOOL_INPUTS = odd_objects(
    notebook_path=PATHS,
    file_path=PATHS,
    cell_id=st.sampled_from(["none", "cell-7"]),
    cell_type=st.just("code"),
    new_source=TEXTS,
    content=TEXTS,
    edit_mode=st.sampled_from(["insert", "replace", "delete"]),
    command=TEXTS,
)
PAYLOADS = odd_objects(
    session_id=TEXTS,
    cwd=TEXTS,
    permission_mode=TEXTS,
    tool_name=st.sampled_from(["NotebookEdit", "Write", "Bash", "Read"]),
    tool_input=TOOL_INPUTS,
    tool_use_id=TEXTS,
    tool_response=odd_objects(cell_id=TEXTS, cell_type=TEXTS),
    prompt=TEXTS,
    last_assistant_message=TEXTS,
    tool_calls=st.lists(
        odd_objects(tool_name=st.just("Write"), tool_input=TOOL_INPUTS), max_size=3
    ),
)
EVENTS = st.sampled_from(
    [
        "PreToolUse",
        "PostToolUse",
        "PostToolBatch",
        "SessionStart",
        "UserPromptSubmit",
        "Stop",
        "No",
        "PostToolUse again",
    ]
)
BODIES = st.one_of(
    PAYLOADS.map(encode_json),
    PAYLOADS.map(encode_json),
    VALUES.map(encode_json),
    st.binary(max_size=40),
    DEEP.map(str.encode),
    st.tuples(PAYLOADS.map(encode_json), DEEP).map(
        lambda item: (
            item[0][:-1]
            + b', "session_id": '
            + item[1].encode()
            + b', "tool_input": '
            + item[1].encode()
            + b"}"
        )
    ),
    PAYLOADS.map(encode_json).map(lambda data: data[: len(data) // 2]),
)


@make_settings(150, 6000)
@given(event=EVENTS, body=BODIES)
def test_random_payloads(fuzz_project: Project, event: str, body: bytes) -> None:
    kind, response = send_request(
        fuzz_project,
        b"hook " + event.encode(),
        body.replace(b"HERE", os.fsencode(fuzz_project.folder)),
    )
    assert kind == wire_format.OK, response
    if response:
        data = json.loads(response)["hookSpecificOutput"]
        assert data["hookEventName"] == event.split()[0]
        assert "internal error in stepper" not in response.decode()


@make_settings(4, 60)
@given(event=EVENTS, body=BODIES)
def test_random_payloads_through_the_hook_process(
    fuzz_project: Project, event: str, body: bytes
) -> None:
    # exit code 0, nothing on stderr, JSON or nothing on stdout: asserted there
    fuzz_project.hook(event, body)


@pytest.mark.nightly
def test_huge_payload_leaves_nothing_behind(fuzz_project: Project) -> None:
    for size in (1 << 20, 30 << 20):
        text = "x" * size
        for payload in (
            {"session_id": text},
            {"tool_name": text},
            {"prompt": text},
            {"tool_name": "Bash", "tool_input": {"command": text}},
        ):
            for event in (b"PreToolUse", b"UserPromptSubmit", b"SessionStart"):
                assert (
                    send_request(fuzz_project, b"hook " + event, encode_json(payload))[
                        0
                    ]
                    == wire_format.OK
                )
    assert_daemon_responds(fuzz_project)


@pytest.mark.parametrize(
    "text",
    [
        "stepper" + " '-a'" * 60,
        "stepper" + "'-\\" * 5000,
        "stepper " + "-" * 50_000,
        "stepper" + "\\ " * 20_000,
    ],
)
def test_shell_commands_are_parsed_in_bounded_time(text: str) -> None:
    began = time.process_time()
    edit_gate.find_user_command(text)
    assert time.process_time() - began < 2


# --- file parsers, in this process ----------------------------------------------------

LINES = TEXTS | st.lists(TEXTS, max_size=3)
OUTPUTS = odd_objects(
    output_type=st.sampled_from(["stream", "display_data", "error"]),
    text=LINES,
    ename=TEXTS,
    evalue=TEXTS,
    data=st.dictionaries(
        st.sampled_from(["text/plain", "image/png", "x"]), LINES, max_size=2
    ),
    traceback=LINES,
)
CELLS = odd_objects(
    cell_type=st.sampled_from(["code", "markdown"]),
    id=st.sampled_from(["one", "two"]),
    source=LINES,
    metadata=odd_objects(
        tags=st.lists(TEXTS, max_size=2), stepper=odd_objects(step=st.integers(0, 2))
    ),
    outputs=st.lists(OUTPUTS, max_size=2),
    execution_count=st.integers(0, 2),
)
STEPS = odd_objects(
    id=st.integers(0, 3),
    title=TEXTS,
    criterion=TEXTS,
    kind=st.sampled_from(["step", "validation"]),
)
PLANS = odd_objects(problem=TEXTS, steps=st.lists(STEPS, max_size=3))
NOTEBOOKS = odd_objects(
    nbformat=st.just(4),
    nbformat_minor=st.integers(0, 5),
    cells=st.lists(CELLS, max_size=3),
    metadata=odd_objects(
        language_info=odd_objects(name=st.just("python")),
        kernelspec=odd_objects(language=TEXTS),
        stepper=PLANS,
    ),
)
FILES = st.one_of(
    NOTEBOOKS.map(encode_json),
    NOTEBOOKS.map(encode_json),
    VALUES.map(encode_json),
    st.binary(max_size=50),
    DEEP.map(str.encode),
    DEEP.map(
        lambda text: (
            b'{"nbformat": 4, "cells": [], "metadata": {"stepper": {"steps": %s, "problem": %s}}}'
            % (text.encode(), text.encode())
        )
    ),
    DEEP.map(
        lambda text: (
            b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": "1", "metadata": {"tags": [%s]}}]}'
            % text.encode()
        )
    ),
)


@make_settings(150, 5000)
@given(data=FILES)
def test_random_notebooks(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "n.ipynb"
    path.write_bytes(data)
    os.utime(path, (0, 0))  # not being saved just now
    file = IpynbFile(str(path))
    try:
        document = file.read()
    except NotebookError as error:
        assert "n.ipynb" in error.message
        return
    assert document.language is not None and document.figure_count >= 0
    parsed_plan = plan.from_json(document.plan) or plan.Plan()
    state = State(plan=parsed_plan)
    assert command_messages.format_context("n", state, Namespace(), is_alive=False)
    for cell in select_runnable(document.cells):
        cell_directives.parse(cell.source)
        assert cell.label
        split_pages(file.read_outputs(CellVersion.from_cell(cell)))
        quoted_output.format_outputs(file.read_outputs(CellVersion.from_cell(cell)))
        file.add_tag(cell, "skip")
    # The next example uses the same temporary file, so wait for its removal.
    background_io.start_pending_jobs()
    background_io.EXECUTOR.submit(int).result()
    assert path.exists()


FRAMES = odd_objects(
    cell=st.integers(0, 2),
    line=st.integers(0, 2),
    function=TEXTS,
    file=TEXTS,
    context=st.just([[1, "x"]]),
)
RUNS: dict[str, Any] = {
    "run": st.integers(1, 3),
    "key": st.sampled_from([1, "one"]),
    "cell_id": TEXTS,
    "source_hash": TEXTS,
    "index": st.integers(0, 3),
    "started_at": st.just("2026-01-01T00:00:00Z"),
    "duration_s": st.floats(0, 9),
    "outcome": st.sampled_from(["ok", "error"]),
    "verdict": st.sampled_from(["fine", "recoverable"]),
    "tool_use_id": TEXTS,
    "step": st.integers(0, 2),
    "fault": odd_objects(
        ename=TEXTS,
        evalue=TEXTS,
        mro=st.lists(TEXTS, max_size=2),
        attributes=st.just({}),
        frames=st.lists(FRAMES, max_size=2),
    ),
}
KIND = st.sampled_from(sorted(journal_events.EVENT_CLASSES))
JOURNALED = st.one_of(
    odd_objects(
        event=KIND,
        plan=PLANS,
        text=TEXTS,
        block=TEXTS,
        reason=TEXTS,
        why=TEXTS,
        what=TEXTS,
        kernel=TEXTS,
        at=TEXTS,
        **RUNS,
    ),
    st.fixed_dictionaries({"event": KIND, **RUNS}),
)


@make_settings(150, 5000)
@given(
    lines=st.lists(
        JOURNALED.map(encode_json) | VALUES.map(encode_json) | st.binary(max_size=30),
        max_size=5,
    )
)
def test_random_journals(tmp_path: Path, lines: list[bytes]) -> None:
    path = tmp_path / "n.jsonl"
    path.write_bytes(b"\n".join(lines))
    journaled, _ = JournalFile(str(path)).load()
    state = journal_reducer.replay(journaled)
    assert 0 <= state.unreadable_events <= len(journaled)
    assert "\n" not in (edit_gate.check_stop(state) or "")
    for key in (*state.progress, None):
        assert command_messages.format_fix("n", state, key, None, 3)
        assert command_messages.format_skip("n", state, key, "because")
    assert command_messages.format_context("n", state, Namespace(), is_alive=True)
    assert (
        command_messages.format_rebuild(state) is not None
        and state.status_name
        and state.has_open_work in (True, False)
    )
    for run in state.runs:
        assert command_messages.format_journaled_run(
            run, state.reports.get(run.run), state.stop
        ).text
    assert rendering.RENDERINGS["history"].text(
        [{"by": "", "source": "", **run.to_json()} for run in state.runs]
    )


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n"
    for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
YAMLS = st.sampled_from(
    [
        LAUGHS,
        LAUGHS.replace("a:", "hide_env:", 1),
        "<<: [{a: 1}]",
        "? [1]\n: 2",
        "max_cells: !!int x",
        "max_cells: !!float ''",
        "max_cells: 2001-13-45",
        "python: !!python/object/apply:os.system ['touch /tmp/stepper-was-here']",
        "a: &a [*a]",
        "python: !!python/name:os.system",
        "!!set {max_cells}",
        "!!omap [a: 1]",
        "max_cells: !!binary x",
        'python: "\\0"',
        'notebooks_dir: "a\\nb"',
        'notebooks_dir: "\\ud800"',
        "cell_timeout_seconds: .inf",
        "cell_timeout_seconds: .nan",
        "max_retries: " + "9" * 5000,
        "max_cells: 1" + "0" * 400,
        "max_cells: !!timestamp x",
        "max_cells: !!bool x",
        "[" * 19_000,
        "{" * 5000,
        "[a," * 6000,
        "- " * 5000,
        "a: " * 3000,
        "\t",
        "%YAML 9.9\n---\n",
        "---\n---\n",
        "&a",
        "*a",
        "!",
        "!!",
        "\x00",
        "x" * 200_000,
    ]
)
KEYS = st.sampled_from(sorted(config.RULES))


@make_settings(100, 3000)
@given(
    text=st.one_of(
        YAMLS,
        st.text(max_size=60),
        st.tuples(KEYS, YAMLS | TEXTS).map(": ".join),
        st.dictionaries(KEYS | TEXTS, VALUES, max_size=3).map(json.dumps),
    )
)
def test_random_configs(text: str) -> None:
    began = time.process_time()
    try:
        limits = config.parse(text, ".stepper/config.yaml")
    except UsageError as error:
        assert (
            error.message.startswith(".stepper/config.yaml")
            and len(error.message) < 2000
        )
    else:
        assert all(
            rule(getattr(limits, key)) or isinstance(getattr(limits, key), tuple)
            for key, (_, rule) in config.RULES.items()
        )
        cell_directives.select_deadline(
            cell_directives.Directive(),
            limits.cell_timeout_seconds,
            limits.max_cell_timeout_seconds,
        )
    assert time.process_time() - began < 5
    assert not os.path.exists("/tmp/stepper-was-here")


HOOKED = odd_objects(
    matcher=TEXTS,
    hooks=st.lists(odd_objects(type=st.just("command"), command=TEXTS), max_size=2),
)
SETTINGS = odd_objects(
    hooks=st.dictionaries(
        st.sampled_from(
            [*sorted({handler.event for handler in merging.HANDLERS}), "Other"]
        ),
        st.lists(HOOKED, max_size=2) | VALUES,
        max_size=3,
    ),
    permissions=odd_objects(allow=st.lists(TEXTS, max_size=3), deny=VALUES),
    model=VALUES,
)


@make_settings(150, 4000)
@given(data=SETTINGS | VALUES, indent=st.sampled_from([None, 0, 2, 4, "\t"]))
def test_settings_are_never_lost(data: Any, indent: Any) -> None:
    """Adding and removing our entries restores the bytes; other entries are kept."""
    text = json.dumps(data, indent=indent) + "\n"
    before = merging.parse(text)
    assume(json.dumps(before) == json.dumps(data))
    if merging.find_shape_problem(before):
        return  # refused with its name: nothing is written
    merged, new = merging.add_rules(
        merging.add_hooks(before), merging.list_permission_rules(["notebooks"])
    )
    rendered = merging.render(merged, text)
    assert json.dumps(merging.parse(rendered)) == json.dumps(merged)
    assert not merging.list_missing_handlers(merged)
    for name, value in before.items():
        if name not in ("hooks", "permissions"):
            assert json.dumps(merged[name]) == json.dumps(value)
    for event, groups in before.get("hooks", {}).items():
        entries = merged["hooks"][event]
        assert json.dumps(
            entries[: len(groups)] if isinstance(groups, list) else entries
        ) == json.dumps(groups)
    restored = merging.remove_ours(merged, new, before)
    assert json.dumps(restored) == json.dumps(before)
    assert merging.render(restored, text) == text


@make_settings(100, 3000)
@given(
    arguments=TEXTS
    | st.lists(
        st.sampled_from(
            [
                "step=1",
                "timeout=5m",
                "scratch",
                "timeout=1e9",
                "step=" + "9" * 99,
                "timeout=" + "9" * 999,
                "wait=none",
                "timeout=none",
                'wake="a b"',
                "wake='",
                'wake="',
                "wake=(",
                '"',
            ]
        ),
        max_size=4,
    ).map(" ".join)
)
def test_random_directives(arguments: str) -> None:
    directives = cell_directives.parse(f"# stepper: {arguments}\nx = 1")
    assert 0 < cell_directives.select_deadline(directives, 30, 3600) <= 3600
    assert all("\n" not in problem for problem in directives.problems)
    cells = [Cell("one", 0, 1, "code", f"# stepper: {arguments}")]
    plan.find_step_id(State(), cells, cells[0])


WAKES = [
    "loss.*nan",
    "(?i)NaN|iNF",
    "^a",
    "b$",
    r"\d{2}",
    "a|bb",
    "(a|b)c",
    "a{2,3}b?",
    "(?i)[äk]x",
    r"\bnan\b",
    "(?:ab)+c",
    "(?i:A)b",
    "x.y|a.b",
]


@make_settings(200, 10000)
@given(
    pattern=st.sampled_from(WAKES)
    | st.text("ab.*+?|()[]{}1,^$\\dks\u212a", max_size=8),
    pieces=st.lists(
        st.text("abcknNiIfFxyloss äK\u212a\n\r12", max_size=12)
        | st.sampled_from(["loss", "nan", "\n", "\x1b[31m"]),
        max_size=8,
    ),
)
def test_random_wake_patterns(pattern: str, pieces: list[str]) -> None:
    """The matched line is the first that Python's `re` finds, for any chunks."""
    assume(not wake_regex.find_problem(pattern))
    watch = WakeWatcher(pattern)
    for piece in pieces:
        watch.search("stdout", piece)
    lines = re.split("[\r\n]", "".join(pieces).replace("\x1b[31m", ""))
    matching_lines = [line for line in lines if line and re.search(pattern, line)]
    # the last line is checked when it is complete
    if (
        watch.pattern.matches_longer_lines
        or not matching_lines
        or matching_lines[0] in lines[:-1]
    ):
        assert bool(watch.matched_line) == bool(matching_lines) and (
            not matching_lines or matching_lines[0].startswith(watch.matched_line)
        )
    assert not watch.skipped_characters


@make_settings(100, 3000)
@given(data=PLANS | VALUES)
def test_random_plans(data: Any) -> None:
    parsed_plan = plan.from_json(load_json(encode_json(data)))
    if parsed_plan is not None:
        assert plan.from_json(plan.to_json(parsed_plan)) == parsed_plan
        assert all(
            "\n" not in line
            for line in command_messages.format_plan(State(plan=parsed_plan))
        )


@make_settings(60, 2000)
@given(data=ARGUMENTS.map(encode_json) | st.binary(max_size=30) | DEEP.map(str.encode))
def test_random_arguments(data: bytes) -> None:
    assert mcp_cell_commands.CellRun in [
        row.arguments for row in command_schema.ALL_COMMANDS.values()
    ]
    for row in command_schema.ALL_COMMANDS.values():
        with contextlib.suppress(UsageError):
            assert isinstance(
                command_schema.parse_arguments(row.arguments, load_arguments(data)),
                row.arguments,
            )
