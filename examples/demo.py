"""Plays an analysis as Claude Code does: each cell is written to the file, then the hook runs.

It needs neither Claude Code nor an API key. `install.sh --demo` calls it on a TARGET that
is set up: `python examples/demo.py TARGET`. The exit code is 1 if a result is not the
expected one.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import sys
import uuid
from pathlib import Path
from subprocess import CalledProcessError, run
from typing import Any, NamedTuple

from stepper.common.errors import StepperError
from stepper.common.paths import Paths, read_install_record
from stepper.install import doctor
from stepper.install.claude_settings import SCRIPT

PROBLEM = "Analyse four years of Seattle weather and plot it by month"
DATA, RESULT = "seattle-weather.csv", "seattle_weather_by_month.csv"
PACKAGES = ["pandas", "matplotlib", "vega_datasets"]  # vega_datasets contains the data
PROBE = f"""
import json, os
from importlib.util import find_spec
found = {{name: find_spec(name) for name in {PACKAGES}}}
folders = found["vega_datasets"].submodule_search_locations if found["vega_datasets"] else []
files = [os.path.join(folder, "_data", "{DATA}") for folder in folders]
print(json.dumps([[name for name in found if not found[name]], [file for file in files if os.path.exists(file)]]))
"""


class Step(NamedTuple):
    """A step of the analysis.

    `forgotten` is the start of the code, which is missing in the first attempt.
    """

    title: str
    markdown: str
    code: str
    forgotten: str = ""


STEPS = (
    Step(
        "Import libraries",
        "pandas for the table, matplotlib for the figure in the notebook.",
        "%matplotlib inline\nimport matplotlib.pyplot as plt\nimport pandas as pd",
    ),
    Step(
        "Load the CSV",
        "One row for each day: precipitation (mm), highest and lowest temperature (°C), wind "
        f"(m/s) and a label for the weather. The file is `{DATA}` of the PyPI package "
        "`vega_datasets`. Cells run in `notebooks/`, so the file is one folder up. Types "
        "are converted later.",
        f'raw = pd.read_csv("../{DATA}")\nprint(f"{{len(raw):,}} rows, {{len(raw.columns)}} columns")\nraw.head()',
    ),
    Step(
        "Explore",
        "Which types are there, is anything missing or impossible, and does a label mean the same in every year?",
        """\
about = pd.DataFrame({"type": raw.dtypes.astype(str), "missing": raw.isna().sum(), "distinct": raw.nunique()})
print(about, raw.describe().round(1), sep="\\n\\n", end="\\n\\n")
print("days with the lowest above the highest temperature:", (raw["temp_min"] > raw["temp_max"]).sum())
print("days labelled sun with precipitation:", (raw["weather"].eq("sun") & raw["precipitation"].gt(0)).sum())
pd.crosstab(raw["date"].str[:4].rename("year"), raw["weather"])""",
    ),
    Step(
        "Clean",
        "Nothing is missing or impossible; only the dates are still text. The labels can't be "
        "trusted: `rain` goes from 191 days in 2012 to 3 in 2014 while `fog` goes from 5 to "
        "151, and 77 days labelled `sun` had precipitation. The labelling changed, not the "
        "weather. Therefore, the measured precipitation decides whether a day is wet. The "
        "assertions state what all further cells rely on.",
        """\
weather = raw.assign(date=pd.to_datetime(raw["date"], format="%Y/%m/%d"), weather=raw["weather"].astype("category"))
weather = weather.set_index("date")
every_day = pd.date_range("2012-01-01", "2015-12-31")
assert weather.index.equals(every_day), "a day is missing, doubled or out of order"
assert (weather["precipitation"] >= 0).all(), "precipitation is missing or negative"


def is_wet(days):
    return days["precipitation"] >= WET_DAY_MM


print(f"{len(weather):,} days without a gap, {weather.index[0]:%d %B %Y} to {weather.index[-1]:%d %B %Y}")""",
    ),
    Step(
        "Summary statistics",
        "What is a typical month? Precipitation and wet days are summed, and temperatures "
        "averaged, over each of the 48 months and then over the four years. A day is wet from "
        "1 mm on, as climatologists count.",
        """\
WET_DAY_MM = 1.0

by_month = weather.assign(wet_days=is_wet(weather)).groupby(pd.Grouper(freq="MS"))
monthly = by_month[["precipitation", "wet_days"]].sum().join(by_month[["temp_max", "temp_min"]].mean())
typical = monthly.groupby(monthly.index.month).mean().rename_axis("month")
print(monthly["precipitation"].groupby(monthly.index.year).sum().rename("mm a year").to_string(), end="\\n\\n")
typical.round(1)""",
        forgotten="WET_DAY_MM = 1.0\n\n",
    ),
    Step(
        "Visualise",
        "Four years are few, so the figure shows single months next to their mean: December "
        "had 42 mm in 2013 and 284 mm in 2015.",
        """\
figure, (above, below) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
above.bar(typical.index, typical["precipitation"], color="tab:blue", alpha=0.5, label="mean of four years")
above.plot(monthly.index.month, monthly["precipitation"], "k.", label="single months")
above.set(title="Seattle, 2012 to 2015", ylabel="precipitation (mm a month)")
above.legend()
below.fill_between(typical.index, typical["temp_min"], typical["temp_max"], color="tab:red", alpha=0.4)
below.set(ylabel="mean daily low to high (°C)", xlabel="month", xticks=typical.index)
plt.show()""",
    ),
    Step(
        "Save results",
        "The typical months are saved next to the notebook. November, December and March are "
        "the wettest (150 to 161 mm), July is the driest (12 mm on 2 wet days) and, with "
        "August, the warmest. Four years say little about the climate: 2013 had a third less "
        "precipitation than 2012 or 2014.",
        f"""\
typical.round(2).to_csv("{RESULT}")
saved = pd.read_csv("{RESULT}", index_col="month")
print(f"{{len(saved)}} months and {{len(saved.columns)}} columns saved: {RESULT}")""",
    ),
)


def say(text: str) -> None:
    """Print a part of the transcript, without buffering."""
    sys.stdout.buffer.write((text + "\n").encode("utf-8", "replace"))
    sys.stdout.flush()


def output(
    *command: str, cwd: str, text: str = "", env: dict[str, str] | None = None
) -> str:
    """Return the output of a command with `text` as its input; raise CalledProcessError."""
    return run(
        command,
        cwd=cwd,
        input=text,
        env=env,
        capture_output=True,
        check=True,
        encoding="utf-8",
    ).stdout


def prepare(target: str) -> None:
    """Install the missing packages for the kernel, and copy the data into the repository."""
    python = read_install_record(target).get("python")
    if not python:
        raise StepperError(f"{target} is not set up", "./install.sh --demo")
    missing, files = json.loads(output(python, "-c", PROBE, cwd=target))
    if missing:
        say(f"{'packages':<12}installing for the kernel: {', '.join(missing)}")
        uv = shutil.which("uv")
        pip = (
            [uv, "pip", "install", "--python", python]
            if uv
            else [python, "-m", "pip", "install", "--no-compile"]
        )
        output(*pip, *missing, cwd=target)
        _, files = json.loads(output(python, "-c", PROBE, cwd=target))
    # compile bytecode and build matplotlib's font cache, which would slow down the first
    # cell
    output(python, "-c", "import pandas, matplotlib.pyplot", cwd=target)
    if not Path(target, DATA).exists():
        shutil.copyfile(files[0], Path(target, DATA))


class Player:
    """Plays Claude Code: edits the notebook and calls the hooks."""

    def __init__(self, target: str, notebook: str) -> None:
        self.target, self.notebook = target, Path(target, notebook)
        self.common = {
            "session_id": str(uuid.uuid4()),
            "transcript_path": os.devnull,
            "cwd": target,
        }
        self.common |= {"prompt_id": str(uuid.uuid4()), "permission_mode": "default"}

    def play(
        self, kind: str, source: str, replace: bool = False, expected: str = "ran ok"
    ) -> None:
        """Insert a cell below the last one, or replace that one.

        Raise StepperError if the result is not the expected one.
        """
        original_file = self.notebook.read_text("utf-8")
        content: dict[str, Any] = json.loads(original_file)
        last, mode = content["cells"][-1], "replace" if replace else "insert"
        tool_input = {
            "notebook_path": str(self.notebook),
            "cell_id": last["id"],
            "new_source": source,
        }
        response = {
            "new_source": source,
            "cell_type": kind,
            "language": "python",
            "edit_mode": mode,
        }
        if replace:
            response["old_source"] = "".join(last["source"])
        else:
            tool_input |= {"cell_type": kind, "edit_mode": "insert"}
            content["cells"].append(
                {
                    "cell_type": kind,
                    "id": secrets.token_hex(4),
                    "source": "",
                    "metadata": {},
                }
            )
        cell = content["cells"][-1]
        cell |= {
            "source": source,
            **({"execution_count": None, "outputs": []} if kind == "code" else {}),
        }
        after = json.dumps(
            content, indent=1, ensure_ascii=False
        ) + "\n" * original_file.endswith("\n")
        response |= {
            "cell_id": cell["id"],
            "error": "",
            "notebook_path": str(self.notebook),
        }
        response |= {"original_file": original_file, "updated_file": after}

        call = {
            "tool_name": "NotebookEdit",
            "tool_input": tool_input,
            "tool_use_id": "toolu_" + secrets.token_hex(12),
        }
        gate = self.hook("PreToolUse", call)
        self.notebook.write_text(after, "utf-8")
        answer = self.hook(
            "PostToolUse", {**call, "tool_response": response, "duration_ms": 5}
        )
        result = (
            f"{'Updated' if replace else 'Inserted'} cell {cell['id']} with {source}"
        )
        batch = self.hook(
            "PostToolBatch", {"tool_calls": [{**call, "tool_response": result}]}
        )

        say(
            f"\nNotebookEdit  {mode} {kind} cell {cell['id']}: {source.splitlines()[0]}"
        )
        report = answer.get("hookSpecificOutput", {}).get("additionalContext", "")
        if answer:
            say(f"  you see      {answer.get('systemMessage')}")
            say("  Claude reads " + report.replace("\n", "\n               "))
        refused = (
            gate.get("hookSpecificOutput", {}).get("permissionDecision", "allow")
            != "allow"
        )
        if (
            refused
            or batch
            or (expected not in report.partition("\n")[0] if kind == "code" else answer)
        ):
            raise StepperError(
                f"expected {expected if kind == 'code' else 'no answer'}; got {gate, answer, batch}"
            )

    def hook(self, event: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Run the installed hook as Claude Code does; return its answer, or {} for none."""
        payload = {
            **self.common,
            "effort": {"level": "medium"},
            "hook_event_name": event,
            **fields,
        }
        printed = output(
            str(Path(self.target, SCRIPT)),
            event,
            cwd=self.target,
            text=json.dumps(payload),
            env={**os.environ, "CLAUDE_PROJECT_DIR": self.target},
        )
        answer: dict[str, Any] = json.loads(printed or "{}")
        return answer


def check(notebook: Path, state: str) -> None:
    """Raise StepperError unless the notebook and the results file are as expected."""
    cells = [
        cell
        for cell in json.loads(notebook.read_text("utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    counts, outputs = (
        [cell["execution_count"] for cell in cells],
        [output for cell in cells for output in cell["outputs"]],
    )
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    bad = (
        None in counts
        or len(counts) != len(STEPS)
        or any(output["output_type"] == "error" for output in outputs)
    )
    if (
        bad
        or state != "complete"
        or pictures != 1
        or not notebook.with_name(RESULT).exists()
    ):
        raise StepperError(
            f"unexpected result: state {state}, execution counts {counts}, {pictures} figure(s), {RESULT}"
        )


def main() -> int:
    """Play the analysis in the repository that the first argument names."""
    target = os.path.realpath(*sys.argv[1:] or ["."])
    stepper = str(Path(Paths(target).env, "bin", "stepper"))
    try:
        prepare(target)
        steps = [argument for step in STEPS for argument in ("--step", step.title)]
        name = json.loads(
            output(stepper, "new", PROBLEM, *steps, "--json", cwd=target)
        )["notebook"]
        say(
            f"{'notebook':<12}created: {name}\n\nNow the part of Claude Code: it writes each cell, and the cell runs at once."
        )
        try:
            player = Player(target, name)
            for number, step in enumerate(STEPS, 1):
                player.play("markdown", f"## {number}. {step.title}\n\n{step.markdown}")
                if step.forgotten:
                    player.play(
                        "code",
                        step.code.removeprefix(step.forgotten),
                        expected="NameError: ",
                    )
                player.play("code", step.code, replace=bool(step.forgotten))
            check(
                player.notebook,
                json.loads(output(stepper, "status", "--json", cwd=target))["state"],
            )
            say(
                f"\nThe notebook: {player.notebook}\n\n$ stepper status\n{output(stepper, 'status', cwd=target)}"
            )
            # exit code 1 if the notebook does not reproduce
            say(f"$ stepper verify\n{output(stepper, 'verify', cwd=target)}")
        finally:
            say("$ stepper shutdown\n" + output(stepper, "shutdown", cwd=target))
    except (
        StepperError,
        CalledProcessError,
        OSError,
        ValueError,
        LookupError,
    ) as error:
        printed = f"{getattr(error, 'stdout', '')}{getattr(error, 'stderr', '')}"
        sys.stderr.write(f"demo: {type(error).__name__}: {error}\n{printed}\n")
        return 1
    undo = f"{doctor.format_install_command(Paths(target))} --uninstall && rm -r {shlex.quote(target)}"
    say(f"To remove the demo and its environment, run: {undo}")
    say(
        f"To continue with Claude Code, run: cd {shlex.quote(target)} && claude, then type: /new-notebook QUESTION"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
