"""Why a request is not answered, as a status and a text that never repeats what was sent."""


class RefusedError(Exception):
    """A request that gets an error.

    Args:
        status: of HTTP.
        code: a word for programs.
        told: a sentence for people; made of the server's own words and numbers only.
    """

    def __init__(self, status: int, code: str, told: str):
        super().__init__(told)
        self.status, self.code, self.told = status, code, told

    @property
    def body(self) -> dict[str, dict[str, str]]:
        """What is answered."""
        return {"error": {"code": self.code, "message": self.told}}
