"""Running the application: on one port, with limits on idle and slow connections, until it is told to stop."""

import asyncio
import signal
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from openbench.detect.serve.app import Service
from openbench.detect.serve.batches import Predict
from openbench.detect.serve.limits import Limits
from openbench.errors import ConfigError
from openbench.say import Say


def serve(predict: Predict, about: Mapping[str, Any], limits: Limits, address: tuple[str, int], say: Say) -> None:
    """Answer requests until SIGINT or SIGTERM; requests under way are then finished.

    Args:
        predict: images → a row for each.
        about: what `GET /` answers.
        limits: on what is taken.
        address: host and port; port 0 takes a free one.
        say: is told the address.

    Raises:
        ConfigError: the port cannot be listened on.
    """
    service = Service(predict, about, limits, say)
    config = uvicorn.Config(
        service.application(),
        host=address[0],
        port=address[1],
        http=protocol(limits.upload_s),
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
    server = _Server(config, service, say)
    try:
        asyncio.run(server.serve())
    except SystemExit:
        raise ConfigError(
            f"cannot listen on {address[0]}, port {address[1]} — it may be taken — choose another: "
            "--port 0 takes a free one"
        ) from None


class _Server(uvicorn.Server):
    """Says where it listens, and ends as a command does: a signal makes it finish and return."""

    def __init__(self, config: uvicorn.Config, service: Service, say: Say):
        super().__init__(config)
        self._service, self._say = service, say

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._say(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}")

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


def protocol(seconds: float) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a limit on the time in which headers must arrive, and answers be taken.

    Args:
        seconds: from when the connection is made, or from the first byte after an answer; and from when the client no
            longer reads.
    """

    class Timed(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            self.resume_writing()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

        def _watch(self) -> None:
            """Time what has begun to arrive and is not a request yet; leave off once it is."""
            under_way = self.cycle is not None and not self.cycle.response_complete
            if under_way:
                self._cancel()
            elif self._timer is None and not self.transport.is_closing():
                self._timer = self.loop.call_later(seconds, self._close)

        def _cancel(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _close(self) -> None:
            self._timer = None
            if not self.transport.is_closing():
                self.transport.close()

    return Timed
