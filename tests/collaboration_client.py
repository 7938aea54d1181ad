"""A user's JupyterLab in a collaboration room, without a browser.

test_jupyterlab.py runs it in Jupyter's environment. Arguments: the server's URL, its
token, and the path of the notebook on the server. Standard input has one JSON object
per line: `{"type": TEXT, "cell": ID}` appends text to a cell's source, and `{}`
changes nothing. Each response has the shared document and the hash of the saved file,
if the document was saved.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from urllib.parse import quote

from jupyter_ydoc import YNotebook
from pycrdt import Provider
from tornado.httpclient import AsyncHTTPClient
from tornado.websocket import WebSocketClientConnection, websocket_connect


class Channel:
    """A tornado websocket with pycrdt's interface; skips messages that are not Yjs."""

    def __init__(self, socket: WebSocketClientConnection, path: str) -> None:
        self.socket, self.path = socket, path

    def __aiter__(self) -> Channel:
        return self

    async def __anext__(self) -> bytes:
        return await self.recv()

    async def send(self, message: bytes) -> None:
        await self.socket.write_message(message, binary=True)

    async def recv(self) -> bytes:
        while True:
            message = await self.socket.read_message()
            if message is None:
                raise StopAsyncIteration
            if isinstance(message, bytes) and message[0] in (0, 1):
                return message


async def main(url: str, token: str, path: str) -> None:
    """Keep the document open until the end of standard input."""
    session = await AsyncHTTPClient().fetch(
        f"{url}api/collaboration/session/{quote(path)}",
        method="PUT",
        headers={"Authorization": f"token {token}"},
        body=json.dumps({"format": "json", "type": "notebook"}),
    )
    parsed_json = json.loads(session.body)
    room = f"json:notebook:{parsed_json['fileId']}"
    address = f"ws{url[4:]}api/collaboration/room/{room}?sessionId={parsed_json['sessionId']}&token={token}"
    document = YNotebook()
    async with Provider(
        document.ydoc, Channel(await websocket_connect(address), room)
    ) as provider:
        await provider.synced.wait()
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            data: dict[str, Any] = json.loads(line)
            for cell in document.ycells:
                if "type" in data and cell["id"] == data["cell"]:
                    text = cell["source"]
                    text += data["type"]
            sys.stdout.write(
                json.dumps({"notebook": document.get(), "saved": document.hash}) + "\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
