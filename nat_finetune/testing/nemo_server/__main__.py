"""`python -m nat_finetune.testing.nemo_server`: the stand-in as a process of its own, to rehearse against."""

from __future__ import annotations

import argparse
from pathlib import Path

import uvicorn

from nat_finetune.testing.nemo_server import NemoScript, nemo_app


def main() -> None:
    """Serve on the loopback until it is stopped."""
    parser = argparse.ArgumentParser(prog="python -m nat_finetune.testing.nemo_server", description=main.__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where it keeps what it is told")
    parser.add_argument("--port", type=int, default=8200)
    parser.add_argument("--statuses", help="of a job, separated by commas: one at each question")
    given = parser.parse_args()
    script = NemoScript(statuses=tuple(given.statuses.split(","))) if given.statuses else NemoScript()
    uvicorn.run(nemo_app(given.folder, script), host="127.0.0.1", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
