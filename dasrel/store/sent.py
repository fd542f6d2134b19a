"""A Zarr store that keeps the size and the MD5 of what is sent through it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
from zarr.storage import WrapperStore

Sent = dict[str, tuple[float, float]]
"""Bytes of an object and what stands for its MD5, by its key."""


class Recording(WrapperStore[Any]):
    """Another store, with a dictionary of what was sent of the array `values`.

    Parameters
    ----------
    md5
        Returns a number that stands for the MD5 of some bytes; None where MD5s are not wanted, which are NaN then.
    """

    def __init__(self, store: Any, md5: Callable[[Any], float] | None = None, sent: Sent | None = None) -> None:
        super().__init__(store)
        self.md5 = md5
        self.sent: Sent = {} if sent is None else sent

    def _with_store(self, store: Any) -> Recording:
        return Recording(store, self.md5, self.sent)

    async def set(self, key: str, value: Any) -> None:
        if "/c/" in key and f"/{key}".rpartition("/c/")[0].endswith("/values"):
            content = value.as_numpy_array()
            md5 = np.nan if self.md5 is None else await asyncio.to_thread(self.md5, content)
            self.sent[key] = float(content.nbytes), md5
        await super().set(key, value)
