"""Why a request is not answered: an HTTP status and a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from lingo.config.base.errors import LingoError


class Refusal(LingoError):
    """A request that is answered by an error: its status, headers and a sentence for the client."""

    def __init__(
        self, status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})
