"""Which user prompts are commands: phrases of several people, written before the rule.

Half of the first 160 phrases were held out. In the first run, the rule classified all
81 of them correctly.
"""

from __future__ import annotations

import time

import pytest

from stepper.policy.commands.prompt_commands import parse_command, parse_sentence

STOPPED_BY_QUESTION = {"is_stopped": True, "has_question": True}
STOPPED_BY_ERROR = {"is_stopped": True, "has_question": False}
NOT_STOPPED = {"is_stopped": False, "has_question": False}

COMMANDS = {
    "skip cell": """
        skip cell
        Skip cell.
        SKIP CELL!
        skip cell because we lack data
        Skip cell, we lack data
        skip cell - the file is not there yet
        skip cell: no network in the lab today
        skip cell (the API key is missing)
        please skip cell
        Please skip cell, it takes too long
        skip cell please
        ok skip cell
        OK, skip cell for now
        skip cell for now, I will look at it later
        skip cell and go on
        skip cell since nobody needs that plot
        skip cell as it takes too long
        yes, skip cell
        skip cell; the supplier never sent it
        skip  cell — nicht nötig
        skip cell⏎We do not have the sensor data for May.
        skip cell now
        skip cell. It is only a plot.
        Skip cell, thanks
    """,
    "fix and retry": """
        fix and retry
        Fix and retry.
        fix and retry!
        fix and retry with the other file
        Fix and retry, use latin-1 as the encoding
        fix and retry using the second sheet
        fix and retry by reading only the first 1000 rows
        fix and retry: the column is called price_eur
        please fix and retry
        Please fix and retry with a smaller batch
        fix and retry please
        fix and retry but keep the plot
        fix and retry without the outliers
        yes fix and retry
        fix and retry - the server is up again
        fix and retry because I have put the file there
        fix and retry⏎⏎use data/new.csv instead
        ok, fix and retry; the password is in the env now
        Fix and retry now
        fix and retry, and tell me what it was
    """,
    "continue notebook": """
        continue notebook
        Continue notebook.
        continue notebook!
        continue notebook, drop the rows
        continue notebook: use the mean
        continue notebook with the median instead
        continue notebook and drop the rows without a price
        continue notebook; the first column is the right one
        continue notebook using the column total
        Continue notebook - yes, rows may be dropped
        please continue notebook
        continue notebook please
        Please, continue notebook with option 2
        ok continue notebook
        yes, continue notebook, that is fine
        continue notebook⏎drop the rows
        continue notebook where we left off
        continue notebook from step 3
        continue notebook but keep duplicates
        continue notebook as planned
        CONTINUE NOTEBOOK, the 2nd
        continue notebook without the last month
        Great, continue notebook
        continue notebook, drop the rows. Why were there so many anyway?
    """,
    "show status": """
        show status
        Show status.
        show status please
        please show status
        Show status, please!
        show status now
        ok show status
        SHOW STATUS
        show status of the notebook
        show status - how far are we
        show status and the plan
        show status⏎
    """,
    "stop the cell": """
        stop the cell
        Stop the cell.
        STOP THE CELL!
        please stop the cell
        stop the cell please
        Please stop the cell now.
        ok, stop the cell
        stop that cell now
        stop this cell
        stop the running cell
        stop the cell, it has diverged
        stop the cell because the loss is nan
        stop the cell because it takes longer than I thought
        stop the cell since nobody needs that plot
        stop the cell, it is stuck at 99 %
        stop the cell - wrong learning rate
        stop the cell (the loss is nan)
        stop the cell for now
        stop the cell and use lr=0.1
        stop the cell, then use lr=0.1
        stop the cell; we have seen enough, with this rate it does not learn
        stop the cell. When it has ended, show me the loss.
        stop the cell⏎After that we look at the data.
        stop the cell, at once
        /notebook-status stop
        /notebook-status stop, it has diverged
    """,
}
# A prompt with a time or a condition does not end a long run.
NOT_NOW = """
    stop the cell after epoch 10
    Stop the cell after epoch 10.
    please stop the cell after it has saved the checkpoint
    stop the cell as soon as loss is nan
    stop the cell, but only if accuracy is below 0.5
    stop the cell until tomorrow
    stop the cell, tomorrow that is
    stop the cell from printing so much
    stop the cell - when it is done
    stop the cell… when it is done
    stop the cell ... when it is done
    stop the cell – at the next checkpoint
    stop the cell now if it is stuck
    stop the cell please, but not yet
    stop the cell for now, if nothing depends on it
    stop the cell so that I can look, but not before epoch 3
    stop the cell when the loss is below 0.1
    stop the cell if it takes longer than 2 h
    stop the cell unless it is nearly done
    stop the cell once it has converged
    stop the cell at 5 pm
    stop the cell, at 5 pm
    stop the cell in ten minutes
    stop the cell, in ten minutes
    stop the cell before it overwrites the file
    stop the cell and the kernel as soon as you have the figures
    stop the cell later
    stop the cell,⏎but only if it is stuck
    stop the cell. But only if it is stuck.
    stop the cell where the loss is nan
    stop the cell with the loop
    stop the cell using early stopping
    stop the cell without losing the checkpoint
    stop the cell only when I say so
    stop the cell in the other notebook
    stop that cell output from flooding
    stop the cell timeout from being so short
    stop cell
    stop it
    stop the cell?
    don't stop the cell
    never stop the cell
    how do I stop the cell
    should we stop the cell, or let it run?
    you may stop the cell once it has converged
    /notebook-status stop after epoch 10
"""
MENTIONS = """
    skip cells
    skip cell 3
    skip cell three because it is slow
    skip celling prices in the data
    please don't skip cell 3
    don't skip cell
    do not skip cell, fix it
    should I skip cell?
    skip cell?
    the skip cell command is odd
    what does skip cell do?
    "skip cell" does nothing for me
    `skip cell` is in the README, is that right?
    skip cell logic lives in steering.py, rename it
    skip cell is a bad name for that command
    how do I skip cell 4
    never skip cell without asking me
    skip cell if it fails a second time
    why did you skip cell 2
    I told you to skip cell and you did not
    skip cell tags are shown in JupyterLab
    skip cell means what, exactly?
    skip cell and continue notebook are two commands of stepper
    skip cell or fix and retry, which is better
    Is it "skip cell" or /skip?
    skip cell was not what I wanted
    fix and retry the build
    fix and retry?
    can you fix and retry?
    how does fix and retry work?
    fix and retry loops are in client.py
    what happens on fix and retry
    the fix and retry command gave me fresh attempts
    fix and retrying is not enough here
    fix and retry did not help
    after fix and retry it failed again
    I would rather not fix and retry
    fix and retry with the other file?
    'fix and retry' is what the readme says
    Do not fix and retry yet.
    fix and retry is what I typed before
    fix and retry does nothing
    fix the tests and retry
    continue notebook cleanup in the README
    how do I continue notebook work?
    continue notebook?
    continue notebooks
    can I continue notebook sales.ipynb tomorrow?
    continue notebook development after lunch
    to continue notebook, type what?
    what does `continue notebook` lift?
    should we continue notebook, or start afresh?
    continue notebook is what I need to say, right?
    continue notebook was typed by accident
    I can't continue notebook like this
    don't continue notebook
    please do not continue notebook until I say so
    continue notebook when the tests pass
    The words "continue notebook" did nothing
    continue notebook doesn't work
    continue notebook, should I? I am not sure
    write a function that prints continue notebook
    show status codes in the table
    what does `show status` do?
    show statuses
    show status bar in the app
    show status in the title of the figure
    does show status list the kernel?
    add a show status button
    git show status
    show status is broken
    show status of the git repository
    the show status text is too long
    hello
    status
    /continue drop the rows
    continue
    skip it
    retry
    go on
"""


def phrases(text: str) -> list[str]:
    return [
        line.strip().replace("⏎", "\n") for line in text.splitlines() if line.strip()
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_prompt_starting_with_command_words_is_the_command(command: str) -> None:
    missed = [
        phrase
        for phrase in phrases(COMMANDS[command])
        if (parse_command(phrase) or ("",))[0] != command
    ]
    assert len(phrases(COMMANDS[command])) > 10 and missed == []


@pytest.mark.parametrize("filler", ["-" * 20_000, "." * 20_000, " | " * 10_000])
def test_long_prompt_is_parsed_quickly(filler: str) -> None:
    began = time.thread_time()
    assert parse_command(f"continue notebook, here is the table:\n+{filler}+\nx")
    assert parse_command(f"stop the cell, it prints +{filler}+ x")
    assert time.thread_time() - began < 2


def test_mention_of_a_command_is_not_a_command() -> None:
    assert len(phrases(MENTIONS)) > 70
    assert [phrase for phrase in phrases(MENTIONS) if parse_command(phrase)] == []


def test_conditional_stop_request_is_not_a_command() -> None:
    assert len(phrases(NOT_NOW)) > 40
    assert [phrase for phrase in phrases(NOT_NOW) if parse_command(phrase)] == []


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("skip cell", ""),
        ("Please skip cell.", ""),
        ("skip cell because we lack data", "because we lack data"),
        ("fix and retry with the other file", "with the other file"),
        ("continue notebook, drop the rows", "drop the rows"),
        ("show status please", ""),
        (
            "continue notebook, please: drop them. Why so many?",
            "drop them. Why so many?",
        ),
        (
            "fix and retry\n\nuse data/new.csv instead\nit is complete",
            "use data/new.csv instead\nit is complete",
        ),
        ("skip cell (the API key is missing)", "(the API key is missing)"),
        (
            "continue notebook - `rm -rf $HOME` is not what I mean",
            "`rm -rf $HOME` is not what I mean",
        ),
    ],
)
def test_text_after_the_command_is_its_argument(prompt: str, message: str) -> None:
    command = parse_command(prompt)
    assert command and command[1] == message


# Sentences → command in a notebook stopped by a question while a cell runs.
READINGS = {
    "skip cell": """
        please skip that one
        skip this step, I don't need it
        skip it
        Skip it.
        skip that step
        ok, skip this cell please
        skip the failed step; the data is missing
        skip that one because the API key is missing
    """,
    "stop the cell": """
        please stop it
        stop it
        Stop it now!
        stop that
        cancel it please
        interrupt the cell
    """,
    "fix and retry": """
        please fix that, the column is unit_price
        fix it
        fix that: use the other file
        ok, fix this please
        retry it, the file is there now
    """,
    "continue notebook": """
        go on
        Go on.
        please go on
        ok, continue
        go ahead, the second one
        carry on
        proceed
        resume now
        yes, use it
        yes
        Yes, please do.
        use the column total
        take the second one
        no, use the mean
        keep the duplicates
        yes, drop the rows
        sure, use it
    """,
    "": """
        don't skip it
        do not skip that step
        should I skip this step?
        skip this step if it fails
        skip it when it fails again
        skip the intro
        skip steps 3 and 4
        I'd skip it
        stop it when it's done
        stop it after epoch 10
        stop it?
        don't stop it
        stop it from printing so much
        stop worrying
        why did you stop it?
        I'd fix that later
        fix the typo in README
        fix it later
        can you fix it?
        never fix that
        fix that if you can
        fix it first, then tell me why
        go on holiday
        go on until step 3
        should we go on?
        don't go on
        going on is fine
        how do I go on
        continue with the README
        no
        no, wait
        yes, but first tell me why
        what would you use?
        use it only if it exists
        I used the mean
        tell me what failed
        hello
        which columns are there
    """,
}


def test_unambiguous_sentences_are_parsed_as_commands() -> None:
    expected = {
        phrase: command
        for command, text in READINGS.items()
        for phrase in phrases(text)
    }
    read = {
        phrase: (
            parse_sentence(phrase, **STOPPED_BY_QUESTION, is_running=True) or ("", "")
        )[0]
        for phrase in expected
    }
    assert len(expected) >= 60
    assert read == expected


def test_sentence_is_a_command_only_with_a_stop_or_running_cell() -> None:
    sentences = [
        phrase
        for command, text in READINGS.items()
        for phrase in phrases(text)
        if command
    ]
    assert [
        phrase
        for phrase in sentences
        if parse_sentence(phrase, **NOT_STOPPED, is_running=False)
    ] == []
    assert parse_sentence("yes, use it", **STOPPED_BY_ERROR, is_running=True) is None
    assert parse_sentence("stop it", **STOPPED_BY_QUESTION, is_running=False) is None
    assert parse_sentence(
        "please fix that, the column is unit_price",
        **STOPPED_BY_ERROR,
        is_running=False,
    ) == (
        "fix and retry",
        "the column is unit_price",
    )
