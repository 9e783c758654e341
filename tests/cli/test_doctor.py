"""`nat-finetune doctor`: what it prints, and what it ends with."""

import json

from nat_finetune.cli.main import main
from nat_finetune.errors import DoctorFound
from tests.checks.doctor.faults import small_config


def test_a_config_without_errors(tmp_path, capsys):
    assert main(["doctor", str(small_config(tmp_path)), "--quick"]) == 0
    said = capsys.readouterr().out
    assert "note: [settings.no-test]" in said
    assert "not looked at: endpoints, chat template, reward and rollouts: --quick" in said
    assert "0 errors, 0 warnings" in said


def test_errors_end_with_an_exit_code_of_their_own(tmp_path, capsys):
    arguments = ["doctor", str(small_config(tmp_path)), "--quick", "--json", "-o", "llms.policy.model=./nowhere"]
    assert main(arguments) == DoctorFound.exit_code == 10
    printed = capsys.readouterr()
    about = json.loads(printed.out)
    assert about["ok"] is False
    assert about["counts"]["error"] == 1
    (first, *_) = about["findings"]
    assert (first["id"], first["severity"], first["key"]) == ("model.unreadable", "error", "llms.policy.model")
    assert first["fix"]
    assert "1 error in" in printed.err
