"""The command line. A command is one file of this folder and one line below; its file imports nothing heavy at the top."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

from nat_finetune import __version__
from nat_finetune.cli.arguments import normalised
from nat_finetune.cli.calibrate import calibrate
from nat_finetune.cli.diff import diff
from nat_finetune.cli.doctor import doctor
from nat_finetune.cli.errors import report, report_unexpected
from nat_finetune.cli.eval import evaluate
from nat_finetune.cli.explain import explain
from nat_finetune.cli.export import export
from nat_finetune.cli.export_data import export_data
from nat_finetune.cli.gate import gate
from nat_finetune.cli.jobs import jobs
from nat_finetune.cli.list import list_components
from nat_finetune.cli.lock import lock
from nat_finetune.cli.migrate import migrate
from nat_finetune.cli.new import new
from nat_finetune.cli.plan import plan
from nat_finetune.cli.run import run
from nat_finetune.cli.runs import runs
from nat_finetune.cli.schema import schema
from nat_finetune.cli.serve_rollouts import serve_rollouts
from nat_finetune.cli.smoke import smoke
from nat_finetune.cli.validate import validate
from nat_finetune.errors import NatFinetuneError

app = typer.Typer(
    name="nat-finetune",
    help="Finetune the model of an LLM agent from its own workflow: one YAML file says everything.",
    epilog="Exit codes: 0 done, 2 config, 3 no data, 4 no trainable signal, 5 rollout failures, 6 backend, 7 detached, "
    "8 output, 9 gate failed, 10 doctor found errors, 130 interrupted, 1 anything else.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("run")(run)
app.command("validate")(validate)
app.command("calibrate")(calibrate)
app.command("list")(list_components)
app.command("new")(new)
app.command("migrate")(migrate)
app.command("plan")(plan)
app.command("lock")(lock)
app.command("smoke")(smoke)
app.command("doctor")(doctor)
app.command("schema")(schema)
app.command("explain")(explain)
app.command("diff")(diff)
app.command("eval")(evaluate)
app.command("export")(export)
app.command("export-data")(export_data)
app.command("runs")(runs)
app.command("serve-rollouts")(serve_rollouts)
app.command("gate")(gate)
app.add_typer(jobs)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"nat-finetune {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="show the version", callback=_show_version, is_eager=True)] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error (may stand anywhere)")] = False,
) -> None:
    """Options of every command; `--debug` is taken out of the arguments before they get here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and say what it ends with (`nat_finetune.errors`)."""
    arguments, debug = normalised(sys.argv[1:] if argv is None else argv)
    sys.excepthook = report_unexpected(debug=debug)
    try:
        get_command(app)(arguments, prog_name="nat-finetune")  # app() itself would replace sys.excepthook
    except NatFinetuneError as error:
        return report(error, debug=debug)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
