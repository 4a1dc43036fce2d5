"""Calls of sessions that this server carries out: one at a time, in the order they came."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from kernelproof import session
from kernelproof.errors import UsageError
from kernelproof.types import CallAnswer, What

MOST_BYTES = 4 << 20
# A call has begun, or was refused, before a form is answered, if that takes no longer.
_SECONDS = 5.0


class Calls:
    """``words``: session -> what its call is doing, or why the last one was refused."""

    def __init__(self, store: str | None) -> None:
        self.store = store
        self.words: dict[str, str] = {}
        self._pool = ThreadPoolExecutor(1, "calls")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def begin(
        self, one: str, what: What, text: str, files: Mapping[str, str], name: str
    ) -> tuple[Future[CallAnswer], threading.Event]:
        """Carry out a call in its turn; the event is set once it has begun or is over.

        Raises:
            UsageError: a path instead of a text: that would be a file of this machine.
        """
        if "\n" not in text.strip():
            raise UsageError(
                "the candidate is the text of a Python module with ModelNew, of more than one line"
            )
        begun = threading.Event()

        def progress(words: str, done: int, total: int) -> None:
            self.words[one] = words
            begun.set()

        def carried_out() -> CallAnswer:
            try:
                found = session.call(
                    one, what, text, files=files, name=name, store=self.store, progress=progress
                )
            except UsageError as error:
                self.words[one] = f"refused: {error}"
                raise
            else:
                self.words.pop(one, None)
                return found
            finally:
                begun.set()

        self.words[one] = f"{what}: waits for its turn"
        return self._pool.submit(carried_out), begun

    def begin_or_refuse(self, *given: Any) -> None:
        """`begin`, and wait until that went well. Raises UsageError where it did not."""
        done, begun = self.begin(*given)
        if begun.wait(_SECONDS) and done.done():
            done.result()
