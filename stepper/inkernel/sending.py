"""What leaves the kernel: no message is dropped in a flood, and none is lost because a text can't be encoded."""

import zmq

from .base import guarded, shell

session = shell.kernel.session
given = session.pack
limit = {"bytes": 1 << 20}  # max_output_bytes: what is much more is not sent at all
original = {}


def begin():
    # ZeroMQ drops what is over 1,000 messages where the daemon reads more slowly than a cell writes.
    thread = shell.kernel.iopub_socket.io_thread
    thread.schedule(lambda: thread.socket.setsockopt(zmq.SNDHWM, 0))
    session.pack = pack
    original["send"] = send = session.send

    def sending(stream, kind, content=None, *others, **named):
        if kind in ("error", "execute_reply") and content and content.get("traceback"):
            content = guarded(bounded, content) or content
        return send(stream, kind, content, *others, **named)

    session.send = sending


def end():
    session.pack = given
    if "send" in original:
        session.send = original.pop("send")


def run(request):
    """A run begins: the daemon tells with it how much of its output it takes."""
    limit["bytes"] = int(request["metadata"].get("stepper") or limit["bytes"])


def bounded(error):
    """An error's content, its message and its traceback no longer than the notebook takes."""
    lines = "\n".join(error["traceback"])
    return {**error, "evalue": cut(error["evalue"]), "traceback": cut(lines).split("\n")}


def cut(text):
    half = limit["bytes"] // 2
    gone = len(text) - 2 * half
    left_out = f"\n… {gone:,} characters left out by stepper (max_output_bytes) …\n"
    return text[:half] + left_out + text[-half:] if gone > 0 else text


def pack(message):
    try:
        return given(message)
    except UnicodeEncodeError:  # a lone surrogate; on the thread that sends, it takes flush() ten seconds to give up
        return given(encodable(message))


def encodable(value):
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(name): encodable(part) for name, part in value.items()}
    return [encodable(part) for part in value] if isinstance(value, (list, tuple)) else value
