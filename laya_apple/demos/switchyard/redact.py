"""Machine paths out of everything that is recorded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CACHE_MARK = "<LAYA_APPLE_CACHE>"
HF_MARK = "<HF_HOME>"
HOME_MARK = "~"


class Redactor:
    """Replaces the runtime's cache, the Hugging Face cache and the home folder in every string."""

    def __init__(self, environ: Mapping[str, str] | None = None, home: Path | None = None) -> None:
        environ = os.environ if environ is None else environ
        home = Path.home() if home is None else home
        caches = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
        places = [
            (Path(environ.get("LAYA_APPLE_CACHE") or caches / "laya-apple"), CACHE_MARK),
            (Path(environ.get("HF_HOME") or caches / "huggingface"), HF_MARK),
            (home, HOME_MARK),
        ]
        marks: dict[str, str] = {}
        for place, mark in places:
            expanded = place.expanduser()
            # Core ML and the shell may name one folder in two ways (/var and /private/var).
            for name in (str(expanded), os.path.realpath(expanded)):
                if name != os.path.sep:
                    marks.setdefault(name.rstrip(os.path.sep), mark)
        # The longest first: the caches lie inside the home folder. A name ends where a path component does.
        names = sorted(marks, key=len, reverse=True)
        self._marks = marks
        self._pattern = re.compile("(?:" + "|".join(map(re.escape, names)) + r")(?![\w.\-])")

    def text(self, text: str) -> str:
        """One string without machine paths."""
        return self._pattern.sub(lambda match: self._marks[match.group()], text)

    def value(self, value: Any) -> Any:
        """A JSON-able value with every string in it redacted, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self.value(item) for item in value]
        return value
