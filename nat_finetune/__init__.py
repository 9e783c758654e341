"""nat-finetune: finetune the model of an LLM agent from its own workflow.

Importing this package is cheap: it loads neither torch nor transformers. Write components with `nat_finetune.registry` and
`nat_finetune.config.component`, record from inside a workflow with `nat_finetune.tracing`, run configs with
`nat-finetune run`.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("nat-finetune")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
