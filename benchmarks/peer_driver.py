"""A running MCP session with one peer: reads calls, prints their times and results.

    PEER'S_PYTHON benchmarks/peer_driver.py DISTRIBUTIONS COMMAND...

`peers.py` runs it with the Python of the peer's environment. It needs `mcp` there, 1.x
or 2.x, and nothing of stepper. The first line that it prints has the versions of
DISTRIBUTIONS (comma-separated). Each call and each result is a line of JSON.
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

# characters of a result that are passed on; a flood is only counted
MAX_TEXT = 20_000


async def call(
    session: ClientSession, tool: str, arguments: dict[str, Any], limit: float
) -> dict[str, Any]:
    """Return the result of a tool call and its milliseconds, call to parsed result.

    `failed` says why there is no result.
    """
    gc.collect()
    gc.disable()
    started_at = time.perf_counter()
    try:
        result = await asyncio.wait_for(session.call_tool(tool, arguments), limit)
        ms = (time.perf_counter() - started_at) * 1000
    except asyncio.TimeoutError:
        return {
            "ms": limit * 1000,
            "text": "",
            "size": 0,
            "failed": f"no answer in {limit:g} s",
        }
    except Exception as error:  # noqa: BLE001 - a broken session is a result, too
        ms = (time.perf_counter() - started_at) * 1000
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
    is_error = getattr(result, "is_error", getattr(result, "isError", False))
    return {
        "ms": ms,
        "text": text[:MAX_TEXT],
        "size": len(text),
        "failed": "an error" if is_error else "",
    }


async def main() -> None:
    """Process calls until standard input is closed."""
    names, command, *arguments = sys.argv[1:]
    server = StdioServerParameters(
        command=command, args=arguments, env=dict(os.environ)
    )
    async with (
        stdio_client(server) as (read_stream, write_stream),
        ClientSession(read_stream, write_stream) as session,
    ):
        await session.initialize()
        print(
            json.dumps({name: version(name) for name in names.split(",")}), flush=True
        )
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await call(session, **json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
