"""What a server takes, and for how long it waits."""

from dataclasses import dataclass

from openbench.config.constraints import Checked, Count, NonNegative, Positive


@dataclass(frozen=True)
class Limits(Checked):
    """The limits of a server; together they bound its memory, whatever is sent.

    Args:
        body_bytes: of one request, headers not counted.
        image_pixels: width times height of one image, read from its header before it is decoded.
        image_aspect: the longer side of an image over the shorter; a network's transform may scale the shorter one up.
        images: in one request.
        waiting: images that may wait for the network; more are turned away.
        waiting_pixels: of all images that are being decoded or wait; one image is always taken.
        connections: open at a time; more are turned away.
        upload_s: seconds in which a request must have arrived, headers and body each.
        answer_s: seconds in which it must have been answered, from when it arrived.
        batch: images per forward pass.
        batch_wait_ms: milliseconds that an image waits for others to join it.
        drain_s: seconds in which requests are finished after the server was told to stop.
    """

    named = "serve"

    body_bytes: Count = 10 << 20
    image_pixels: Count = 25_000_000
    image_aspect: Count = 20
    images: Count = 32
    waiting: Count = 256
    waiting_pixels: Count = 100_000_000
    connections: Count = 256
    upload_s: Positive = 10.0
    answer_s: Positive = 10.0
    batch: Count = 32
    batch_wait_ms: NonNegative = 2.0
    drain_s: Positive = 10.0
