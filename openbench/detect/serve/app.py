"""The server: four addresses, each answered from what is in memory; no path and no URL is read from a request."""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
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

from openbench.detect.serve.batches import Batches, Budget, Pixels, Predict, Rows
from openbench.detect.serve.images import Limits, RefusedError, pixels_of, size_of
from openbench.errors import ConfigError
from openbench.results.escape import one_line

logger = logging.getLogger(__name__)

PREDICT, HEALTH, METRICS, ABOUT = "/predict", "/health", "/metrics", "/"
_RAW = ("image/", "application/octet-stream")
_MULTIPART = "multipart/form-data"
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_DECODERS = 2  # threads; decoding is let in by the budget of pixels


class Counts:
    """Everything that is counted; labels have the server's own values only, so that nobody can make them many."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        own = self.registry = CollectorRegistry()
        self.requests = Counter("openbench_requests", "HTTP requests.", ["path", "status"], registry=own)
        self.images = Counter("openbench_images", "Images scored.", registry=own)
        self.ood = Counter("openbench_ood", "Images called OOD at alpha.", registry=own)
        self.waiting = Gauge("openbench_waiting_images", "Images that wait for the network.", registry=own)
        self.seconds = Histogram(
            "openbench_request_seconds", "Seconds from the beginning of a prediction to its answer.", registry=own
        )
        self.batches = Histogram(
            "openbench_batch_images", "Images per forward pass.", buckets=_BATCH_SIZES, registry=own
        )


class Service:
    """What answers requests.

    Args:
        predict: images → a row for each.
        about: what `GET /` answers: the promise, the classes.
        limits: on what is taken.
    """

    def __init__(self, predict: Predict, about: Mapping[str, Any], limits: Limits):
        self.limits, self.about, self.counts = limits, dict(about), Counts()
        self.stopping = False
        self._predict = predict

    def application(self) -> Starlette:
        """Return the application to be served."""
        routes = [
            Route(PREDICT, self._counted(PREDICT, self._answer), methods=["POST"]),
            Route(HEALTH, self._counted(HEALTH, self._health)),
            Route(METRICS, self._counted(METRICS, self._metrics)),
            Route(ABOUT, self._counted(ABOUT, self._told)),
        ]
        handlers: Any = {HTTPException: self._no_such_place, Exception: self._broken}
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=self._life)

    @asynccontextmanager
    async def _life(self, _: Starlette) -> AsyncIterator[None]:
        self.batches = Batches(self._predict, self.limits, self.counts.batches.observe)
        self.budget = Budget(self.limits.waiting_pixels)
        self._decoders = ThreadPoolExecutor(_DECODERS, "openbench-decoder")
        self.batches.start()
        try:
            yield
        finally:
            await self.batches.stop()
            self._decoders.shutdown(wait=True, cancel_futures=True)

    def _counted(
        self, path: str, answer: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def counted(request: Request) -> Response:
            began, status = time.perf_counter(), 500
            try:
                response = await answer(request)
                status = response.status_code
                return response
            except RefusedError as refused:
                status = refused.status
                if status == 500:
                    logger.error(one_line(f"{refused.told}: {type(refused.__cause__).__name__}: {refused.__cause__}"))
                headers = {"Connection": "close"} if status in (408, 413) else {}  # the rest of the body is not read
                headers |= {"Retry-After": "1"} if status == 503 else {}
                return JSONResponse(refused.body, status, headers)
            except ClientDisconnect:
                status = 499
                return Response(status_code=400)
            finally:
                self.counts.requests.labels(path, status).inc()
                if path == PREDICT:
                    self.counts.seconds.observe(time.perf_counter() - began)

        return counted

    async def _answer(self, request: Request) -> Response:
        uploads = await self._uploads(request)
        try:
            async with asyncio.timeout(self.limits.answer_s):
                rows = await self._rows(uploads)
        except TimeoutError:
            raise RefusedError(503, "too_slow", f"no answer within {self.limits.answer_s:g} seconds") from None
        self.counts.images.inc(len(rows))
        self.counts.ood.inc(sum(bool(row["is_ood"]) for row in rows))
        return JSONResponse({"predictions": rows})

    async def _rows(self, uploads: Sequence[bytes]) -> Rows:
        loop, limits = asyncio.get_running_loop(), self.limits
        # A header may have a million parts: whoever else asks is answered meanwhile.
        total = sum([await loop.run_in_executor(self._decoders, size_of, upload, limits) for upload in uploads])
        if total > max(limits.image_pixels, limits.waiting_pixels):
            raise RefusedError(413, "too_many_pixels", "the images have too many pixels in all")
        await self.budget.take(total)
        try:
            images: list[Pixels] = [await loop.run_in_executor(self._decoders, pixels_of, upload) for upload in uploads]
            return await self.batches.rows(images)
        finally:
            await self.budget.give_back(total)

    async def _uploads(self, request: Request) -> list[bytes]:
        """The files of a request: its body, or the parts of its form."""
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if not kind.startswith(_RAW) and kind != _MULTIPART:
            raise RefusedError(
                415, "unsupported_type", f"allowed as Content-Type: image/…, application/octet-stream, {_MULTIPART}"
            )
        try:
            async with asyncio.timeout(self.limits.upload_s):
                body = await self._body(request)
        except TimeoutError:
            told = f"the request did not arrive within {self.limits.upload_s:g} seconds"
            raise RefusedError(408, "slow_upload", told) from None
        found = await self._parts(request, body) if kind == _MULTIPART else [body]
        if not found or not all(found):
            raise RefusedError(400, "no_image", "the request holds no image, or an empty one")
        return found

    async def _body(self, request: Request) -> bytes:
        most = self.limits.body_bytes
        too_large = RefusedError(413, "too_large", f"the request has more than {most:,} bytes")
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared) > most:
            raise too_large
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise too_large
        return bytes(body)

    async def _parts(self, request: Request, body: bytes) -> list[bytes]:
        async def stream() -> AsyncGenerator[bytes, None]:
            yield body
            yield b""

        parser = MultiPartParser(request.headers, stream(), max_files=self.limits.images, max_fields=0)
        parser.spool_max_size = self.limits.body_bytes + 1  # no part is ever written to a disk
        try:
            form = await parser.parse()
        except Exception as error:  # MultiPartException, and KeyError or ValueError for headers that are not sound
            if isinstance(error, MultiPartException) and error.message.startswith("Too many files"):
                told = f"the form has more than {self.limits.images} images"
                raise RefusedError(413, "too_many_images", told) from error
            raise RefusedError(400, "not_a_form", "the body is not a sound form whose parts are files") from error
        try:
            return [await part.read() for _, part in form.multi_items() if not isinstance(part, str)]
        finally:
            await form.close()

    async def _health(self, _: Request) -> Response:
        if self.stopping:
            raise RefusedError(503, "stopping", "the server is stopping")
        return JSONResponse({"status": "ok", "waiting": self.batches.waiting})

    async def _metrics(self, _: Request) -> Response:
        self.counts.waiting.set(self.batches.waiting)
        return Response(generate_latest(self.counts.registry), media_type=CONTENT_TYPE_LATEST)

    async def _told(self, _: Request) -> Response:
        return JSONResponse(self.about)

    async def _no_such_place(self, _: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        self.counts.requests.labels("other", status).inc()
        told = f"allowed: POST {PREDICT}, GET {HEALTH}, GET {METRICS}, GET {ABOUT}"
        return JSONResponse(RefusedError(status, "no_such_place", told).body, status)

    async def _broken(self, _: Request, __: Exception) -> Response:
        return JSONResponse(RefusedError(500, "internal", "an error of the server").body, 500)


def serve(predict: Predict, about: Mapping[str, Any], limits: Limits, address: tuple[str, int]) -> None:
    """Answer requests until SIGINT or SIGTERM; requests under way are then finished.

    Args:
        predict: images → a row for each.
        about: what `GET /` answers.
        limits: on what is taken.
        address: host and port; port 0 takes a free one.

    Raises:
        ConfigError: the port cannot be listened on.
    """
    service = Service(predict, about, limits)
    config = uvicorn.Config(
        service.application(),
        host=address[0],
        port=address[1],
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=int(max(1, limits.upload_s)),
        timeout_graceful_shutdown=int(max(1, limits.drain_s)),
    )
    try:
        asyncio.run(_Server(config, service).serve())
    except SystemExit:
        raise ConfigError(
            f"cannot listen on {address[0]}, port {address[1]} — it may be taken — choose another: "
            "--port 0 takes a free one"
        ) from None


class _Server(uvicorn.Server):
    """Says where it listens, and ends as a command does: a signal makes it finish and return."""

    def __init__(self, config: uvicorn.Config, service: Service):
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            logger.info(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}")

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        def stop(number: int, frame: Any) -> None:
            self._service.stopping = True
            self.force_exit = self.should_exit and number == signal.SIGINT  # Ctrl-C twice
            self.should_exit = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
