"""Backends, one a file: `local` runs a model in this process, `scripted` says what a script says."""

from .local import LocalBackend, LocalSettings
from .scripted import ScriptedBackend

__all__ = ["LocalBackend", "LocalSettings", "ScriptedBackend"]
