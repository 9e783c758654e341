"""The lock: nothing drifts unseen, and what did not drift passes, on another machine too."""

import shutil

import pytest
import yaml

from nat_finetune.checks.lock import check_lock, keep_lock, lock_path, make_lock, read_lock
from nat_finetune.cli.main import main
from nat_finetune.config.load import load_config
from nat_finetune.errors import ConfigError
from nat_finetune.finetune import new_run
from nat_finetune.registry import Registry
from tests.source_tree import ROOT

REGISTRY = Registry.installed()
POLICY = ROOT / "workflows" / "tic_tac_toe" / "policy"
DATA = ROOT / "workflows" / "tic_tac_toe" / "data"

CONFIG = """\
config_version: 1
llms:
  policy: {_type: local, model: ./model, max_tokens: 2}
  judge: {_type: openai, model_name: m, api_key: "${JUDGE_KEY:-sk-SECRET}"}
functions: {choose_move: {_type: tic_tac_toe_move, llm: policy}}
workflow: {_type: tic_tac_toe, player: choose_move}
eval: {general: {dataset: {_type: jsonl, file_path: data/train.jsonl}}}
finetuning: {target_model: policy, seed: 5}
"""


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "here"
    shutil.copytree(POLICY, folder / "model", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (folder / "data").mkdir()
    rows = (DATA / "game_train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:5]
    (folder / "data" / "train.jsonl").write_text("".join(rows), encoding="utf-8")
    (folder / "config.yml").write_text(CONFIG, encoding="utf-8")
    assert main(["lock", str(folder / "config.yml")]) == 0
    return folder


def drift(folder, *overrides):
    arguments = [part for override in overrides for part in ("-o", override)]
    return main(["validate", "--locked", str(folder / "config.yml"), *arguments])


def test_what_did_not_change_passes_also_elsewhere(project, tmp_path):
    assert drift(project) == 0
    moved = project.rename(tmp_path / "another machine")
    assert drift(moved) == 0


def test_a_lock_holds_no_secret_and_no_place(project, tmp_path):
    text = (project / "config.lock.yml").read_text(encoding="utf-8")
    assert "sk-SECRET" not in text
    assert str(tmp_path) not in text
    assert yaml.safe_load(text)["datasets"]["eval.general.dataset"]["examples"] == 5


def test_another_value_is_named(project, capsys):
    assert drift(project, "finetuning.seed=6") == ConfigError.exit_code
    assert "values.finetuning.seed: locked as 5, found 6" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        ("data/train.jsonl", lambda text: text.replace(b"win", b"not", 1), "datasets.eval.general.dataset.hash"),
        ("data/train.jsonl", lambda text: text.split(b"\n", 1)[1], "datasets.eval.general.dataset.examples"),
        ("model/model.safetensors", lambda data: data[:-1] + bytes([data[-1] ^ 1]), "models.policy.weights"),
        ("model/chat_template.jinja", lambda text: text + b" ", "models.policy.chat_template"),
        ("model/tokenizer_config.json", lambda text: text + b"\n", "models.policy.tokenizer"),
        ("config.lock.yml", lambda text: text.replace(b"  torch: ", b"  torch: 0"), "packages.torch"),
    ],
)
def test_files_and_packages_that_changed_are_named(project, capsys, file, change, named):
    path = project / file
    data = path.read_bytes()
    path.write_bytes(change(data))
    assert path.read_bytes() != data
    assert drift(project) == ConfigError.exit_code
    assert named in capsys.readouterr().out


def test_a_hub_id_must_be_pinned(project, capsys):
    config = project / "config.yml"
    config.write_text(CONFIG.replace("./model", "owner/name"), encoding="utf-8")
    assert main(["lock", str(config)]) == ConfigError.exit_code
    assert "set `revision:`" in capsys.readouterr().err
    config.write_text(CONFIG.replace("./model", "owner/name, revision: abc123"), encoding="utf-8")
    assert main(["lock", str(config)]) == 0
    assert read_lock(lock_path(config))["models"]["policy"] == {"revision": "abc123"}


@pytest.mark.parametrize("text", [None, "", "lock_version: 99\n", "- a\n"])
def test_what_is_no_lock_is_refused(project, capsys, text):
    path = project / "config.lock.yml"
    path.unlink()
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert drift(project) == ConfigError.exit_code
    assert "nat-finetune lock CONFIG" in capsys.readouterr().out


async def test_a_locked_run_can_be_replayed_from_its_folder(project, tmp_path):
    store = new_run(load_config(project / "config.yml", registry=REGISTRY), tmp_path / "runs")
    await keep_lock(store.folder / "config.yml", REGISTRY)
    again = load_config(store.folder / "config.yml", registry=REGISTRY)
    await check_lock(again, REGISTRY)
    here = await make_lock(load_config(project / "config.yml", registry=REGISTRY), REGISTRY)
    assert {**read_lock(lock_path(again.path)), "values": None} == {**here, "values": None}
