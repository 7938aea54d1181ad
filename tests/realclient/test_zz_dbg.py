from .test_workflow import *
import collections


def test_dbg(notebook, scripted_model, client, project):
    model = scripted_model(
        [read(notebook)], [insert(notebook, 'raise RuntimeError("STOP: drop the empty rows?")', "cell-0")]
    )
    for args in ([], ["--include-hook-events"]):
        first = client(model).prompt("Begin.", *args)
        print(
            "FIRST",
            args,
            [(e["type"], e.get("subtype"), e.get("hook_event"), e.get("session_id")) for e in first.events],
        )
        for c in ("/continue", "hello", "/fix", "continue notebook"):
            second = client(model).prompt(c, "--continue")
            print("SECOND", c, [(e["type"], e.get("subtype"), e.get("session_id")) for e in second.events])
    m = model.requests
    print(
        *[
            str(
                [
                    (
                        x["role"],
                        (
                            x["content"]
                            if isinstance(x["content"], str)
                            else [b.get("text", b.get("content", b.get("input"))) for b in x["content"]]
                        ),
                    )
                    for x in r
                ][-3:]
            )[:1500]
            for r in m
        ],
        sep="\n",
    )
    assert 0
