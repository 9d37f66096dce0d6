"""The server as its clients meet it: over sockets, with what is sound, damaged, too large, too slow, and cut off.

Last its queue and its budget of pixels, without sockets.
"""

import asyncio
import gc
import http.client
import io
import json
import re
import signal
import socket
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from PIL.WebPImagePlugin import WebPImageFile

from openbench.detect.serve.app import Batches, Budget, Service, serve
from openbench.detect.serve.images import ServerLimits
from openbench.errors import ConfigError
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


def served(limits):
    """Serve until told to stop, and print the log."""
    with messages():
        serve(predict, {"promise": "none"}, limits, ("127.0.0.1", 0))


class Server:
    """A server over a stand-in for a detector, in a copy of this process that ends with the `with` block.

    Args:
        note: the file of its log.
        limits: on requests.
    """

    def __init__(self, note, limits=LIMITS):
        self.not_scored = []  # answers that say so; a list, since threads add to it
        self.said = None  # exit code and log, once it has ended
        self.process = Forked(lambda: served(limits), note)
        while not (
            found := re.search(r"listening on http://127.0.0.1:(\d+)", note.read_text() if note.exists() else "")
        ):
            assert self.process.runs, note.read_text()
            time.sleep(0.02)
        self.port = int(found.group(1))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.said is None:
            self.stop(signal.SIGKILL)

    def ask(self, method, path, body=None, kind="image/png", **headers):
        """Status and body of an answer; JSON as values."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)) as connection:
            connection.request(method, path, body, {"Content-Type": kind, **headers} if body is not None else headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status == 500 and "not_scored" in text:
                self.not_scored.append(text)
            return answer.status, json.loads(text) if answer.headers["Content-Type"] == "application/json" else text

    def raw(self, *parts):
        """What comes back for bytes that are sent as they are, until the server closes."""
        found, place = b"", ("127.0.0.1", self.port)
        with (
            suppress(ConnectionResetError, BrokenPipeError),
            socket.create_connection(place, timeout=60.0) as connection,
        ):
            for part in parts:
                connection.sendall(part)
            while part := connection.recv(65536):
                found += part
        return found

    def stop(self, number=signal.SIGTERM):
        """Send a signal, wait for the end, and return the exit code and what was printed."""
        self.process.kill(number)
        self.said = self.process.ended()
        return self.said


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server") / "note") as made:
        yield made
        code, said = made.stop()
    assert code == 0, said
    assert said.count(f"the detector cannot score this image: RuntimeError: {SECRET}\n") == len(made.not_scored)


def encoded(brightness=100, size=(8, 8), form="PNG"):
    stream = io.BytesIO()
    Image.new("RGB", size, (brightness,) * 3).save(stream, form)
    return stream.getvalue()


def form_of(*files, names=None):
    """A multipart body and its content type."""
    boundary = "b0undary"
    parts = b""
    for at, content in enumerate(files):
        name = (names or {}).get(at, f'name="f{at}"; filename="{at}.png"')
        parts += f"--{boundary}\r\nContent-Disposition: form-data; {name}\r\n\r\n".encode() + content + b"\r\n"
    return parts + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "BMP"])
def test_an_image_is_answered_with_its_row(server, form):
    assert server.ask("GET", "/") == (200, {"promise": "none"})
    status, found = server.ask("POST", "/predict", encoded(100, form=form), f"image/{form.lower()}")
    assert status == 200
    assert [round(row["score"]) for row in found["predictions"]] == [100]


def test_the_files_of_a_form_are_answered_in_their_order(server):
    status, found = server.ask("POST", "/predict", *form_of(encoded(10), encoded(220), encoded(30)))
    assert status == 200
    assert [(row["score"], row["is_ood"]) for row in found["predictions"]] == [(10, False), (220, True), (30, False)]


def test_a_long_image_and_many_scans_within_the_limits_are_answered(server):
    status, found = server.ask("POST", "/predict", *form_of(encoded(size=(1, 20)), many_scans(100)))
    assert (status, len(found["predictions"])) == (200, 2)


def test_requests_at_the_same_time_share_a_batch(server):
    with ThreadPoolExecutor(6) as clients:
        found = clients.map(lambda _: server.ask("POST", "/predict", encoded(5))[1], range(6))
    assert 1 < max(answer["predictions"][0]["batch"] for answer in found) <= LIMITS.batch


def bomb(width, height):
    """A PNG that says it is large, and whose few bytes become as many pixels."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" * 1_000_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def many_scans(count):
    """A JPEG that paints the same small image again and again: a few bytes, and a whole pass of the decoder each."""
    stream = io.BytesIO()
    Image.new("L", (8, 8)).save(stream, "JPEG", progressive=True)
    sound = stream.getvalue()
    last = sound.rindex(b"\xff\xda")
    before = sound.count(b"\xff\xda") - 1
    return sound[:last] + sound[last:-2] * (count - before) + sound[-2:]


def encoded_deep():
    stream = io.BytesIO()
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(stream, "PNG")
    return stream.getvalue()


GOOD = encoded()
REFUSED = {
    "nothing": (b"", "image/png", 400, "no_image"),
    "text": (SECRET.encode(), "image/png", 400, "not_an_image"),
    "half an image": (encoded(size=(90, 90), form="BMP")[:2000], "image/bmp", 400, "not_an_image"),
    "a damaged image": (GOOD[:40] + bytes(20) + GOOD[60:], "image/png", 400, "not_an_image"),
    "another format": (encoded(form="GIF"), "image/gif", 400, "not_an_image"),
    "a bomb": (bomb(30_000, 30_000), "image/png", 413, "too_many_pixels"),
    "a huge bomb": (bomb(2**31 - 1, 2**31 - 1), "image/png", 413, "too_many_pixels"),
    "too many pixels": (encoded(size=(101, 100)), "image/png", 413, "too_many_pixels"),
    "16-bit grey": (encoded_deep(), "image/png", 400, "too_deep"),
    "a line of pixels": (encoded(size=(1, 21)), "image/png", 413, "too_elongated"),
    "too many scans": (many_scans(101), "image/jpeg", 413, "too_many_scans"),
    "too many bytes": (bytes(100_001), "image/png", 413, "too_large"),
    "a URL": (b'{"url": "file:///etc/passwd"}', "application/json", 415, "unsupported_type"),
    "a type with a line break": (GOOD, SECRET, 415, "unsupported_type"),
    "no sound form": (SECRET.encode(), "multipart/form-data; boundary=b", 400, "not_a_form"),
    "a form without a boundary": (GOOD, "multipart/form-data", 400, "not_a_form"),
    "a form with a text": (*form_of(b"/etc/passwd", names={0: 'name="path"'}), 400, "not_a_form"),
    "too many files": (*form_of(*[GOOD] * 4), 413, "too_many_images"),
    "an empty file": (*form_of(GOOD, b""), 400, "no_image"),
    "one bad file": (*form_of(GOOD, b"abc"), 400, "not_an_image"),
    "one that cannot be scored": (encoded(BROKEN), "image/png", 500, "not_scored"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_answered_is_refused_without_repeating_it(server, name):
    body, kind, status, code = REFUSED[name]
    found, answer = server.ask("POST", "/predict", body, kind, **{"X-Name": SECRET})
    assert (found, answer["error"]["code"]) == (status, code)
    text = json.dumps(answer)
    assert not any(part in text for part in ("script", "passwd", "Error", "/work", "openbench", "0x"))


def test_a_slow_upload_and_an_answer_that_takes_too_long_are_given_up(tmp_path):
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: image/png\r\nContent-Length: 100\r\n\r\n"
    with Server(tmp_path / "note", replace(LIMITS, upload_s=1.0, answer_s=0.05)) as made:
        assert made.raw(head, b"a").split(b" ")[1] == b"408"
        assert made.raw(b"\x16\x03\x01 nonsense\r\n\r\n").split(b" ")[1] == b"400"
        found, answer = made.ask("POST", "/predict", encoded(SLOW))
        assert (found, answer["error"]["code"]) == (503, "too_slow")
        assert made.stop()[0] == 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/../../etc/passwd", 404), ("GET", "/predict", 405), ("POST", "/health", 405), ("GET", "/%00", 404)],
)
def test_other_places_say_what_there_is(server, method, path, status):
    found, answer = server.ask(method, path)
    assert (found, answer["error"]["code"]) == (status, "no_such_place")
    assert "passwd" not in json.dumps(answer)


def test_a_body_without_a_declared_length_is_cut_off(server):
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"4000\r\n" + bytes(0x4000) + b"\r\n"
    assert b" 413 " in server.raw(head, *[chunk] * 8).split(b"\r\n")[0]


def test_a_body_that_is_declared_too_large_is_refused_before_it_is_sent(server):
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: image/png\r\nExpect: 100-continue\r\n"
    assert server.raw(head + b"Content-Length: 100001\r\n\r\n").startswith(b"HTTP/1.1 413 ")


def samples(text):
    """Prometheus' text format: {name with labels: value}, every line being a comment or a sample."""
    line = re.compile(r'([a-z_]+(?:\{[a-z]+="[^"\\\n]*"(?:,[a-z]+="[^"\\\n]*")*\})?) ([0-9.e+-]+|\+Inf)')
    rows = [row for row in text.splitlines() if not re.fullmatch(r"# (HELP|TYPE) [a-z_]+ .+", row)]
    return {line.fullmatch(row).group(1): float(line.fullmatch(row).group(2)) for row in rows}


def test_metrics_count_what_happened(server):
    before = samples(server.ask("GET", "/metrics")[1])
    server.ask("POST", "/predict", *form_of(encoded(10), encoded(220)))
    server.ask("POST", "/predict", b"abc")
    server.ask("GET", f"/{'x' * 50}")
    after = samples(server.ask("GET", "/metrics")[1])
    grown = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name)}
    expected = {
        'openbench_requests_total{path="/predict",status="200"}': 1,
        'openbench_requests_total{path="/predict",status="400"}': 1,
        'openbench_requests_total{path="/metrics",status="200"}': 1,
        'openbench_requests_total{path="other",status="404"}': 1,
        "openbench_images_total": 2,
        "openbench_ood_total": 1,
        "openbench_request_seconds_count": 2,
        "openbench_batch_images_count": 1,
        "openbench_batch_images_sum": 2,
        'openbench_batch_images_bucket{le="2.0"}': 1,
        'openbench_batch_images_bucket{le="+Inf"}': 1,
    }
    assert grown.items() >= expected.items()
    assert 'openbench_batch_images_bucket{le="1.0"}' not in grown
    assert not any("xx" in name for name in after)


def test_what_cannot_wait_is_turned_away_and_the_server_recovers(server):
    def client(count):
        try:
            return server.ask("POST", "/predict", *form_of(*[encoded(SLOW)] * count))[0]
        except (ConnectionError, http.client.HTTPException):
            return None

    with ThreadPoolExecutor(40) as clients:
        found = list(clients.map(client, [3] * 40))
    assert set(found) <= {200, 503}
    assert found.count(200) > 0
    assert found.count(503) > 0
    assert server.ask("POST", "/predict", GOOD)[0] == 200
    assert server.ask("GET", "/health") == (200, {"status": "ok", "waiting": 0})


def test_told_to_stop_under_load_it_answers_what_it_took(tmp_path):
    taken = []

    def client(_):
        with suppress(OSError, http.client.HTTPException):  # not taken yet
            taken.append(made.ask("POST", "/predict", encoded(SLOW))[0])

    with Server(tmp_path / "note") as made, ThreadPoolExecutor(8) as clients:
        asked = clients.map(client, range(8))
        while not samples(made.ask("GET", "/metrics")[1])["openbench_batch_images_count"]:
            time.sleep(0.01)
        code, said = made.stop()
        list(asked)
    assert code == 0, said
    assert set(taken) == {200}


def test_a_taken_port_is_one_message(server):
    with pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1, port {server.port} .* — choose"):
        serve(predict, {}, LIMITS, ("127.0.0.1", server.port))


def test_an_image_that_cannot_be_scored_takes_no_other_with_it(server):
    with ThreadPoolExecutor(3) as clients:
        found = list(clients.map(lambda b: server.ask("POST", "/predict", encoded(b))[0], (20, BROKEN, 40)))
    assert found == [200, 500, 200]
    assert server.not_scored


def to_the_end(act):
    """Run a coroutine in a thread of its own: in this one, the browser of other tests may keep a loop running."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, act).result()


def test_a_spent_budget_of_pixels_lets_others_wait():
    async def budget():
        pixels = Budget(10)
        async with pixels.holding(25):  # one image is always let in
            pass

        async def later():
            async with pixels.holding(5):
                pass

        async with pixels.holding(6):
            waits = asyncio.create_task(later())
            await asyncio.sleep(0.01)
            assert not waits.done()
        await asyncio.wait_for(waits, 1)

    to_the_end(budget())


def test_what_waits_for_room_has_no_decoder():
    alive = []

    @asynccontextmanager
    async def holding(pixels):
        alive.extend(found for found in gc.get_objects() if type(found) is WebPImageFile)
        yield

    async def request():
        service = Service(lambda images: [{}] * len(images), {}, ServerLimits())
        service.budget.holding = holding
        async with service.batches.running():
            assert await service._rows([encoded(form="WEBP")] * 2) == [{}, {}]

    to_the_end(request())
    assert not alive


def test_images_of_a_cancelled_request_leave_the_queue_at_once():
    async def cancelled():
        over = threading.Event()
        batches = Batches(
            lambda images: [{}] * len(images) if over.wait(10) else [], ServerLimits(batch=8), lambda count: None
        )
        async with batches.running():
            image = np.zeros((2, 2, 3), np.uint8)
            first = asyncio.create_task(batches.rows([image]))
            await asyncio.sleep(0.1)  # it is being scored
            waits = asyncio.create_task(batches.rows([image] * 5))
            await asyncio.sleep(0.01)
            assert batches.waiting == 5
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
            assert batches.waiting == 0
            over.set()
            assert await first == [{}]

    to_the_end(cancelled())
