"""Does a plugin keep what its interface promises? One call in a test: `conformance.check_builder(MyBuilderConfig())`."""

from nat_finetune.testing.conformance.adapters import check_adapter
from nat_finetune.testing.conformance.builders import check_builder
from nat_finetune.testing.conformance.remote import check_remote_adapter
from nat_finetune.testing.conformance.report import ConformanceError
from nat_finetune.testing.conformance.trainers import check_trainer

__all__ = ["ConformanceError", "check_adapter", "check_builder", "check_remote_adapter", "check_trainer"]
