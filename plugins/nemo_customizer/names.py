"""Names that the service gets: of datasets, jobs and deployments; each says which run and which data it is of."""

from __future__ import annotations

import re

LONGEST_REPOSITORY = 96
"""Characters of a dataset's name, by the rules of Hugging Face's hub, whose API the data store speaks."""
LONGEST_LABEL = 63
"""Characters of a name that Kubernetes takes."""
_DIGEST = 8


def dataset_name(stem: str, run_id: str, digest: str) -> str:
    """`<stem>-<run>-<digest>`: no run writes over another's data, and a digest is of one content."""
    return _joined(stem, run_id, digest[:_DIGEST], longest=LONGEST_REPOSITORY)


def job_name(run_id: str, step: int, key: str) -> str:
    """`nat-<run>-<step>-<key>`."""
    return _joined("nat", f"{run_id}-{step}", key[:_DIGEST], longest=LONGEST_LABEL)


def deployment_label(prefix: str, run_id: str) -> str:
    """`<prefix>-<run>` in small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", _joined(prefix, run_id, "", longest=LONGEST_LABEL).lower()).strip("-")


def _joined(stem: str, run_id: str, digest: str, *, longest: int) -> str:
    """The run's name loses its beginning where there is no room: what it ends with tells runs apart."""
    tail = f"-{digest}" if digest else ""
    room = longest - len(_plain(stem)) - len(tail) - 1
    if room < 1:
        return _plain(f"{stem[: longest - len(tail)]}{tail}")
    return _plain(f"{stem}-{_plain(run_id)[-room:].lstrip('-.')}{tail}")


def _plain(text: str) -> str:
    text = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)
    return re.sub(r"\.{2,}", ".", re.sub(r"-{2,}", "-", text)).strip("-.")
