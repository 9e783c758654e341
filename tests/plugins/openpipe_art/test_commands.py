"""What looks at a config before it is run samples where ART serves the model, not at the address that the config has for it."""

import pytest

from nat_finetune.cli.main import main
from nat_finetune.testing.art_server import art_app
from nat_finetune.testing.serving import serving
from tests.source_tree import ROOT

CONFIG = ROOT / "configs" / "grpo_tic_tac_toe_openpipe_art.yml"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["doctor", "--examples", "2"], "trainer_adapters.art serves it"),
        (["plan", "--measure", "2"], "a plan starts no job of a remote backend"),
        (["eval"], "legal_rate"),
    ],
    ids=["doctor", "plan", "eval"],
)
def test_a_look_before_a_run(tmp_path, capsys, command, says):
    with serving(art_app(tmp_path / "art")) as server:
        port = server.url.rsplit(":", 1)[1]
        given = {"trainer_adapters.art.backend.port": port, "llms.policy.base_url": "http://127.0.0.1:9/v1"}
        overrides = [part for key, value in given.items() for part in ("-o", f"{key}={value}")]
        assert main([*command, str(CONFIG), *overrides]) == 0
        asked = {request.json["model"] for request in server.of("POST", "/v1/chat")}
    out = capsys.readouterr().out
    assert says in out
    assert "unknown  unknown" not in out
    assert asked == {"tic_tac_toe@0"}
    assert server.of("POST", "/_train_model") == []
