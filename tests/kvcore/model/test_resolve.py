from __future__ import annotations

from pathlib import Path

import pytest

from swarmkv.kvcore.model import ModelUnknown, resolve


def test_an_embedded_name_is_its_folder(embedded_model: Path) -> None:
    assert resolve("smollm2-135m") == embedded_model


def test_a_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    assert resolve(tmp_path / "m") == tmp_path / "m"
    assert resolve(str(tmp_path / "m")) == tmp_path / "m"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/m") == tmp_path / "m"
    monkeypatch.chdir(tmp_path)
    assert resolve("m") == Path("m")


@pytest.mark.parametrize("name", ["HuggingFaceTB/SmolLM2-135M-Instruct", "a/b", "Qwen/Qwen3-0.6B"])
def test_a_hub_id_stays_one(name: str) -> None:
    assert resolve(name) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("smolm2", "the nearest name is 'smollm2-135m'"),
        ("SMOLLM2-135M", "the nearest name is 'smollm2-135m'"),
        ("gpt-5", "it is not embedded"),
        ("", "it is not embedded"),
        ("a/b/c", "it is not embedded"),
        ("/no/such/folder", "there is no such folder"),
        ("./none", "there is no such folder"),
        ("~/none/such", "there is no such folder"),
        (Path("a/b"), "there is no such folder"),
    ],
)
def test_what_is_none_of_the_three(name: str | Path, reason: str) -> None:
    with pytest.raises(ModelUnknown) as caught:
        resolve(name)
    assert caught.value.reason == reason
    message = str(caught.value)
    assert "(smollm2-135m)" in message
    assert "folder with a config.json" in message
    assert "owner/name" in message


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelUnknown, match=r"has no config\.json") as caught:
        resolve(tmp_path)
    assert caught.value.model == str(tmp_path)
