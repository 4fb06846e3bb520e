"""What kvcore.model raises.

ModelError
├── ModelUnknown         no embedded model, folder or Hugging Face id of that name; nothing was fetched
├── ModelUnavailable     it is not on this machine, and it cannot be fetched now; the cache is as it was
├── ModelCorrupt         bytes that are not what their checksum or format says; none of them are kept
├── ModelNotLoadable     its files are here, and cannot be run: damaged, or of an unknown kind
├── ModelSettingInvalid  a dtype or device that does not exist, or that this machine lacks; nothing was loaded
└── CacheUnusable        the cache folder cannot be written, or its disk is full; no half model is left in it
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar


class ModelError(Exception):
    """Root of what kvcore.model raises; `retryable` says whether the same call may succeed later."""

    retryable: ClassVar[bool] = False


class ModelUnknown(ModelError):
    def __init__(self, model: str, reason: str, embedded: Iterable[str]) -> None:
        self.model, self.reason, self.embedded = model, reason, tuple(embedded)
        super().__init__(
            f"no model {model!r}: {reason}. A model is the name of an embedded one "
            f"({', '.join(self.embedded)}), a local folder with a config.json, "
            "or a Hugging Face id such as owner/name"
        )


class ModelUnavailable(ModelError):
    retryable = True

    def __init__(self, model: str, reason: str, advice: str) -> None:
        self.model, self.reason, self.advice = model, reason, advice
        super().__init__(f"model {model!r} is not on this machine and cannot be fetched ({reason}); {advice}")


class ModelCorrupt(ModelError):
    def __init__(self, file: Path, reason: str, advice: str) -> None:
        self.file, self.reason, self.advice = file, reason, advice
        super().__init__(f"{file} was not used: {reason}; {advice}")


class ModelNotLoadable(ModelError):
    def __init__(self, model: str, reason: str) -> None:
        self.model, self.reason = model, reason
        super().__init__(
            f"model {model!r} cannot be loaded: {reason}; it must be a causal language model with a fast "
            "tokenizer, in safetensors, of a kind that the installed transformers knows"
        )


class ModelSettingInvalid(ModelError):
    def __init__(self, name: str, value: object, allowed: str) -> None:
        self.name, self.value, self.allowed = name, value, allowed
        super().__init__(f"{name}={value!r} is not allowed; it takes {allowed}")


class CacheUnusable(ModelError):
    retryable = True

    def __init__(self, folder: Path, reason: str) -> None:
        self.folder, self.reason = folder, reason
        super().__init__(
            f"cannot write to the cache folder {folder} ({reason}); "
            "set XDG_CACHE_HOME to a folder that can be written and has 600 MB free"
        )
