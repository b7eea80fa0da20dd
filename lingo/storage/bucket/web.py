"""Files of web servers, as fsspec's file system; they are only read.

fsspec's own class takes any failure for a missing file, and reads all of a file if its server sends
no ranges. Here a failure keeps its status, and a server without ranges is an error at once.
"""

from __future__ import annotations

import contextlib
import html.parser
import urllib.parse
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from fsspec.implementations.http import HTTPFileSystem

from lingo.storage.bucket.bucket import BucketError

_CONNECT_SECONDS = 10


class WebError(OSError):
    """A server answers that it fails; `code` is the status of HTTP."""

    def __init__(self, code: int, reason: str | None) -> None:
        super().__init__(f"{code} {reason or ''}".strip())
        self.code = code


class WebFiles(HTTPFileSystem):
    """Files of web servers, by paths without a scheme: `host/folder/file`."""

    def __init__(self, scheme: str, *, seconds: float) -> None:
        """`seconds` is how long a server may be silent."""
        timeout = aiohttp.ClientTimeout(None, sock_connect=_CONNECT_SECONDS, sock_read=seconds)
        # trust_env: proxies of the environment, passwords in ~/.netrc
        super().__init__(
            client_kwargs={"timeout": timeout, "trust_env": True}, skip_instance_cache=True
        )
        self._scheme = scheme

    async def _info(self, url: str, **_: Any) -> dict[str, Any]:
        """Returns name, type, size and version; one byte is read, as some servers know no HEAD."""
        async with self._get(url, Range="bytes=0-0") as answer:
            if answer.status == 200 and answer.url.path.endswith("/"):  # the server has added it
                return {"name": url, "type": "directory", "size": 0}
            total = answer.headers.get("Content-Range", "").rpartition("/")[2]
            if answer.status == 200 and answer.content_length == 0:
                total = "0"
            elif answer.status not in (206, 416) or not total.isdigit():
                raise self._no_ranges(url)
            versions = {name: answer.headers.get(name) for name in ("ETag", "Last-Modified")}
            return {"name": url, "type": "file", "size": int(total), **versions}

    async def _cat_file(
        self, url: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        async with self._get(url, Range=f"bytes={start}-{(end or 0) - 1}") as answer:
            if answer.status != 206:
                raise self._no_ranges(url)
            return await answer.read()

    async def _ls_real(self, url: str, detail: bool = True, **_: Any) -> list[Any]:
        """Returns the files and folders that a folder's index page links to."""
        folder = url.rstrip("/")
        async with self._get(f"{folder}/") as answer:
            if answer.content_type != "text/html":
                raise BucketError(f"cannot list {self._scheme}://{folder}/: it has no index page")
            links = _Links()
            links.feed(await answer.text(errors="replace"))
            base = str(answer.url)
        names = {urllib.parse.urljoin(base, link).removeprefix(base) for link in links.links}
        names = sorted(name for name in names if name and _is_below(name))
        infos = [
            {
                "name": f"{folder}/{urllib.parse.unquote(name)}",
                "type": "directory" if name.endswith("/") else "file",
                "size": None,
            }
            for name in names
        ]
        return infos if detail else [info["name"] for info in infos]

    @contextlib.asynccontextmanager
    async def _get(self, url: str, **headers: str) -> AsyncIterator[aiohttp.ClientResponse]:
        session = await self.set_session()
        headers["Accept-Encoding"] = "identity"  # else ranges would be of compressed content
        address = self.encode_url(f"{self._scheme}://{url}")
        async with session.get(address, headers=headers) as answer:
            if answer.status in (404, 410):
                raise FileNotFoundError(url)
            if answer.status in (401, 403):
                raise PermissionError(f"{answer.status} {answer.reason or ''}".strip())
            if answer.status >= 400 and answer.status != 416:  # 416: the file is empty
                raise WebError(answer.status, answer.reason)
            yield answer

    def _no_ranges(self, url: str) -> BucketError:
        return BucketError(
            f"cannot read {self._scheme}://{url}: the server sends no ranges of files, only whole"
            " files: download it, or read it from another server"
        )


class _Links(html.parser.HTMLParser):
    """Collects the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if (tag, name) == ("a", "href") and value]


def _is_below(link: str) -> bool:
    """Returns whether a link relative to a page leads to a file or folder directly below it."""
    name = link.removesuffix("/")
    return name not in ("", ".", "..") and not any(mark in name for mark in "/?#:")
