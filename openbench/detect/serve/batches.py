"""Images of several requests in one forward pass: whoever comes within a few milliseconds goes together."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.detect.serve.images import Limits, RefusedError

Pixels = NDArray[np.uint8]
Rows = list[dict[str, Any]]
Predict = Callable[[Sequence[Pixels]], Rows]


class Batches:
    """Collects images and hands them to the detector, one batch at a time, in a thread of its own.

    Args:
        predict: images → a row for each.
        limits: batch, batch_wait_ms, waiting.
        seen: receives the number of images of every batch.
    """

    def __init__(self, predict: Predict, limits: Limits, seen: Callable[[int], None]):
        self._predict, self._limits, self._seen = predict, limits, seen
        self._waiting: deque[tuple[Pixels, asyncio.Future[dict[str, Any]]]] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "openbench-detector")
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Images that wait."""
        return len(self._waiting)

    def start(self) -> None:
        """Begin to work."""
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Stop; whoever still waits is told so."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(RefusedError(503, "stopping", "the server is stopping"))
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def rows(self, images: Sequence[Pixels]) -> Rows:
        """Return a row for each image of a request, once its batch was scored.

        Raises:
            RefusedError: too many images wait, or one cannot be scored.
        """
        if self.waiting + len(images) > self._limits.waiting:
            raise RefusedError(503, "busy", f"more than {self._limits.waiting} images wait — try again later")
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in images]
        self._waiting.extend(zip(images, futures, strict=True))
        self._arrived.set()
        try:
            return list(await asyncio.gather(*futures))
        finally:  # of a request that was given up, no image is scored any more
            for future in futures:
                future.cancel()
            self._waiting = deque(pair for pair in self._waiting if not pair[1].done())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            until = loop.time() + self._limits.batch_wait_ms / 1000
            while self.waiting < self._limits.batch and (left := until - loop.time()) > 0:
                self._arrived.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), left)
            batch: list[tuple[Pixels, asyncio.Future[dict[str, Any]]]] = []
            while self._waiting and len(batch) < self._limits.batch:
                image, future = self._waiting.popleft()
                if not future.done():
                    batch.append((image, future))
            if not self._waiting:
                self._arrived.clear()
            if batch:
                await self._score(batch)

    async def _score(self, batch: Sequence[tuple[Pixels, "asyncio.Future[dict[str, Any]]"]]) -> None:
        loop = asyncio.get_running_loop()
        self._seen(len(batch))
        try:
            rows = await loop.run_in_executor(self._thread, self._predict, [image for image, _ in batch])
            if len(rows) != len(batch):
                raise ValueError(f"{len(rows)} rows for {len(batch)} images")
        except asyncio.CancelledError:
            for _, future in batch:
                if not future.done():
                    future.set_exception(RefusedError(503, "stopping", "the server is stopping"))
            raise
        except Exception as error:
            if len(batch) > 1:  # one image must not take the others with it
                for pair in batch:
                    await self._score([pair])
                return
            failed = RefusedError(500, "not_scored", "the detector cannot score this image")
            failed.__cause__ = error
            if not batch[0][1].done():
                batch[0][1].set_exception(failed)
            return
        for (_, future), row in zip(batch, rows, strict=True):
            if not future.done():
                future.set_result(row)


class Budget:
    """So many pixels may be held at a time; who wants more waits until others are done. One image is always let in.

    Args:
        most: pixels.
    """

    def __init__(self, most: int):
        self._most, self._held = most, 0
        self._freed = asyncio.Condition()

    async def take(self, pixels: int) -> None:
        """Wait until there is room for an image."""
        async with self._freed:
            await self._freed.wait_for(lambda: self._held == 0 or self._held + pixels <= self._most)
            self._held += pixels

    async def give_back(self, pixels: int) -> None:
        """Make room again."""
        async with self._freed:
            self._held -= pixels
            self._freed.notify_all()
