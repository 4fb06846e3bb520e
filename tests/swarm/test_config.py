from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swarmkv.swarm import Config, SettingInvalid, Swarm
from swarmkv.swarm.config import parse_bytes


def refusal(**settings: Any) -> SettingInvalid:
    with pytest.raises(SettingInvalid) as caught:
        Config.read(settings)
    return caught.value


def test_the_defaults_are_allowed() -> None:
    assert Config.read({}) == Config()
    assert Config().kv_budget_bytes == 256 * 2**20


def test_settings_are_kept_as_given() -> None:
    config = Config.read(
        {"workers": 4, "model": Path("/models/small"), "isolation": "inline", "store": "runs.db"}
    )
    assert (config.workers, config.model, config.isolation, config.store) == (
        4,
        "/models/small",
        "inline",
        "runs.db",
    )


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("worker", "workers"),
        ("kv_buget", "kv_budget"),
        ("start_timeout", "start_timeout_s"),
        ("Model", "model"),
    ],
)
def test_an_unknown_setting_names_the_nearest(wrong: str, right: str) -> None:
    error = refusal(**{wrong: 4})
    assert error.name == wrong
    assert f"did you mean {right!r}?" in str(error)


def test_a_setting_like_no_other_names_them_all() -> None:
    assert all(name in str(refusal(zzz=1)) for name in Config.__struct_fields__)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", "4"),
        ("workers", 2.5),
        ("workers", True),
        ("workers", None),
        ("isolation", "thread"),
        ("model", 7),
        ("kv_budget", 1.5),
        ("kv_budget", None),
        ("start_timeout_s", "soon"),
        ("page_size", [16]),
    ],
)
def test_a_value_of_a_wrong_type_names_the_setting(name: str, value: object) -> None:
    error = refusal(**{name: value})
    assert (error.name, error.value) == (name, value)
    assert name in str(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", 0),
        ("workers", 1025),
        ("workers", -1),
        ("tasks_per_worker", 0),
        ("page_size", 0),
        ("layer_groups", 0),
        ("engine_threads", -1),
        ("max_losses", 0),
        ("ring_bytes", 2**16 - 8),
        ("ring_bytes", 2**16 + 1),
        ("ring_bytes", 2**40),
        ("start_timeout_s", 0),
        ("stop_grace_s", -0.5),
        ("stop_grace_s", float("nan")),
        ("kv_budget", 0),
        ("kv_budget", 2**63),
        ("kv_budget", "99999999999GiB"),
    ],
)
def test_a_value_outside_its_range_names_the_setting(name: str, value: object) -> None:
    error = refusal(**{name: value})
    assert error.name == name
    assert error.allowed in str(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [("workers", 1), ("workers", 1024), ("ring_bytes", 2**16), ("engine_threads", 0), ("stop_grace_s", 0.01)],
)
def test_the_ends_of_a_range_are_allowed(name: str, value: object) -> None:
    assert getattr(Config.read({name: value}), name) == value


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        (1000, 1000),
        ("1000", 1000),
        ("1000B", 1000),
        ("64KiB", 64 * 2**10),
        ("256MiB", 256 * 2**20),
        (" 1.5 GiB ", 3 * 2**29),
        ("2gib", 2 * 2**30),
        ("3kB", 3000),
        ("4MB", 4_000_000),
        ("1GB", 1_000_000_000),
    ],
)
def test_sizes(text: int | str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "MiB", "12 parsecs", "-5MiB", "1,5GiB", "0", "0.2B", "nan", "1e3", "²B"]
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingInvalid, match='a text such as "256MiB"') as caught:
        parse_bytes(text)
    assert caught.value.name == "kv_budget"


def test_a_swarm_refuses_a_bad_setting_before_it_starts() -> None:
    with pytest.raises(SettingInvalid, match="workers"):
        Swarm(wokers=2)


def test_what_the_engine_is_told() -> None:
    settings = Config.read(
        {"workers": 3, "kv_budget": "1MiB", "page_size": 8, "engine_threads": 2}
    ).local_settings()
    assert (settings.partitions, settings.kv_budget_bytes, settings.page_size, settings.threads) == (
        3,
        2**20,
        8,
        2,
    )
