"""Models: the embedded one (fetched once, converted once), local folders and Hugging Face ids. Torch loads late."""

from .embedded import DEFAULT_MODEL, EMBEDDED, cache_root, embedded_gguf, pull
from .errors import ModelCorrupt, ModelError, ModelUnavailable, ModelUnknown
from .load import LoadedModel, load_model, resolve

__all__ = [
    "DEFAULT_MODEL",
    "EMBEDDED",
    "LoadedModel",
    "ModelCorrupt",
    "ModelError",
    "ModelUnavailable",
    "ModelUnknown",
    "cache_root",
    "embedded_gguf",
    "load_model",
    "pull",
    "resolve",
]
