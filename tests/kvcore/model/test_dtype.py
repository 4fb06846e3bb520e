from __future__ import annotations

import json
from pathlib import Path

import pytest

from swarmkv.kvcore.model import ModelSettingInvalid
from swarmkv.kvcore.model import dtype as dtype_module
from swarmkv.kvcore.model.dtype import Processor, choose_device, choose_dtype, prefers_bf16, read_processor

torch = pytest.importorskip("torch")

AMX = Processor("some CPU", frozenset({"avx2", "amx_bf16"}))
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SWARMKV_DTYPE", raising=False)
    return tmp_path / "swarmkv"


class Measured:
    """Seconds by dtype, and how often they were asked for."""

    def __init__(self, bf16: float, float32: float) -> None:
        self.seconds = {torch.bfloat16: bf16, torch.float32: float32}
        self.calls = 0

    def __call__(self, dtype: torch.dtype) -> float:
        self.calls += 1
        return self.seconds[dtype]


@pytest.mark.parametrize(("bf16", "float32", "expected"), [(1.0, 2.0, True), (2.0, 1.0, False)])
def test_the_faster_one_is_measured_once(bf16: float, float32: float, expected: bool) -> None:
    first, second = Measured(bf16, float32), Measured(float32, bf16)
    assert prefers_bf16(AMX, first) is expected
    assert prefers_bf16(AMX, second) is expected
    assert (first.calls, second.calls) == (2, 0)


def test_another_processor_is_measured_again() -> None:
    prefers_bf16(AMX, Measured(1.0, 2.0))
    other = Measured(2.0, 1.0)
    assert prefers_bf16(Processor("another CPU", AMX.flags), other) is False
    assert other.calls == 2


def test_a_processor_without_bf16_is_not_measured(cache: Path) -> None:
    measured = Measured(1.0, 2.0)
    assert prefers_bf16(Processor("old CPU", frozenset({"avx2", "avx512f"})), measured) is False
    assert measured.calls == 0
    assert not cache.exists()


def test_a_damaged_measurement_is_made_anew(cache: Path) -> None:
    prefers_bf16(AMX, Measured(1.0, 2.0))
    (file,) = cache.iterdir()
    file.write_text("{")
    assert prefers_bf16(AMX, Measured(2.0, 1.0)) is False
    assert json.loads(file.read_text())["bfloat16"] is False


def test_a_cache_that_cannot_be_written_costs_a_measurement(cache: Path) -> None:
    cache.write_text("a file where the folder would be")
    assert prefers_bf16(AMX, Measured(1.0, 2.0)) is True


def test_the_real_measurement_gives_seconds() -> None:
    assert 0 < dtype_module._measure(torch.float32) < 5
    assert choose_dtype("auto", CPU) in (torch.bfloat16, torch.float32)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("float32", torch.float32),
        ("float16", torch.float16),
        ("bfloat16", torch.bfloat16),
        ("bf16", torch.bfloat16),
    ],
)
def test_a_name_is_taken(name: str, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_dtype(name, CPU) == expected
    monkeypatch.setenv("SWARMKV_DTYPE", name)
    assert choose_dtype("auto", CPU) == expected
    assert choose_dtype("float32", CPU) == torch.float32


def test_a_gpu_takes_bf16() -> None:
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16


def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelSettingInvalid, match=r"dtype='float64' .* auto, bfloat16") as caught:
        choose_dtype("float64", CPU)
    assert (caught.value.name, caught.value.value) == ("dtype", "float64")
    monkeypatch.setenv("SWARMKV_DTYPE", "half")
    with pytest.raises(ModelSettingInvalid, match="SWARMKV_DTYPE='half'"):
        choose_dtype("auto", CPU)


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == CPU
    with pytest.raises(ModelSettingInvalid, match="torch sees 0 CUDA devices"):
        choose_device("cuda")
    with pytest.raises(ModelSettingInvalid, match="device='gpu'"):
        choose_device("gpu")


def test_a_device_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ModelSettingInvalid, match="torch sees 2 CUDA devices"):
        choose_device("cuda:2")


def test_the_kernel_describes_the_processor(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(
        "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu amx_bf16\n\nprocessor\t: 1\nflags: x\n"
    )
    assert read_processor(file) == Processor("A CPU", frozenset({"fpu", "amx_bf16"}))
    assert read_processor(tmp_path / "none") == Processor()
