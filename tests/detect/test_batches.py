"""The queue of a server and its budget of pixels, without sockets."""

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest

from openbench.detect.serve._batches import Batches, Budget
from openbench.detect.serve.images import RefusedError, ServerLimits

LIMITS = ServerLimits(batch=8)


def black(images):
    return [{"score": float(image.mean())} for image in images]


def test_a_full_queue_and_a_spent_budget_refuse_or_wait():
    async def queue():
        sizes = []
        batches = Batches(black, replace(LIMITS, waiting=2, batch_wait_ms=0.0), sizes.append)
        images = [np.zeros((2, 2, 3), np.uint8)] * 3
        async with batches.running():
            with pytest.raises(RefusedError, match="more than 2 images wait"):
                await batches.rows(images)
            assert [row["score"] for row in await batches.rows(images[:2])] == [0, 0]
        assert sizes == [2]

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

    asyncio.run(queue())
    asyncio.run(budget())


def test_images_of_a_cancelled_request_leave_the_queue_at_once():
    async def cancelled():
        over = threading.Event()
        batches = Batches(lambda images: [{}] * len(images) if over.wait(10) else [], LIMITS, lambda count: None)
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

    asyncio.run(cancelled())
