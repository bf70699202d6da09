"""A store like S3 in this process that counts its requests, `counted://`; each can take a while.

Listings come in pages of 1,000 names, one request removes up to 1,000 files, and a file can be
created only if absent, as at S3 (`ListObjectsV2`, `DeleteObjects`, `If-None-Match`).
"""

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.asyn import AsyncFileSystem

PAGE = 1000


class CountedStore(AsyncFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Objects and counts are of all instances.

    delay     seconds that each request takes; those made at a time pass together
    requests  how many of each kind were made: get, put, delete, list
    n_bytes   that were sent and fetched, by kind
    most_at_a_time  requests under way together
    """

    protocol = "counted"
    cachable = False
    delay = 0.0
    under_way = most_at_a_time = 0
    objects: ClassVar[dict[str, tuple[bytes, int]]] = {}
    requests: ClassVar[Counter[str]] = Counter()
    n_bytes: ClassVar[Counter[str]] = Counter()
    #: The keys of all requests that named one, in order.
    log: ClassVar[list[tuple[str, str]]] = []
    _versions = itertools.count()

    @classmethod
    def reset(cls, delay: float = 0.0) -> None:
        """Forget the counts, not the objects."""
        cls.delay, cls.most_at_a_time = delay, 0
        cls.requests.clear()
        cls.n_bytes.clear()
        cls.log.clear()

    async def _request(self, kind: str, key: str = "", n_bytes: int = 0) -> None:
        self.requests[kind] += 1
        self.n_bytes[kind] += n_bytes
        self.log.append((kind, key))
        CountedStore.under_way += 1
        CountedStore.most_at_a_time = max(self.most_at_a_time, self.under_way)
        await asyncio.sleep(self.delay)
        CountedStore.under_way -= 1

    def _content(self, path: str) -> bytes:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path][0]

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        path = self._strip_protocol(path)
        await self._request("get", path, len(self.objects.get(path, (b"",))[0]))
        return self._content(path)[start:end]

    async def _get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        content = await self._cat_file(rpath)
        Path(lpath).write_bytes(content)

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        path = self._strip_protocol(path)
        await self._request("put", path, len(value))
        if mode == "create" and path in self.objects:
            raise FileExistsError(path)
        self.objects[path] = bytes(value), next(self._versions)

    async def _put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        await self._pipe_file(rpath, Path(lpath).read_bytes())

    async def _rm_file(self, path: str, **_: Any) -> None:
        path = self._strip_protocol(path)
        await self._request("delete", path)
        self.objects.pop(path, None)

    async def _rm(self, path: Any, recursive: bool = False, **_: Any) -> None:
        paths = [self._strip_protocol(p) for p in ([path] if isinstance(path, str) else path)]
        for first in range(0, len(paths), PAGE):
            await self._request("delete")
            for one in paths[first : first + PAGE]:
                self.objects.pop(one, None)

    async def _find(self, path: str, detail: bool = False, **_: Any) -> Any:
        path = self._strip_protocol(path).rstrip("/")
        found = {
            name: {"name": name, "size": len(content), "type": "file", "ETag": str(version)}
            for name, (content, version) in sorted(self.objects.items())
            if name == path or name.startswith(f"{path}/")
        }
        for _page in range(max(1, -(-len(found) // PAGE))):
            await self._request("list", path)
        return found if detail else list(found)

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        await self._request("head", path)
        return {"name": path, "size": len(self._content(path)), "type": "file"}


fsspec.register_implementation("counted", CountedStore, clobber=True)
