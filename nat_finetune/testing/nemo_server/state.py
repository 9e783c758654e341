"""What the stand-in was told, in a folder: one JSON file that is replaced at every change, and large contents beside it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

Entry = dict[str, Any]
SECTIONS = (
    "namespaces", "store_namespaces", "repositories", "datasets", "jobs", "deployment_configs", "deployments"
)  # fmt: skip


class State:
    """Sections of entries by name, in the order in which they came."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "state.json"
        self._objects = folder / "objects"
        self._objects.mkdir(parents=True, exist_ok=True)
        known = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}
        self._sections: dict[str, dict[str, Entry]] = {name: known.get(name, {}) for name in SECTIONS}

    def __getitem__(self, section: str) -> dict[str, Entry]:
        return self._sections[section]

    def put(self, section: str, name: str, entry: Entry) -> Entry:
        """Keep an entry."""
        self._sections[section][name] = entry
        self.save()
        return entry

    def save(self) -> None:
        """Write everything, in one piece."""
        beside = self._file.with_suffix(".new")
        beside.write_text(json.dumps(self._sections, indent=1), encoding="utf-8")
        os.replace(beside, self._file)

    def number(self) -> int:
        """How many entries there are: what ids are made of."""
        return sum(map(len, self._sections.values()))

    def add_object(self, content: bytes) -> str:
        """Keep a content; its sha256."""
        digest = hashlib.sha256(content).hexdigest()
        (self._objects / digest).write_bytes(content)
        return digest

    def object(self, digest: str) -> bytes | None:
        """A content; None where there is none."""
        path = self._objects / digest
        return path.read_bytes() if path.name == digest and path.is_file() else None
