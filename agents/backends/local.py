"""The local backend: a model in this process, its KV pool, and continuous batching in a thread of its own.

Threads: the event loop's thread only builds commands and awaits futures; the step thread owns pool, branches and
batcher, and runs commands between forward passes. This is the one module of `agents` that imports kvcore.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ...verify import VerifyError
from ..errors import BackendClosed, BackendFailed
from ..message import AttemptKey, Generation, Message, Sampling, Usage
from .branches import TaskBranch
from .chat import ChatFormat, TextStream

if TYPE_CHECKING:
    from ...kvcore import Audit, Batcher, Partition, Pool, PrefixTree, Request

R = TypeVar("R")

SHARED_PARTITION_SHARE = 8
"""one page in so many is for prefixes that all partitions share"""

ROOM_POLL_S = 0.1
"""between two looks at requests that all wait for room"""


class LocalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a local backend runs its model."""

    model: str = "smollm2-135m"
    """an embedded model's name, a Hugging Face id or a local folder"""
    kv_budget_bytes: int = 256 * 2**20
    partitions: int = 1
    policy: str = "salience"
    page_size: int = 16
    """tokens of a page"""
    layer_groups: int = 1
    dtype: str = "auto"
    device: str = "auto"
    threads: int = 0
    """torch's threads; 0 leaves torch's choice"""


class LocalBackend:
    """All partitions of one model in this process. Each worker sees its own through `partition(i)`.

    Made by `await LocalBackend.open(settings)`, which takes seconds.
    Raises: ModelError (unknown, unavailable), BudgetTooSmall if a partition could not hold a minimal prompt,
            AttentionUnsupported for an architecture that kvcore cannot run exactly.
    """

    def __init__(self, settings: LocalSettings, loop: asyncio.AbstractEventLoop) -> None:
        self.settings, self._loop = settings, loop
        self._tasks: dict[tuple[str, str], TaskBranch] = {}
        self._unsettled: dict[tuple[str, str], tuple[int, asyncio.Event]] = {}
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._closed = False
        self.broken = asyncio.Event()
        """set when the model or the device broke; `failure` says how"""

    _thread: threading.Thread

    @classmethod
    async def open(cls, settings: LocalSettings, *, table: memoryview | None = None) -> LocalBackend:
        """Load the model, in the step thread, and return when it is ready.

        `table` is a buffer for the page table, private memory without one. Raises: see the class; nothing is left.
        """
        loop = asyncio.get_running_loop()
        backend = cls(settings, loop)
        loaded: asyncio.Future[None] = loop.create_future()
        backend._thread = threading.Thread(
            target=backend._live, args=(table, loaded), name="swarmkv-steps", daemon=True
        )
        backend._thread.start()
        try:
            await loaded
        except asyncio.CancelledError:
            backend._commands.put(None)
            raise
        return backend

    def partition(self, index: int) -> PartitionBackend:
        """The backend as one worker sees it: its tasks live in partition `index`."""
        return PartitionBackend(self, self._partitions[index])

    @property
    def partition_pages(self) -> int:
        """Quota of each worker's partition."""
        return self._partitions[0].quota_pages

    async def settle(self, key: AttemptKey, accepted: bool) -> Usage:
        """The gate's verdict on an attempt. An attempt that is not the task's current one changes nothing."""
        try:
            return await self._call(lambda: self._settle(key, accepted))
        finally:
            self._release_waiters((key.run, key.task), key.attempt)

    async def release(self, run: str, task: str) -> Usage:
        """Forget a task's branch, whatever its state. Idempotent."""
        try:
            return await self._call(lambda: self._release(run, task))
        finally:
            self._release_waiters((run, task), None)

    async def audit(self) -> Audit:
        """The pool's books, taken between two steps. Raises: BooksUnbalanced."""
        return await self._call(self.pool.audit)

    async def aclose(self) -> None:
        """End the step thread; generate calls in flight raise BackendClosed. Idempotent."""
        if not self._closed:
            self._closed = True
            for name in list(self._unsettled):
                self._release_waiters(name, None)
            self._commands.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
            self.pool.close()

    async def generate(
        self,
        partition: Partition,
        key: AttemptKey,
        messages: Sequence[Message],
        *,
        sampling: Sampling,
        schema: bytes | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Generation:
        """See `agents.Backend.generate`; the task's pages live in `partition`."""
        await self._until_settled(key)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()
        call = _Call(self, partition, key, tuple(messages), sampling, schema, on_text, loop, future)
        self._submit(call.begin)
        try:
            return await future
        except asyncio.CancelledError:
            with contextlib.suppress(BackendClosed, BackendFailed):
                await asyncio.shield(self._call(call.cancel))
            raise

    def _load(self, table: memoryview | None) -> None:
        import torch

        from ...kvcore import (
            Batcher,
            Partition,
            Pool,
            PoolConfig,
            PrefixTree,
            Runner,
            model_shape,
            prepare_model,
        )
        from ...kvcore.errors import BudgetTooSmall
        from ...kvcore.model import load_model

        settings = self.settings
        if settings.threads:
            torch.set_num_threads(settings.threads)
        loaded = load_model(settings.model, dtype=settings.dtype, device=settings.device)
        config = PoolConfig(
            **model_shape(loaded.config),
            pages=1,
            page_size=settings.page_size,
            layer_groups=settings.layer_groups,
            dtype=loaded.dtype,
            device=str(loaded.device),
        )
        page_bytes = config.bytes_per_token * settings.page_size
        pages = PoolConfig.pages_for(
            settings.kv_budget_bytes, bytes_per_token=config.bytes_per_token, page_size=settings.page_size
        )
        shared = pages // SHARED_PARTITION_SHARE
        quota = (pages - shared) // settings.partitions
        if quota < MIN_PARTITION_PAGES:
            needed = (
                -(
                    -MIN_PARTITION_PAGES
                    * settings.partitions
                    * SHARED_PARTITION_SHARE
                    // (SHARED_PARTITION_SHARE - 1)
                )
                * page_bytes
            )
            raise BudgetTooSmall(
                settings.kv_budget_bytes,
                needed,
                f"each of {settings.partitions} partitions would hold {max(quota, 0)} pages of "
                f"{settings.page_size} tokens, and one prompt needs {MIN_PARTITION_PAGES} at least",
            )
        self.pool: Pool = Pool(msgspec.structs.replace(config, pages=pages), table=table)
        self._prefixes: PrefixTree = PrefixTree()
        self._prefixes.bind(Partition(self.pool, "shared", shared, prefixes=self._prefixes))
        self._partitions = [
            Partition(self.pool, f"worker-{index}", quota, policy=settings.policy, prefixes=self._prefixes)
            for index in range(settings.partitions)
        ]
        runner = Runner(prepare_model(loaded.model), self.pool, max_positions=loaded.max_positions)
        self._batcher: Batcher = Batcher(runner)
        self.chat = ChatFormat(loaded.tokenizer)
        self.stop_ids: frozenset[int] = loaded.eos_ids
        self.vocabulary = int(loaded.config.get_text_config().vocab_size)
        self._grammar: Any = None

    def matcher(self, schema: bytes) -> Any:
        """A token matcher for a JSON schema. The token trie is built at first use (seconds): see `warm_up`."""
        from ...verify import TokenGrammar

        if self._grammar is None:
            self._grammar = TokenGrammar.from_tokenizer(self.chat.tokenizer, self.vocabulary)
        return self._grammar.matcher(schema)

    async def warm_up(self) -> None:
        """Build what the first request would otherwise wait for."""
        await self._call(lambda: self.matcher(b'{"type":"boolean"}'))

    def task_branch(self, partition: Partition, key: AttemptKey) -> TaskBranch:
        task = self._tasks.get((key.run, key.task))
        if task is None:
            task = self._tasks[key.run, key.task] = TaskBranch(partition, self._prefixes, self.chat)
        return task

    def require_positions(self, tokens: int) -> None:
        """Raises: ContextTooLong if the model has fewer positions."""
        self._batcher.runner.require_positions(tokens)

    def add(self, request: Request) -> None:
        self._batcher.add(request)

    def cancel(self, request: Request) -> None:
        self._batcher.cancel(request)

    def _settle(self, key: AttemptKey, accepted: bool) -> Usage:
        task = self._tasks.get((key.run, key.task))
        if task is None or task.attempt != key.attempt:
            return Usage()
        if task.request is not None:
            self.cancel(task.request)
        if not accepted:
            return task.reject()
        del self._tasks[key.run, key.task]
        return task.accept()

    def _release(self, run: str, task_id: str) -> Usage:
        task = self._tasks.pop((run, task_id), None)
        if task is None:
            return Usage()
        if task.request is not None:
            self.cancel(task.request)
        return task.close()

    async def _until_settled(self, key: AttemptKey) -> None:
        """Wait for the verdict on the task's earlier attempt, and stand as unsettled from now on."""
        name = (key.run, key.task)
        while (known := self._unsettled.get(name)) is not None and known[0] != key.attempt:
            await known[1].wait()
        if known is None:
            self._unsettled[name] = (key.attempt, asyncio.Event())

    def _release_waiters(self, name: tuple[str, str], attempt: int | None) -> None:
        known = self._unsettled.get(name)
        if known is not None and attempt in (None, known[0]):
            del self._unsettled[name]
            known[1].set()

    async def _call(self, command: Callable[[], R]) -> R:
        """Run a command in the step thread, between two steps."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()

        def run() -> None:
            if self._failure is not None:
                _resolve(loop, future, error=BackendFailed(str(self._failure)))
                return
            try:
                result = command()
            except Exception as error:  # noqa: BLE001 - handed to the caller as it is
                _resolve(loop, future, error=error)
            else:
                _resolve(loop, future, result=result)

        self._submit(run)
        return await future

    def _submit(self, command: Callable[[], None]) -> None:
        if self._closed:
            raise BackendClosed
        self._commands.put(command)

    def _live(self, table: memoryview | None, loaded: asyncio.Future[None]) -> None:
        """The step thread's life.

        The model is loaded here too: OpenMP keeps a team of threads for every thread that has ever computed, and
        with a second team its threads sleep between operations instead of spinning, which halves the speed.
        """
        try:
            self._load(table)
        except Exception as error:  # noqa: BLE001 - handed to the caller as it is
            _resolve(self._loop, loaded, error=error)
            return
        _resolve(self._loop, loaded, result=None)
        self._steps()

    def _steps(self) -> None:
        """Commands, then a forward pass, for as long as the backend is open."""
        ran = True
        while True:
            idle = not len(self._batcher) or self._failure is not None
            try:
                # Requests that wait for room go on when a command gives up pages; the clock of their wait is looked at.
                command = self._commands.get(block=idle or not ran, timeout=None if idle else ROOM_POLL_S)
            except queue.Empty:
                ran = self._step()
                continue
            if command is None:
                break
            command()
            ran = True
        self._batcher.cancel_all()

    def _step(self) -> bool:
        try:
            return self._batcher.step()
        except Exception as error:  # noqa: BLE001 - a broken device or model: every caller is told
            self._failure = error
            self._batcher.cancel_all()
            _call_soon(self._loop, self.broken.set)
            return False

    @property
    def failure(self) -> BaseException | None:
        """What broke the step thread's model or device, if anything did."""
        return self._failure


MIN_PARTITION_PAGES = 16
"""fewest pages of a partition: sinks, a recent window, and a chunk to work on"""


class PartitionBackend:
    """One partition of a local backend, as `agents.Backend`."""

    def __init__(self, backend: LocalBackend, partition: Partition) -> None:
        self._backend, self._partition = backend, partition

    async def generate(
        self,
        key: AttemptKey,
        messages: Sequence[Message],
        *,
        sampling: Sampling,
        schema: bytes | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Generation:
        return await self._backend.generate(
            self._partition, key, messages, sampling=sampling, schema=schema, on_text=on_text
        )

    async def settle(self, key: AttemptKey, accepted: bool) -> Usage:
        return await self._backend.settle(key, accepted)

    async def release(self, run: str, task: str) -> Usage:
        return await self._backend.release(run, task)


class _Call:
    """One generate call, from the loop's thread into the step thread and back."""

    def __init__(
        self,
        backend: LocalBackend,
        partition: Partition,
        key: AttemptKey,
        messages: tuple[Message, ...],
        sampling: Sampling,
        schema: bytes | None,
        on_text: Callable[[str], None] | None,
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[Generation],
    ) -> None:
        self.backend, self.partition, self.key, self.messages = backend, partition, key, messages
        self.sampling, self.schema, self.on_text = sampling, schema, on_text
        self.loop, self.future = loop, future
        self.stream = TextStream(backend.chat)
        self.task: TaskBranch | None = None
        self.request: Request | None = None
        self.reused_tokens = 0
        self.cancelled = False

    def begin(self) -> None:
        from ...kvcore import Request, SamplingSettings

        if self.cancelled:
            return
        if self.backend.failure is not None:
            _resolve(self.loop, self.future, error=BackendFailed(str(self.backend.failure)))
            return
        sampling = self.sampling
        try:  # the tokenizer or its chat template may raise anything
            task = self.task = self.backend.task_branch(self.partition, self.key)
            turn = task.begin(self.key, self.messages)
            self.backend.require_positions(turn.reused_tokens + len(turn.missing) + 1)
            self.reused_tokens = turn.reused_tokens
            self.request = task.request = Request(
                turn.branch,
                turn.missing,
                max_tokens=sampling.max_tokens,
                stop_ids=self.backend.stop_ids,
                sampling=SamplingSettings(
                    sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed
                ),
                constraint=None if self.schema is None else _Grammar(self.backend.matcher(self.schema)),
                on_prefilled=lambda request: task.prefilled(request, self.messages),
                on_tokens=self._tokens if self.on_text is not None else None,
                on_finish=self._finish,
            )
        except Exception as error:  # noqa: BLE001 - handed to the caller as it is
            _resolve(self.loop, self.future, error=error)
        else:
            self.backend.add(self.request)

    def cancel(self) -> None:
        self.cancelled = True
        if self.request is not None:
            self.backend.cancel(self.request)

    def _tokens(self, _: Request, ids: list[int]) -> None:
        if piece := self.stream.push(ids):
            self._say(piece)

    def _say(self, piece: str) -> None:
        assert self.on_text is not None
        _call_soon(self.loop, self.on_text, piece)

    def _finish(self, request: Request) -> None:
        from ...kvcore import Finish

        assert self.task is not None
        self.task.request = None
        self.task.taken_back_tokens += len(request.produced)
        if request.error is not None:
            _resolve(self.loop, self.future, error=request.error)
        elif request.finish is Finish.CANCELLED:
            failure = self.backend.failure
            error = BackendClosed() if failure is None else BackendFailed(str(failure))
            _resolve(self.loop, self.future, error=error)
        else:
            if self.on_text is not None and (rest := self.stream.rest()):
                self._say(rest)
            _resolve(self.loop, self.future, result=self._generation(request))

    def _generation(self, request: Request) -> Generation:
        from ...kvcore import Finish

        return Generation(
            text=self.backend.chat.text(request.produced),
            finish="length" if request.finish is Finish.LENGTH else "stop",
            usage=Usage(
                prefilled_tokens=request.prefilled_tokens,
                reused_tokens=self.reused_tokens,
                decoded_tokens=len(request.produced),
                evicted_pages=request.evicted_pages,
            ),
        )


class _Grammar:
    """A token matcher as kvcore's `Constraint`."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @property
    def finished(self) -> bool:
        return bool(self._matcher.finished)

    def mask(self) -> Any:
        return self._try(self._matcher.mask)

    def accept(self, token: int) -> None:
        self._try(lambda: self._matcher.consume(token))

    def forced(self) -> list[int]:
        return list(self._try(self._matcher.forced))

    @staticmethod
    def _try(action: Callable[[], Any]) -> Any:
        from ...kvcore.errors import ConstraintFailed

        try:
            return action()
        except VerifyError as error:
            raise ConstraintFailed(str(error)) from error


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> None:
    """From the step thread into the loop; a loop that was closed meanwhile has nobody left to tell."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback, *args)


def _resolve(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[R],
    *,
    result: R | None = None,
    error: BaseException | None = None,
) -> None:
    def set_it() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    _call_soon(loop, set_it)
