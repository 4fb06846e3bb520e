"""What fetching and loading a model raises.

ModelError
├── ModelUnknown      no embedded model, folder or Hugging Face id of that name
├── ModelUnavailable  it is not in the cache, and it cannot be fetched now
└── ModelCorrupt      a file that is not what its checksum or manifest says; nothing was put in the cache
"""

from __future__ import annotations

from typing import ClassVar


class ModelError(Exception):
    """Root of what this package raises."""

    retryable: ClassVar[bool] = False


class ModelUnknown(ModelError):
    def __init__(self, model: str, reason: str) -> None:
        self.model = model
        super().__init__(
            f"no model {model!r}: {reason}. A model is the name of the embedded one (smollm2-135m), a local folder "
            "with a config.json, or a Hugging Face id such as owner/name"
        )


class ModelUnavailable(ModelError):
    retryable = True

    def __init__(self, model: str, reason: str) -> None:
        self.model, self.reason = model, reason
        super().__init__(
            f"model {model!r} is not in the cache and cannot be fetched ({reason}); run `swarmkv model pull` where "
            "there is a network, or copy the cache folder from a machine that has it"
        )


class ModelCorrupt(ModelError):
    pass
