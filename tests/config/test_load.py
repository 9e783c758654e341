"""Right configs: what comes out of reading, inheriting, expanding, overriding and resolving."""

from __future__ import annotations

from pathlib import Path

import pytest

from nat_finetune.config.load import load_config
from nat_finetune.config.nodes import parse
from nat_finetune.errors import ConfigError
from nat_finetune.registry import Registry
from tests.config.components import WHOLE, registry

ENDPOINT = "llms: {m: {_type: endpoint, model: x, api_key: '${KEY}'}}\n"


def load(tmp_path, text, overrides=(), name="c.yml", **environment):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return load_config(path, overrides, registry=registry(), environment=environment)


def problems_of(tmp_path, text, overrides=(), **environment):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, overrides, **environment)
    return caught.value.problems


def test_a_whole_config(tmp_path):
    loaded = load(tmp_path, WHOLE)
    config = loaded.config
    assert config.finetuning.validation.interval == 5
    assert config.trajectory_builders["groups"].num_generations == 8
    assert type(config.workflow).component_name == "answer"
    assert loaded.notes == ()
    assert loaded.path == tmp_path / "c.yml"
    assert loaded.files == (tmp_path / "c.yml",)


def test_a_nat_config_is_read_with_a_note(tmp_path):
    loaded = load(tmp_path, WHOLE.replace("config_version: 1\n", "").replace("_type: judge", "type: judge"))
    assert "config_version is absent" in loaded.notes[0]
    assert loaded.config.eval.evaluators["outcome"].component_name == "judge"


def test_sections_left_empty_are_absent(tmp_path):
    loaded = load(tmp_path, "llms:\nfunctions:\nfinetuning:\neval:\n")
    assert loaded.config.llms == {}
    assert loaded.config.finetuning.num_epochs == 1


# --------------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-5", 1e-5),
        ("1.5E3", 1500.0),
        ("-.5", -0.5),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("+3", 3),
        (".inf", float("inf")),
        ("yes", "yes"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("True", True),
        ("~", None),
        ("", None),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("!!float 1", 1.0),
        ("1.2.3", "1.2.3"),
    ],
)
def test_plain_scalars_are_read_by_yaml_1_2(written, value):
    node = parse(f"a: {written}", "f").mapping["a"]
    assert node.value == value
    assert type(node.value) is type(value)


def test_merge_keys_and_aliases(tmp_path):
    text = "metadata:\n  a: &a {x: 1, y: 2}\n  b: {<<: *a, y: 3}\n  c: {<<: [*a, {x: 9, z: 9}]}\n"
    metadata = load(tmp_path, text).config.metadata
    assert metadata["b"] == {"x": 1, "y": 3}
    assert metadata["c"] == {"x": 1, "y": 2, "z": 9}


def test_a_byte_order_mark_is_no_fault(tmp_path):
    assert load(tmp_path, "\ufeffmetadata: {a: 1}").config.metadata == {"a": 1}


# ------------------------------------------------------------------------------------------------------------- variables


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${A}", "x: y # z"),
        ("<${A}>", "<x: y # z>"),
        ("${NOPE:-d}", "d"),
        ("${EMPTY:-d}", "d"),
        ("${EMPTY}", ""),
        ("${A:-d}", "x: y # z"),
        ("${NOPE:-${A}}", "x: y # z"),
        ("${NOPE:-}", ""),
        ("${A:?needed}", "x: y # z"),
        ("${A:+set}", "set"),
        ("${NOPE:+set}", ""),
        ("$${A}", "${A}"),
        ("$A", "$A"),
        ("a}b", "a}b"),
    ],
)
def test_variables_in_strings(tmp_path, written, value):
    loaded = load(tmp_path, f"metadata: {{a: '{written}'}}", A="x: y # z", EMPTY="")
    assert loaded.config.metadata["a"] == value


def test_variables_are_typed_by_the_schema(tmp_path):
    text = "# ${NOT_READ}\nfinetuning:\n  seed: ${N}\n  failure_reward: ${R}\n  deterministic: ${B}\nmetadata: {n: '${N}'}\n"
    loaded = load(tmp_path, text, N="12", R="1e-5", B="true")
    assert loaded.config.finetuning.seed == 12
    assert loaded.config.finetuning.failure_reward == 1e-5
    assert loaded.config.finetuning.deterministic is True
    assert loaded.config.metadata["n"] == "12"


def test_a_text_that_looks_like_a_number_stays_a_text(tmp_path):
    loaded = load(tmp_path, "llms: {m: {_type: endpoint, model: '${NAME}'}}", NAME="123")
    assert loaded.config.llms["m"].model_name == "123"


@pytest.mark.parametrize(
    "text",
    [
        "finetuning: {seed: '${SECRET}'}",
        "finetuning: {trainer: '${SECRET}'}",
        "eval: {evaluators: {e: {_type: judge, word: 'a ${SECRET}'}}}",
        "eval: {evaluators: {e: {_type: judge, word: '${SECRET}', other_word: '${SECRET}'}}}",
        "llms: {m: {_type: endpoint, model: x, api_key: {a: '${SECRET}'}}}",
        "trainers: {t: {_type: '${SECRET}'}}",
        "trainer_adapters: {a: {_type: here, algorithm: {name: '${SECRET}'}}}",
        "functions: {f: {_type: answer, llm: m, style: '${SECRET}'}}",
        "metadata: {a: 'file://${SECRET}'}",
        "base: '${SECRET}.yml'",
    ],
)
def test_values_of_variables_are_never_shown(tmp_path, text):
    assert "hunter2" not in str(problems_of(tmp_path, text, SECRET="hunter2"))


def test_text_files(tmp_path):
    (tmp_path / "p.txt").write_text("Be ${KIND}.\n")
    text = "llms: {m: {_type: endpoint, model: x}}\nworkflow: {_type: answer, llm: m, prompt: 'file://${P}.txt'}"
    assert load(tmp_path, text, P="p").config.workflow.prompt == "Be ${KIND}.\n"


# ------------------------------------------------------------------------------------------------------------------ base


def test_base_files_are_merged(tmp_path):
    load(tmp_path, "metadata: {a: {x: 1, y: 2}, l: [1, 2], n: 1, k: base}\nfinetuning: {seed: 3}", name="lib/root.yml")
    load(tmp_path, "base: root.yml\nmetadata: {a: {y: 3}}", name="lib/mid.yml")
    loaded = load(tmp_path, "base: lib/mid.yml\nmetadata: {a: {z: 4}, l: [3], n: null}")
    assert loaded.config.metadata == {"a": {"x": 1, "y": 3, "z": 4}, "l": [3], "n": None, "k": "base"}
    assert loaded.config.finetuning.seed == 3
    assert [path.name for path in loaded.files] == ["c.yml", "mid.yml", "root.yml"]


def test_a_circle_of_base_files_names_the_chain(tmp_path):
    (tmp_path / "a.yml").write_text("base: c.yml")
    problem = problems_of(tmp_path, "base: a.yml")[0]
    assert problem.message == f"base files in a circle: {tmp_path}/c.yml → {tmp_path}/a.yml → {tmp_path}/c.yml"
    assert (problem.file, problem.line) == (str(tmp_path / "a.yml"), 1)


def test_a_fault_in_a_base_file_is_placed_there(tmp_path):
    (tmp_path / "b.yml").write_text("trainers: {}\nfinetuning: {sed: 3, seed: x}")
    problems = problems_of(tmp_path, "base: b.yml\nfinetuning: {seed: y}")
    assert [(Path(p.file).name, p.line, p.key) for p in problems] == [
        ("c.yml", 2, "finetuning.seed"),
        ("b.yml", 2, "finetuning.sed"),
    ]


# ----------------------------------------------------------------------------------------------------------------- paths


def test_inputs_are_relative_to_the_file_that_names_them(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    load(tmp_path, "llms: {p: {_type: in_process, model: ./weights}, q: {_type: in_process, model: q.gguf}}", name="lib/b.yml")
    text = "base: lib/b.yml\nllms: {r: {_type: in_process, model: org/name}, s: {_type: in_process, model: 'builtin:s'}}\n"
    text += "eval: {general: {dataset: {_type: csv, file_path: d/x.csv}}}\nfinetuning: {output_dir: out}"
    config = load(tmp_path, text).config
    assert config.llms["p"].model == str(tmp_path / "lib/weights")
    assert config.llms["q"].model == str(tmp_path / "lib/q.gguf")
    assert config.llms["r"].model == "org/name"
    assert config.llms["s"].model == "builtin:s"
    assert config.eval.general.dataset.file_path == str(tmp_path / "d/x.csv")
    assert config.finetuning.output_dir == Path("out")


def test_a_path_in_an_override_is_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load(tmp_path / "deep", WHOLE, ["llms.policy.model=./weights", "eval.general.dataset.file_path=x.jsonl"]).config
    assert config.llms["policy"].model == str(tmp_path / "weights")
    assert config.eval.general.dataset.file_path == str(tmp_path / "x.jsonl")


# ------------------------------------------------------------------------------------------------------------- overrides


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("finetuning.seed=7", lambda c: c.finetuning.seed, 7),
        ("finetuning.failure_reward=1e-5", lambda c: c.finetuning.failure_reward, 1e-5),
        ("finetuning.failure_reward=null", lambda c: c.finetuning.failure_reward, None),
        ("finetuning.deterministic=true", lambda c: c.finetuning.deterministic, True),
        ("finetuning.output_dir=123", lambda c: c.finetuning.output_dir, Path("123")),
        ("finetuning.target_functions=[<workflow>, answer]", lambda c: c.finetuning.target_functions, ["<workflow>", "answer"]),
        ("finetuning.target_functions.0=<workflow>", lambda c: c.finetuning.target_functions, ["<workflow>"]),
        ("finetuning.target_functions[0]=<workflow>", lambda c: c.finetuning.target_functions, ["<workflow>"]),
        ("functions.answer.prompt=12", lambda c: c.functions["answer"].prompt, "12"),
        ("functions.answer.prompt=a=b: {c", lambda c: c.functions["answer"].prompt, "a=b: {c"),
        ("functions.answer.prompt=", lambda c: c.functions["answer"].prompt, ""),
        ("functions.answer.prompt=${P}", lambda c: c.functions["answer"].prompt, "from outside"),
        ("functions.answer.helper=null", lambda c: c.functions["answer"].helper, None),
        ("trainer_adapters.by_pair.algorithm.beta=0.5", lambda c: c.trainer_adapters["by_pair"].algorithm.beta, 0.5),
        ("trainer_adapters.by_pair.betas=[0.5, 0.6]", lambda c: c.trainer_adapters["by_pair"].betas, (0.5, 0.6)),
        ("metadata.team.name=ml", lambda c: c.metadata, {"team": {"name": "ml"}}),
        ("llms.gpt-4.1._type=endpoint", lambda c: c.llms, None),
    ],
)
def test_overrides_are_typed_by_the_schema(tmp_path, override, read, value):
    if override.startswith("llms.gpt"):
        config = load(tmp_path, WHOLE, ["llms.judge._type=endpoint", "llms.judge.model=gpt-4.1"]).config
        assert config.llms["judge"].model_name == "gpt-4.1"
        return
    assert read(load(tmp_path, WHOLE, [override], P="from outside").config) == value


def test_an_entry_with_dots_in_its_name(tmp_path):
    text = "llms: {gpt-4.1: {_type: in_process, model: x}}"
    assert load(tmp_path, text, ["llms.gpt-4.1.temperature=0.5"]).config.llms["gpt-4.1"].temperature == 0.5


def test_the_last_override_wins_and_one_may_set_what_was_unset(tmp_path):
    overrides = ["finetuning.seed=1", "finetuning.seed=2"]
    assert load(tmp_path, "finetuning: {seed: '${NOPE}'}", overrides).config.finetuning.seed == 2


@pytest.mark.parametrize(
    ("override", "key", "message", "hint"),
    [
        ("finetuning.sed=1", "finetuning.sed", "unknown key 'sed'", "did you mean 'seed'?"),
        ("trainers.frsh.num_runs=1", "trainers.frsh.num_runs", "there is no entry 'frsh'", "did you mean 'fresh'?"),
        ("trainers.once.num_run=1", "trainers.once.num_run", "unknown key 'num_run'", "did you mean 'num_runs'?"),
        ("finetuning.seed.x=1", "finetuning.seed.x", "unknown key 'x'", ""),
        ("finetuning.target_functions.7=x", "finetuning.target_functions.7", "unknown key '7'", ""),
        ("trainer_adapters.by_pair.algorithm.clip=1", "trainer_adapters.by_pair.algorithm.clip", "unknown key 'clip'", "beta"),
        ("finetuning.run_configuration=1", "finetuning.run_configuration", "a NAT key that nat-finetune does not", ""),
        ("finetuning.seed", "", "an override is `path.to.key=value`", ""),
        ("=1", "", "an override is `path.to.key=value`", ""),
        ("finetuning.seed=abc", "finetuning.seed", "expected an integer, found 'abc'", ""),
        ("finetuning.seed=[1", "", "invalid YAML", ""),
        ("finetuning.seed=-1", "finetuning.seed", "expected at least 0, found -1", ""),
        ("finetuning.seed=${NOPE}", "finetuning.seed", "the environment variable NOPE is not set", ""),
        ("finetuning.trainer=frsh", "finetuning.trainer", "trainers has no entry 'frsh'", "did you mean 'fresh'?"),
    ],
)
def test_overrides_that_lead_nowhere_or_are_wrong(tmp_path, override, key, message, hint):
    (problem,) = problems_of(tmp_path, WHOLE, [override])
    assert (problem.file, problem.line, problem.key) == (f"-o {override}", None, key)
    assert message in problem.message
    assert hint in (problem.hint or "")


# ---------------------------------------------------------------------------------------------------------- resolved dump


def test_the_resolved_config_loads_back_to_an_equal_one(tmp_path):
    metadata = (
        "metadata: {a: [1, {b: null}], 'yes': 'a: b', m: \"x\\n  y \", n: '1', f: '1e-5', o: '$${X}', e: {}, l: [], '': 1}\n"
    )
    loaded = load(tmp_path, WHOLE + metadata, ["llms.policy.temperature=0.7"])
    again = load(tmp_path / "runs/x", loaded.to_yaml(), name="config.yml")
    assert again.config == loaded.config
    assert again.config.metadata["m"] == "x\n  y "
    assert again.to_yaml() == loaded.to_yaml()


def test_the_resolved_config_shows_defaults_without_making_them_choices(tmp_path):
    dumped = load(tmp_path, WHOLE).to_yaml()
    assert "  # num_epochs: 1\n" in dumped
    assert "structure: {disable: false, question_key: question, answer_key: answer}" in dumped
    again = load(tmp_path, dumped).config
    assert "num_epochs" not in again.finetuning.model_fields_set


def test_secrets_do_not_get_into_the_resolved_config(tmp_path):
    text = (
        "llms:\n  a: {_type: endpoint, model: x, api_key: '${KEY}', hf_token: written-out}\n"
        "  b: {_type: endpoint, model: x, api_key: 'Bearer ${KEY}', headers: {Authorization: written-out, accept: json}}\n"
        "  c: {_type: endpoint, model: x, api_key: '${NOPE:-written-out}'}\n"
        "  d: {_type: endpoint, model: x, api_key: '${KEY:-written-out}', hf_token: 'written-out${KEY}'}\n"
    )
    loaded = load(tmp_path, text, KEY="hunter2")
    dumped = loaded.to_yaml()
    assert loaded.config.llms["a"].api_key.get_secret_value() == "hunter2"
    assert "hunter2" not in dumped
    assert "written-out" not in dumped
    assert "accept: json" in dumped
    assert load(tmp_path, dumped, KEY="hunter2").config.llms["a"].api_key == loaded.config.llms["a"].api_key


def test_a_secret_that_may_be_missing_is_read_again_from_the_environment(tmp_path):
    loaded = load(tmp_path, "llms: {a: {_type: endpoint, model: x, api_key: '${KEY:-}'}}\n", KEY="hunter2")
    dumped = loaded.to_yaml()
    assert "hunter2" not in dumped
    assert load(tmp_path, dumped, KEY="hunter2").config == loaded.config


@pytest.mark.parametrize("key", ["api_key", "hf_token"])
def test_a_secret_that_is_missing_now_may_be_in_the_next_process(tmp_path, key):
    dumped = load(tmp_path, f"llms: {{a: {{_type: endpoint, model: x, {key}: '${{KEY:-}}'}}}}\n").to_yaml()
    assert f"{key}: ${{KEY:-}}" in dumped
    again = load(tmp_path, dumped, KEY="hunter2").config.llms["a"]
    assert "hunter2" in (again.api_key.get_secret_value() if key == "api_key" else again.hf_token)


def test_an_empty_secret_stays_empty(tmp_path):
    dumped = load(tmp_path, "llms: {a: {_type: endpoint, model: x, api_key: ''}}\n").to_yaml()
    assert load(tmp_path, dumped).config.llms["a"].api_key.get_secret_value() == ""


def test_an_empty_registry_says_that_nothing_is_installed(tmp_path):
    path = tmp_path / "c.yml"
    path.write_text("llms: {m: {}}")
    with pytest.raises(ConfigError, match="known: none is installed"):
        load_config(path, registry=Registry())
