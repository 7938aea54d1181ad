"""What children and C code write to the descriptors 1 and 2 belongs to the run that they were started in.

Each run has pipes of its own: a child keeps those that it was started with. What comes after the run's end is read,
that the child goes on, and dropped.
"""

from __future__ import annotations

import codecs
import contextlib
import faulthandler
import fcntl
import os
import selectors
import struct
import sys
import termios
import threading

from . import threads
from .base import guarded

CHUNK, ECHOED = 1 << 16, 4 << 20
taken = {}  # descriptor → Taken
waiting = selectors.DefaultSelector()
reading = threading.Lock()  # whoever reads also publishes before another one reads


class Taken:
    """A descriptor that leads to the pipe of the present run."""

    def __init__(self, number, stream):
        self.number, self.stream = number, stream
        kept = getattr(stream, "_original_stdstream_copy", None)
        self.kept = os.dup(number) if kept is None else kept  # where it led to, and what is written still goes
        self.began = guarded(os.lseek, self.kept, 0, os.SEEK_CUR) or 0
        stream._should_watch = False  # its own pipe gets nothing more: closing must not wait for that
        self.pipe = None

    def renew(self, header):
        if self.pipe is not None and not same(self.number, self.pipe.inode):
            return  # a cell has put something else there
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.dup2(writer, self.number)
        os.close(writer)
        self.pipe = Pipe(reader, self, header)
        waiting.register(reader, selectors.EVENT_READ, self.pipe)

    def echo(self, data):
        """Write it where the descriptor led to, too: a file of the last words, which must not grow for ever."""
        with contextlib.suppress(OSError):
            os.write(self.kept, data)
            if os.lseek(self.kept, 0, os.SEEK_CUR) > self.began + ECHOED:
                os.ftruncate(self.kept, self.began)
                os.lseek(self.kept, self.began, os.SEEK_SET)


class Pipe:
    def __init__(self, reader, taken, header):
        self.reader, self.taken, self.header = reader, taken, header
        self.inode = os.fstat(reader).st_ino
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, size):
        """Take what is there, at most `size` bytes; return how much, 0 at the end."""
        data = os.read(self.reader, size)
        if data and threads.late(self.header):
            threads.drop(self.header, len(data))
        elif data:
            self.taken.echo(data)
            self.publish(self.decoder.decode(data))
        return len(data)

    def publish(self, text):
        stream = self.taken.stream
        with stream._buffer_lock:
            stream._buffers[frozenset(self.header.items())].write(text)
        stream._schedule_flush()

    def close(self):
        self.publish(self.decoder.decode(b"", True))
        waiting.unregister(self.reader)
        os.close(self.reader)


def same(number, inode):
    try:
        return os.fstat(number).st_ino == inode
    except OSError:
        return True  # a cell has closed it


def begin():
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        taken[number] = Taken(number, stream)
    faulthandler.enable(taken[2].kept, all_threads=False)  # a pipe is read by nobody once the kernel has crashed
    threading.Thread(target=serve, name="stepper", daemon=True).start()


def end():
    for number, one in taken.items():
        os.dup2(one.kept, number)
    taken.clear()


def run(header):
    """A run begins: what is started from now on has new pipes."""
    for one in taken.values():
        guarded(one.renew, header)


def drain():
    """Publish what was written by now."""
    for one in taken.values():
        if one.pipe is not None:
            with reading:
                left = struct.unpack("i", fcntl.ioctl(one.pipe.reader, termios.FIONREAD, b"1234"))[0]
                while left > 0:
                    left -= one.pipe.read(min(left, CHUNK))


def serve():
    while True:
        try:
            ready = waiting.select()
        except (OSError, ValueError):  # a cell has closed it
            return
        for found, _ in ready:
            with reading:
                guarded(step, found.data)


def step(pipe):
    try:
        if pipe.read(CHUNK) == 0:
            pipe.close()
    except BlockingIOError:  # somebody else has read it meanwhile
        pass
