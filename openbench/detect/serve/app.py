"""HTTP server of a detector: POST /predict, GET /health, GET /metrics, GET /. No path or URL of a request is read."""

import asyncio
import logging
import signal
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import uvicorn
from numpy.typing import NDArray
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from openbench.detect.serve.images import RefusedError, ServerLimits, pixels_of, size_of
from openbench.errors import ConfigError
from openbench.results.escape import one_line

logger = logging.getLogger(__name__)

PREDICT, HEALTH, METRICS, ABOUT = "/predict", "/health", "/metrics", "/"
_RAW = ("image/", "application/octet-stream")
_MULTIPART = "multipart/form-data"
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)

Pixels = NDArray[np.uint8]
PredictionRows = list[dict[str, Any]]
Predict = Callable[[Sequence[Pixels]], PredictionRows]
Answer = Callable[[Request], Awaitable[Response]]
_Waiting = tuple[Pixels, "asyncio.Future[dict[str, Any]]"]


class Batches:
    """A queue of images that the detector scores in a thread, one batch at a time.

    Args:
        predict: images → a row for each.
        limits: batch, batch_wait_ms, waiting.
        observe: receives the number of images of every batch.
    """

    def __init__(self, predict: Predict, limits: ServerLimits, observe: Callable[[int], object]):
        self._predict, self._limits, self._observe = predict, limits, observe
        self._queue: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "openbench-detector")

    @property
    def waiting(self) -> int:
        """The number of images that wait."""
        return len(self._queue)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Score images within the block."""
        task = asyncio.create_task(self._work())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self._thread.shutdown(cancel_futures=True)

    async def rows(self, images: Sequence[Pixels]) -> PredictionRows:
        """Return a row for each image of a request.

        Raises:
            RefusedError: too many images wait, or one cannot be scored.
        """
        if self.waiting + len(images) > self._limits.waiting:
            raise RefusedError(503, "busy", f"more than {self._limits.waiting} images wait — try again later")
        futures = [asyncio.get_running_loop().create_future() for _ in images]
        self._queue.extend(zip(images, futures, strict=True))
        self._arrived.set()
        try:
            return list(await asyncio.gather(*futures))
        finally:  # images of a cancelled request leave the queue
            for future in futures:
                future.cancel()
            self._queue = deque(entry for entry in self._queue if not entry[1].done())

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            if self.waiting < self._limits.batch:
                await asyncio.sleep(self._limits.batch_wait_ms / 1000)
            batch = [self._queue.popleft() for _ in range(min(self.waiting, self._limits.batch))]
            if not self._queue:
                self._arrived.clear()
            if batch:
                await self._score(batch)

    async def _score(self, batch: Sequence[_Waiting]) -> None:
        self._observe(len(batch))
        images = [image for image, _ in batch]
        try:
            rows = await asyncio.get_running_loop().run_in_executor(self._thread, self._predict, images)
            results = list(zip(batch, rows, strict=True))
        except Exception as error:
            if len(batch) > 1:  # one bad image must not fail the others
                for entry in batch:
                    await self._score([entry])
            elif not batch[0][1].done():
                refused = RefusedError(500, "not_scored", "the detector cannot score this image")
                refused.__cause__ = error
                batch[0][1].set_exception(refused)
            return
        for (_, future), row in results:
            if not future.done():
                future.set_result(row)


class Budget:
    """A number of pixels in memory at a time; a request waits for room. An image is let in whenever there is none.

    Args:
        limit: pixels.
    """

    def __init__(self, limit: int):
        self._limit, self._used = limit, 0
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def holding(self, pixels: int) -> AsyncIterator[None]:
        """Wait until there is room for so many pixels, and hold them within the block."""
        async with self._freed:
            await self._freed.wait_for(lambda: self._used == 0 or self._used + pixels <= self._limit)
            self._used += pixels
        try:
            yield
        finally:
            async with self._freed:
                self._used -= pixels
                self._freed.notify_all()


class Service:
    """The answers to requests.

    Args:
        predict: images → a row for each.
        about: the answer to `GET /`: the promise, the classes.
        limits: on requests.
    """

    def __init__(self, predict: Predict, about: Mapping[str, Any], limits: ServerLimits):
        self.limits, self.about, self.budget = limits, dict(about), Budget(limits.waiting_pixels)
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self.registry = CollectorRegistry()  # clients cannot add labels
        self.requests = Counter("openbench_requests", "HTTP requests.", ["path", "status"], registry=registry)
        self.images = Counter("openbench_images", "Images scored.", registry=registry)
        self.ood = Counter("openbench_ood", "Images called OOD at alpha.", registry=registry)
        self.waiting = Gauge("openbench_waiting_images", "Images that wait for the network.", registry=registry)
        self.seconds = Histogram("openbench_request_seconds", "Seconds of a prediction request.", registry=registry)
        sizes = Histogram("openbench_batch_images", "Images per forward pass.", buckets=_BATCH_SIZES, registry=registry)
        self.batches = Batches(predict, limits, sizes.observe)
        self.waiting.set_function(lambda: self.batches.waiting)

    def application(self) -> Starlette:
        """Return the application."""
        answers = {PREDICT: self._predictions, HEALTH: self._health, METRICS: self._metrics, ABOUT: self._about}
        post = {PREDICT: ["POST"]}
        routes = [Route(path, self._counted(path, answer), methods=post.get(path)) for path, answer in answers.items()]
        handlers: Any = {HTTPException: self._error, Exception: self._error}
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=lambda _: self.batches.running())

    def _counted(self, path: str, answer: Answer) -> Answer:
        async def counted(request: Request) -> Response:
            began, status = time.perf_counter(), 500
            try:
                response = await answer(request)
                status = response.status_code
                return response
            except RefusedError as refused:
                status = refused.status
                if status == 500:
                    logger.error(one_line(f"{refused}: {type(refused.__cause__).__name__}: {refused.__cause__}"))
                headers = {"Connection": "close"} if status in (408, 413) else {}  # the rest of the body is not read
                headers |= {"Retry-After": "1"} if status == 503 else {}
                return JSONResponse(refused.body, status, headers)
            except ClientDisconnect:
                status = 499
                return Response(status_code=400)
            finally:
                self.requests.labels(path, status).inc()
                if path == PREDICT:
                    self.seconds.observe(time.perf_counter() - began)

        return counted

    async def _predictions(self, request: Request) -> Response:
        uploads = await self._uploads(request)
        try:
            async with asyncio.timeout(self.limits.answer_s):
                rows = await self._rows(uploads)
        except TimeoutError:
            raise RefusedError(503, "too_slow", f"no answer within {self.limits.answer_s:g} seconds") from None
        self.images.inc(len(rows))
        self.ood.inc(sum(bool(row["is_ood"]) for row in rows))
        return JSONResponse({"predictions": rows})

    async def _rows(self, uploads: Sequence[bytes]) -> PredictionRows:
        limits = self.limits
        # In a thread: a header may have a million parts, and other requests are answered meanwhile.
        pixels = sum([await asyncio.to_thread(size_of, upload, limits) for upload in uploads])
        if pixels > max(limits.image_pixels, limits.waiting_pixels):
            raise RefusedError(413, "too_many_pixels", "the images have too many pixels in all")
        async with self.budget.holding(pixels):
            images = [await asyncio.to_thread(pixels_of, upload, limits) for upload in uploads]
            return await self.batches.rows(images)

    async def _uploads(self, request: Request) -> list[bytes]:
        """Return the files of a request: its body, or the parts of its form."""
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if not kind.startswith(_RAW) and kind != _MULTIPART:
            allowed = f"allowed as Content-Type: image/…, application/octet-stream, {_MULTIPART}"
            raise RefusedError(415, "unsupported_type", allowed)
        try:
            async with asyncio.timeout(self.limits.upload_s):
                body = await self._body(request)
        except TimeoutError:
            message = f"the request did not arrive within {self.limits.upload_s:g} seconds"
            raise RefusedError(408, "slow_upload", message) from None
        files = await self._parts(request, body) if kind == _MULTIPART else [body]
        if not files or not all(files):
            raise RefusedError(400, "no_image", "the request has no image, or an empty one")
        return files

    async def _body(self, request: Request) -> bytes:
        limit = self.limits.body_bytes
        too_large = RefusedError(413, "too_large", f"the request has more than {limit:,} bytes")
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared) > limit:
            raise too_large  # before it is sent: curl asks with Expect, and reads no answer while it sends
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise too_large
        return bytes(body)

    async def _parts(self, request: Request, body: bytes) -> list[bytes]:
        async def stream() -> AsyncGenerator[bytes, None]:
            yield body
            yield b""

        parser = MultiPartParser(request.headers, stream(), max_files=self.limits.images, max_fields=0)
        parser.spool_max_size = self.limits.body_bytes + 1  # no part is written to a disk
        try:
            form = await parser.parse()
        except Exception as error:  # MultiPartException, and KeyError or ValueError for invalid headers
            if isinstance(error, MultiPartException) and error.message.startswith("Too many files"):
                message = f"the form has more than {self.limits.images} images"
                raise RefusedError(413, "too_many_images", message) from error
            raise RefusedError(400, "not_a_form", "the body is not a valid form of files") from error
        try:
            return [await part.read() for _, part in form.multi_items() if not isinstance(part, str)]
        finally:
            await form.close()

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "waiting": self.batches.waiting})

    async def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    async def _about(self, _: Request) -> Response:
        return JSONResponse(self.about)

    async def _error(self, _: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            return JSONResponse(RefusedError(500, "internal", "an error of the server").body, 500)
        self.requests.labels("other", error.status_code).inc()
        allowed = f"allowed: POST {PREDICT}, GET {HEALTH}, GET {METRICS}, GET {ABOUT}"
        return JSONResponse(RefusedError(error.status_code, "no_such_place", allowed).body, error.status_code)


def serve(predict: Predict, about: Mapping[str, Any], limits: ServerLimits, address: tuple[str, int]) -> None:
    """Answer requests until SIGINT or SIGTERM, and finish those under way.

    Args:
        predict: images → a row for each.
        about: the answer to `GET /`.
        limits: on requests.
        address: host and port; port 0 takes a free one.

    Raises:
        ConfigError: the port cannot be listened on.
    """
    ipv6 = ":" in address[0]
    try:
        listener = socket.create_server(address, family=socket.AF_INET6 if ipv6 else socket.AF_INET)
    except OSError as error:
        what = f"cannot listen on {address[0]}, port {address[1]} ({error.strerror})"
        raise ConfigError(f"{what} — choose another: --port 0 takes a free one") from None
    idle, drain = (int(max(1, seconds)) for seconds in (limits.upload_s, limits.drain_s))
    most, bare = limits.connections, dict.fromkeys(("access_log", "server_header", "proxy_headers"), False)
    options: Any = {**bare, "timeout_keep_alive": idle, "timeout_graceful_shutdown": drain, "limit_concurrency": most}
    app = Service(predict, about, limits).application()
    config = uvicorn.Config(app, ws="none", lifespan="on", log_config=None, **options)
    host, port = listener.getsockname()[:2]
    logger.info(f"listening on http://{f'[{host}]' if ipv6 else host}:{port}")
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn stops at either, and then raises it again
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
