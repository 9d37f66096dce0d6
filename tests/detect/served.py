"""A server over a stand-in for a detector, in a copy of the tests' process."""

import http.client
import json
import re
import signal
import socket
import time
from contextlib import closing

from openbench.detect.serve.app import serve
from openbench.detect.serve.images import ServerLimits
from openbench.progress import messages
from tests.forked import Forked

LIMITS = ServerLimits(
    body_bytes=100_000,
    image_pixels=10_000,
    images=3,
    waiting=40,
    waiting_pixels=30_000,
    connections=60,
    upload_s=60.0,  # more than any request takes, whatever else the machine does
    answer_s=60.0,
    batch=8,
    batch_wait_ms=20.0,
    drain_s=5.0,
)
SLOW, BROKEN = 250, 251  # brightness of images that the stand-in for a detector treats in its own way
SECRET = "<script>alert('x')</script>"


def predict(images):
    """The mean brightness of each image as its score; the size of the batch beside it."""
    marks = {int(image[0, 0, 0]) for image in images}
    if BROKEN in marks:
        raise RuntimeError(SECRET)
    if SLOW in marks:
        time.sleep(0.3)
    return [
        {"score": float(image.mean()), "is_ood": bool(image.mean() > 200), "batch": len(images)} for image in images
    ]


def served(about, limits, port):
    """Serve until told to stop, and print the log."""
    with messages():
        serve(predict, about, limits, ("127.0.0.1", port))


class Server:
    """A server in a copy of this process."""

    def __init__(self, note, limits=LIMITS, port=0, about=None):
        self.note, self.stopped = note, False
        self.not_scored = []  # answers that say so; a list, since threads add to it
        self.process = Forked(lambda: served(about or {"promise": "none"}, limits, port), note)
        until = time.monotonic() + 600
        while not (
            found := re.search(r"listening on http://127.0.0.1:(\d+)", note.read_text() if note.exists() else "")
        ):
            assert self.process.runs, note.read_text()
            assert time.monotonic() < until
            time.sleep(0.02)
        self.port = int(found.group(1))

    def ask(self, method, path, body=None, kind="image/png", **headers):
        """Status and body of an answer; JSON as values."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)) as connection:
            connection.request(method, path, body, {"Content-Type": kind, **headers} if body is not None else headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status == 500 and "not_scored" in text:
                self.not_scored.append(text)
            return answer.status, json.loads(text) if answer.headers["Content-Type"] == "application/json" else text

    def raw(self, *parts, pause=0.0, seconds=60.0):
        """What comes back for bytes that are sent as they are, until the server closes."""
        with closing(socket.create_connection(("127.0.0.1", self.port), timeout=seconds)) as connection:
            found = b""
            try:
                for part in parts:
                    connection.sendall(part)
                    time.sleep(pause)
                while part := connection.recv(65536):
                    found += part
            except (ConnectionResetError, BrokenPipeError):
                pass
            return found

    def stop(self, number=signal.SIGTERM):
        """Send a signal, wait for the end, and return the exit code and what was printed."""
        self.process.kill(number)
        self.stopped = True
        return self.process.ended()
