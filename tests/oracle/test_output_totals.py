"""Every character that the kernel sent is in a cell or reported as truncated."""

from __future__ import annotations

import os
import time

import pytest

from tests.conftest import Project, text_of
from tests.kernel_traffic import OutputCounter

CELLS = {
    "lines": "for i in range(100): print(i)",
    "both streams": "import sys\nfor i in range(300): print(i, file=[sys.stdout, sys.stderr][i % 2])",
    "flushed": "import sys\nfor i in range(300): print(i, file=[sys.stdout, sys.stderr][i % 2], flush=True)",
    "a flood of lines": "for i in range(60_000): print('line', i)",
    "a flood in one": "print('é' * 3_000_000)",
    "many switches": "import sys\nfor i in range(30_000): print('x' * 60, file=[sys.stdout, sys.stderr][i % 2], flush=True)",
    "displays between": "for i in range(400): print('y' * 4000); display('z' * 2000)",
    "a child": "import subprocess\nsubprocess.run(['seq', '20000'])",
    "a child's flood": "subprocess.run('head -c 3000000 /dev/zero | tr \"\\\\0\" q', shell=True)",
    "a thread": "import threading\nt = threading.Thread(target=print, args=['t'] * 9); t.start(); t.join()",
    "late": "threading.Timer(0.5, print, ['late' * 100]).start()",
    "late and much": "threading.Timer(0.3, lambda: [print('late', i) for i in range(200_000)]).start(); print('early')",
    "an error": "print('before'); 1 / 0",
    "a long error": "print('before'); raise ValueError('x' * 3_000_000)",
    "a magic": "%%bash\nseq 100; seq 5 >&2",
    "a deadline": "# stepper: timeout=1\nwhile True: print('on and on')",
}


@pytest.mark.nightly
@pytest.mark.parametrize("limit", [1 << 20, 5000])
def test_no_output_is_lost_or_truncated_silently(project: Project, limit: int) -> None:
    project.config(f"max_output_bytes: {limit}\nmax_retries: 100\n")
    notebook = project.new()
    with OutputCounter(project) as counter:
        notebook.insert("None")
        counter.wait_for_kernels()
        for name, source in CELLS.items():
            cell, response = notebook.insert(source)
            if response.stop:
                project.stepper("fix")
            elif "late" not in name:
                note = "\nNote: left out of the notebook: " in response.text
                assert note == (
                    "left out by stepper" in str(notebook.cell(cell)["outputs"])
                ), name
        counter.assert_output_saved(notebook)
    assert any(
        "late" in text_of(cell)
        for cell in notebook.raw["cells"]
        if cell["cell_type"] == "code"
    )


@pytest.mark.nightly
def test_killed_daemon_loses_no_output(
    project: Project,
) -> None:
    notebook = project.new()
    with OutputCounter(project) as counter:
        notebook.insert("None")
        counter.wait_for_kernels()
        for cell in range(3):
            source = f"import os, time\nfor i in range(2000): print({cell}, i)\nopen('here{cell}', 'w').close(); time.sleep(1)"
            payload = notebook.edited("insert", source, notebook.raw["cells"][-1]["id"])
            pid = os.fork()
            if pid == 0:
                notebook.project.hook("PostToolUse", payload)
                os._exit(0)
            while not (notebook.path.parent / f"here{cell}").exists():
                time.sleep(0.01)
            project.kill_daemon()
            os.waitpid(pid, 0)
        notebook.insert("1")
        counter.assert_output_saved(notebook)
        assert notebook.project.json("history")[-2]["outcome"] == "ok"
