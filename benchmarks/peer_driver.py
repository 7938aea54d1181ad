"""A living MCP session with one peer: a call a line on standard input, its time and result on standard output.

    PEER'S_PYTHON benchmarks/peer_driver.py DISTRIBUTIONS COMMAND...

Run by `peers.py` with the Python of the peer's own environment: it needs `mcp` there, 1.x or 2.x, and nothing of
stepper. DISTRIBUTIONS (comma-separated) are those whose versions the first line tells.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

# characters of a result that are handed on: a flood is counted, not repeated
SHOWN = 20_000


async def call(
    session: ClientSession, tool: str, arguments: dict[str, Any], limit: float
) -> dict[str, Any]:
    """Return what a tool call gave and its milliseconds, call to parsed result; `failed` tells why it gave nothing."""
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    try:
        result = await asyncio.wait_for(session.call_tool(tool, arguments), limit)
        ms = (time.perf_counter() - began) * 1000
    except asyncio.TimeoutError:
        return {
            "ms": limit * 1000,
            "text": "",
            "size": 0,
            "failed": f"no answer in {limit:g} s",
        }
    except Exception as error:  # noqa: BLE001 - a session that broke is a result too
        ms = (time.perf_counter() - began) * 1000
        return {
            "ms": ms,
            "text": "",
            "size": 0,
            "failed": f"{type(error).__name__}: {error}",
        }
    finally:
        gc.enable()
    text = "".join(getattr(block, "text", "") for block in result.content)
    # mcp 2, mcp 1
    erred = getattr(result, "is_error", getattr(result, "isError", False))
    return {
        "ms": ms,
        "text": text[:SHOWN],
        "size": len(text),
        "failed": "an error" if erred else "",
    }


async def main() -> None:
    """Serve calls until standard input ends."""
    names, command, *arguments = sys.argv[1:]
    server = StdioServerParameters(
        command=command, args=arguments, env=dict(os.environ)
    )
    async with (
        stdio_client(server) as (reading, writing),
        ClientSession(reading, writing) as session,
    ):
        await session.initialize()
        print(
            json.dumps({name: version(name) for name in names.split(",")}), flush=True
        )
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await call(session, **json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
