"""What a user's `model` setting means: an embedded model, a local folder, or a Hugging Face id."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .embedded import EMBEDDED, embedded_model, pull
from .errors import ModelUnknown

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def resolve(model: str | Path) -> Path | str:
    """A folder, or a Hugging Face id for `from_pretrained`. An embedded model is pulled if it is missing.

    Raises: ModelUnknown if it is none of the three, and what `pull` raises.
    """
    name = os.fspath(model)
    if name in EMBEDDED:
        return pull(name)
    path = Path(name).expanduser()
    if name and path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelUnknown(name, "the folder has no config.json", EMBEDDED)
        return path
    if isinstance(model, Path) or path.is_absolute() or name.startswith(("~", ".")):
        raise ModelUnknown(name, "there is no such folder", EMBEDDED)
    if not _HUB_ID.fullmatch(name):
        embedded_model(name)  # raises, with the nearest name
    return name
