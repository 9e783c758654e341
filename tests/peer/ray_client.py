"""Runs in the environment that has Ray: its own client, one action at a time; prints what it says as JSON.

Arguments: address, action, and the action's keywords as JSON.
"""

import json
import sys

from ray.job_submission import JobSubmissionClient


def main(address: str, action: str, keywords: str) -> None:
    client = JobSubmissionClient(address)
    answer = getattr(client, action)(**json.loads(keywords))
    print(json.dumps(answer.dict() if hasattr(answer, "dict") else answer, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
