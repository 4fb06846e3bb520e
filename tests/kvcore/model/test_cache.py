from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from swarmkv.kvcore.model import CacheUnusable
from swarmkv.kvcore.model.cache import cache_root, is_intact, make_folder, write_atomically

FACTS = {"name": "x"}


def fill(folder: Path, scratch: Path) -> None:
    (scratch / "download").write_text("packed")
    (folder / "weights").write_text("some weights")


def make(folder: Path, fill=fill) -> Path:
    return make_folder(folder, fill, facts=FACTS, progress=lambda _: None)


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir() if not path.name.endswith(".lock"))


def test_a_folder_is_made_once(tmp_path: Path) -> None:
    folder = make(tmp_path / "models" / "x")
    assert (folder / "weights").read_text() == "some weights"
    assert visible(folder) == ["x"]

    def again(folder: Path, scratch: Path) -> None:
        raise AssertionError("made twice")

    assert make(folder, again) == folder


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "weights").write_text("some"),
        lambda folder: (folder / "weights").unlink(),
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: (folder / "manifest.json").write_text('{"files": {"weights'),
        lambda folder: (folder / "manifest.json").write_text("[]"),
        lambda folder: (folder / "manifest.json").write_text('{"files": {}}'),
    ],
)
def test_a_damaged_folder_is_made_anew(tmp_path: Path, damage) -> None:
    folder = make(tmp_path / "x")
    damage(folder)
    assert not is_intact(folder)
    make(folder)
    assert is_intact(folder)
    assert (folder / "weights").read_text() == "some weights"
    assert visible(folder) == ["x"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def fails(folder: Path, scratch: Path) -> None:
        fill(folder, scratch)
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        make(tmp_path / "x", fails)
    assert visible(tmp_path / "x") == []


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    for name in (".x.partial", ".x.scratch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("half")
    folder = make(tmp_path / "x")
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "weights"]
    assert visible(folder) == ["x"]


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    def full(folder: Path, scratch: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CacheUnusable, match=r"No space left on device.*XDG_CACHE_HOME") as caught:
        make(tmp_path / "x", full)
    assert caught.value.folder == tmp_path
    assert visible(tmp_path / "x") == []


def test_an_intact_folder_needs_no_writing(tmp_path: Path) -> None:
    folder = make(tmp_path / "models" / "x")
    (folder.parent / ".x.lock").unlink()
    folder.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert make(folder) == folder
        assert os.listdir(folder.parent) == ["x"]
    finally:
        folder.parent.chmod(stat.S_IRWXU)


def test_a_cache_that_cannot_be_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheUnusable, match=r"Not a directory|File exists"):
        make(tmp_path / "file" / "x")


@pytest.mark.parametrize(
    ("setting", "expected"), [("/var/c", "/var/c/swarmkv"), ("relative", None), ("", None)]
)
def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, setting: str, expected: str | None) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", setting)
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_root() == Path(expected or "/home/someone/.cache/swarmkv")


def test_a_small_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "deep" / "x.json"
    write_atomically(file, "one")
    assert file.read_text() == "one"

    def fails(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="No space"):
        write_atomically(file, "two")
    assert file.read_text() == "one"
    assert os.listdir(file.parent) == ["x.json"]
