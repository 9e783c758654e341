"""A stand-in of NeMo microservices: entity store, data store, customizer, deployment and inference, strict about what it gets.

    python -m nat_finetune.testing.nemo_server --folder /tmp/nemo --port 8200

It trains nothing: a job goes through the statuses of its script, one at each question, with logs and losses, and fails where
the real service would: a dataset that is not registered, rows of another form. A deployed model answers chat completions,
others than the base model. What it was told is kept in its folder, so that it survives a restart.
Its requests and answers are held against the real client libraries by tests/peer/test_nemo_microservices.py.
Needs the extra `test-servers`.
"""

from nat_finetune.testing.nemo_server.app import nemo_app
from nat_finetune.testing.nemo_server.script import NemoScript

__all__ = ["NemoScript", "nemo_app"]
