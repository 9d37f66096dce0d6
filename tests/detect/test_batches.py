"""The queue of a server and its budget of pixels, without sockets."""

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest

from openbench.detect.serve.batches import Batches, Budget
from openbench.detect.serve.images import Limits, RefusedError

LIMITS = Limits(batch=8)


def black(images):
    return [{"score": float(image.mean())} for image in images]


def test_a_full_queue_and_a_spent_budget_hold_others_back():
    async def told():
        seen = []
        batches = Batches(black, replace(LIMITS, waiting=2, batch_wait_ms=0.0), seen.append)
        images = [np.zeros((2, 2, 3), np.uint8)] * 3
        batches.start()
        with pytest.raises(RefusedError, match="more than 2 images wait"):
            await batches.rows(images)
        assert [row["score"] for row in await batches.rows(images[:2])] == [0, 0]
        await batches.stop()
        assert seen == [2]

    async def held():
        budget = Budget(10)
        await budget.take(25)  # one image is always let in
        await budget.give_back(25)
        await budget.take(6)
        later = asyncio.create_task(budget.take(5))
        await asyncio.sleep(0.01)
        assert not later.done()
        await budget.give_back(6)
        await asyncio.wait_for(later, 1)

    asyncio.run(told())
    asyncio.run(held())


def test_images_of_a_request_that_was_given_up_make_room_at_once():
    async def given_up():
        over = threading.Event()
        batches = Batches(lambda images: [{}] * len(images) if over.wait(10) else [], LIMITS, lambda count: None)
        batches.start()
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
        await batches.stop()

    asyncio.run(given_up())


@pytest.mark.parametrize("count", [0, 2])
def test_a_wrong_number_of_rows_is_an_error_of_that_batch_and_work_goes_on(count):
    async def told():
        answers = iter([[{}] * count, [{"score": 1.0}]])
        batches = Batches(lambda images: next(answers), replace(LIMITS, batch_wait_ms=0.0), lambda count: None)
        batches.start()
        image = np.zeros((2, 2, 3), np.uint8)
        with pytest.raises(RefusedError, match="cannot score this image") as refused:
            await asyncio.wait_for(batches.rows([image]), 10)
        assert str(refused.value.__cause__) == f"{count} rows for 1 images"
        assert await asyncio.wait_for(batches.rows([image]), 10) == [{"score": 1.0}]
        await batches.stop()

    asyncio.run(told())
