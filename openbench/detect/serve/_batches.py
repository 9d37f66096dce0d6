"""Batches of images from several requests in one forward pass, and a budget of pixels."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.detect.serve.images import RefusedError, ServerLimits

Pixels = NDArray[np.uint8]
PredictionRows = list[dict[str, Any]]
Predict = Callable[[Sequence[Pixels]], PredictionRows]
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
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in images]
        self._queue.extend(zip(images, futures, strict=True))
        self._arrived.set()
        try:
            return list(await asyncio.gather(*futures))
        finally:  # images of a cancelled request leave the queue
            for future in futures:
                future.cancel()
            self._queue = deque(entry for entry in self._queue if not entry[1].done())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            until = loop.time() + self._limits.batch_wait_ms / 1000
            while self.waiting < self._limits.batch and (left := until - loop.time()) > 0:
                self._arrived.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), left)
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
