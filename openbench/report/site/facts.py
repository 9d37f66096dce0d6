"""What the site tells of a method besides its numbers."""

from dataclasses import dataclass

READS = ("logits", "features", "features and classifier", "layers", "gradients or images", "text")


@dataclass(frozen=True)
class MethodFacts:
    """A method as its class describes it.

    Args:
        reads: its family, one of READS: what it computes the score from.
        needs: what a user must have for it, of `training data`, `outliers`, `gradients`, `text`.
        year: of its paper; empty if unknown.
        summary: what the score is, in a line.
        fitted_on: the roles of the images that it is fitted on.
    """

    reads: str = ""
    needs: tuple[str, ...] = ()
    year: str = ""
    summary: str = ""
    fitted_on: tuple[str, ...] = ()


UNKNOWN = MethodFacts()
