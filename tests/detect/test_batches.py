"""The queue of a server and its budget of pixels, without sockets."""

import asyncio
import threading

import numpy as np

from openbench.detect.serve.app import Batches, Budget
from openbench.detect.serve.images import ServerLimits


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

    asyncio.run(budget())


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

    asyncio.run(cancelled())
