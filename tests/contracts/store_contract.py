"""What every store must do. Subclass it as `Test…`, give `open_store`, and pytest runs it all."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from swarmkv.swarm.stores import (
    JournalRecord,
    RecordExists,
    RecordInvalid,
    RunSummary,
    Store,
    StoreClosed,
)


def record(seq: int, run: str = "r", **fields: Any) -> JournalRecord:
    plain = JournalRecord(run_id=run, seq=seq, kind="k", task_id=f"t{seq}", body=b"{}", at_ns=1000 + seq)
    return msgspec.structs.replace(plain, **fields)


class StoreContract:
    def open_store(self) -> AbstractAsyncContextManager[Store]:
        """A fresh store, closed afterwards."""
        raise NotImplementedError

    async def test_it_is_a_store(self) -> None:
        async with self.open_store() as store:
            assert isinstance(store, Store)

    async def test_records_come_back_as_they_were_in_order(self) -> None:
        odd = record(2, kind="ä", task_id="日本 🙂", body=bytes(range(256)), at_ns=2**63 - 1)
        async with self.open_store() as store:
            await store.append([record(3), odd])
            await store.append([record(1, task_id="", body=b"")])
            assert await store.read("r") == [record(1, task_id="", body=b""), odd, record(3)]

    async def test_an_unknown_run_is_empty(self) -> None:
        async with self.open_store() as store:
            await store.append([])
            assert await store.read("nobody") == []
            assert await store.runs() == []

    async def test_runs_do_not_mix_and_the_newest_stands_first(self) -> None:
        async with self.open_store() as store:
            await store.append([record(1, "old"), record(2, "old")])
            await store.append([record(1, "new", at_ns=5000)])
            assert await store.read("old") == [record(1, "old"), record(2, "old")]
            assert await store.runs() == [
                RunSummary("new", 1, 5000, 5000),
                RunSummary("old", 2, 1001, 1002),
            ]

    @pytest.mark.parametrize("appended", [[2, 1], [2, 3, 2]])
    async def test_a_number_is_given_once_and_an_append_is_all_or_nothing(self, appended: list[int]) -> None:
        async with self.open_store() as store:
            await store.append([record(1)])
            with pytest.raises(RecordExists) as caught:
                await store.append([record(seq, kind="other") for seq in appended])
            assert (caught.value.run_id, caught.value.seq) == ("r", appended[-1])
            assert await store.read("r") == [record(1)]
            await store.append([record(2)])
            assert await store.read("r") == [record(1), record(2)]

    async def test_many_appends_at_once_are_all_there_but_the_refused_ones(self) -> None:
        async with self.open_store() as store:
            await store.append([record(50, kind="first")])
            appends = [store.append([record(seq)]) for seq in range(1, 201)]
            results = await asyncio.gather(*appends, return_exceptions=True)
            refused = {seq for seq, result in enumerate(results, 1) if result is not None}
            assert refused == {50}
            assert isinstance(results[49], RecordExists)
            assert [(one.seq, one.kind == "first") for one in await store.read("r")] == [
                (seq, seq == 50) for seq in range(1, 201)
            ]

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("run_id", "\ud800"),
            ("kind", None),
            ("task_id", 7),
            ("seq", 0),
            ("seq", True),
            ("seq", 2**63),
            ("at_ns", -1),
            ("at_ns", 1.5),
            ("body", "text"),
        ],
    )
    async def test_what_no_store_can_hold_is_refused(self, field: str, value: Any) -> None:
        async with self.open_store() as store:
            with pytest.raises(RecordInvalid) as caught:
                await store.append([record(1), msgspec.structs.replace(record(2), **{field: value})])
            assert caught.value.field == field
            assert await store.runs() == []
            await store.append([record(1)])
            assert await store.read("r") == [record(1)]

    async def test_a_closed_store_refuses_and_closes_again(self) -> None:
        async with self.open_store() as store:
            append = asyncio.create_task(store.append([record(1)]))
            await asyncio.sleep(0)  # it has begun
            await store.close()
            await append
            await store.close()
            for call in (store.append([record(2)]), store.read("r"), store.runs()):
                with pytest.raises(StoreClosed):
                    await call
