"""Wrong configs, each with all that must be said of it: place, key, message and hint."""

from __future__ import annotations

import pytest

from nat_finetune.config.load import load_config
from nat_finetune.errors import ConfigError
from tests.config.components import WHOLE, registry


def problems_of(tmp_path, text, overrides=(), environment=None):
    path = tmp_path / "c.yml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides, registry=registry(), environment=environment or {})
    return caught.value.problems


# (name, text, [(line:column, key, part of message, part of hint)])
CASES = [
    # ------------------------------------------------------------------------------------------------ the file as YAML
    ("empty", "", [("1:1", "", "the file is empty", "")]),
    ("only comments", "# nothing\n", [("1:1", "", "the file is empty", "")]),
    ("list root", "- a\n", [("1:1", "", "expected a mapping of sections, found a list", "")]),
    ("text root", "hello\n", [("1:1", "", "expected a mapping of sections, found 'hello'", "")]),
    ("binary", b"llms:\x00\x01", [("1:6", "", "not a text file", "")]),
    ("not utf-8", b"llms: {}\nmetadata: {a: \xff}", [("2:15", "", "not a UTF-8 text file: byte 0xff", "")]),
    ("unclosed bracket", "llms: {a: [1, 2}\n", [("1:16", "", "invalid YAML", "")]),
    ("tab", "llms:\n\ta: 1\n", [("2:1", "", "invalid YAML", "spaces, not tabs")]),
    ("colon in a text", "metadata:\n  a: b: c\n", [("2:7", "", "mapping values are not allowed", "in quotes")]),
    ("two documents", "llms: {}\n---\nllms: {}\n", [("2:1", "", "found another document", "")]),
    ("python tag", "metadata: {a: !!python/object:os.system {}}\n", [("1:15", "", "tag !!python/object:os.system", "")]),
    ("own tag", "metadata: {a: !secret x}\n", [("1:15", "", "the tag !secret is not supported", "")]),
    ("unknown alias", "metadata: {a: *b}\n", [("1:15", "", "undefined alias", "")]),
    ("alias in itself", "metadata: {a: &b [*b]}\n", [("1:15", "", "this alias contains itself", "")]),
    ("key twice", "llms: {}\ntrainers: {}\nllms: {}\n", [("3:1", "", "the key 'llms' stands twice, first in line 1", "")]),
    ("number as key", "metadata:\n  1: x\n", [("2:3", "", "a key must be a text, found 1", "in quotes")]),
    ("list as key", "metadata:\n  [a]: x\n", [("2:3", "", "a key must be a text", "")]),
    ("merge of a text", "metadata:\n  <<: x\n", [("2:7", "", "`<<` takes a mapping", "")]),
    # ------------------------------------------------------------------------------------------------------------ keys
    ("unknown section", "trainer: {}\n", [("1:1", "trainer", "unknown key 'trainer'", "did you mean 'trainers'?")]),
    ("unknown key", "finetuning: {num_epoch: 2}\n", [("1:14", "finetuning.num_epoch", "unknown key", "'num_epochs'")]),
    (
        "unknown key far from all",
        "eval:\n  general: {xyz: 2}\n",
        [("2:13", "eval.general.xyz", "unknown key 'xyz'", "known: dataset, max_concurrency")],
    ),
    (
        "unknown key of a component",
        "trainers:\n  once: {_type: preference_trainer, max_pair: 3}\n",
        [("2:37", "trainers.once.max_pair", "unknown key 'max_pair'", "did you mean 'max_pairs'?")],
    ),
    (
        "unknown key deep in a component",
        "trainer_adapters: {a: {_type: here, algorithm: {name: dpo, bta: 1}}}\n",
        [("1:60", "trainer_adapters.a.algorithm.bta", "unknown key 'bta'", "did you mean 'beta'?")],
    ),
    (
        "misspelt required key",
        "functions: {f: {_type: answer, lm: x}}\n",
        [
            ("1:13", "functions.f.llm", "the key 'llm' is missing", "found 'lm'"),
            ("1:32", "functions.f.lm", "unknown key 'lm'", "did you mean 'llm'?"),
        ],
    ),
    (
        "NAT section",
        "config_version: 1\ngeneral: {use_uvloop: true}\n",
        [("2:1", "general", "a NAT key that nat-finetune does not", "")],
    ),
    ("NAT section memory", "memory: {}\n", [("1:1", "memory", "a NAT key that nat-finetune does not support", "")]),
    (
        "NAT key in eval.general",
        "config_version: 1\neval: {general: {profiler: {}, output_dir: x}}\n",
        [
            ("2:18", "eval.general.profiler", "a NAT key that nat-finetune does not support", ""),
            ("2:32", "eval.general.output_dir", "a NAT key", "finetuning.output_dir says where"),
        ],
    ),
    (
        "NAT key of a function",
        "llms: {m: {_type: endpoint, model: x}}\nworkflow: {_type: answer, llm: m, middleware: []}\n",
        [("2:35", "workflow.middleware", "a NAT key that nat-finetune does not support", "")],
    ),
    (
        "NAT key of a dataset",
        "eval: {general: {dataset: {_type: csv, file_path: a, s3: {}, structure: {trajectory_key: x}}}}\n",
        [
            ("1:54", "eval.general.dataset.s3", "a NAT key that nat-finetune does not support", ""),
            ("1:74", "eval.general.dataset.structure.trajectory_key", "a NAT key", ""),
        ],
    ),
    (
        "curriculum",
        "finetuning: {curriculum_learning: {enabled: true, random_subsample: 7.0}}\n",
        [("1:69", "finetuning.curriculum_learning.random_subsample", "at most 1", "")],
    ),
    # ---------------------------------------------------------------------------------------------------------- values
    ("number below range", "finetuning: {num_epochs: 0}\n", [("1:26", "finetuning.num_epochs", "at least 1, found 0", "")]),
    ("number above range", "finetuning: {max_failure_rate: 1.5}\n", [("1:32", "finetuning.max_failure_rate", "at most 1", "")]),
    ("fraction", "finetuning: {num_epochs: 1.5}\n", [("1:26", "finetuning.num_epochs", "expected an integer", "")]),
    ("text for number", "finetuning: {seed: abc}\n", [("1:20", "finetuning.seed", "expected an integer, found 'abc'", "")]),
    ("boolean for number", "finetuning: {seed: true}\n", [("1:20", "finetuning.seed", "expected an integer, found true", "")]),
    ("not a number", "finetuning: {failure_reward: .nan}\n", [("1:30", "finetuning.failure_reward", "finite number", "")]),
    ("infinity", "finetuning: {failure_reward: -.inf}\n", [("1:30", "finetuning.failure_reward", "finite number", "")]),
    ("overflow", "finetuning: {failure_reward: 1e999}\n", [("1:30", "finetuning.failure_reward", "finite number", "")]),
    (
        "number for text",
        "llms: {m: {_type: endpoint, model: 12}}\n",
        [("1:36", "llms.m.model", "expected a text, found 12", "write it in quotes")],
    ),
    ("text for mapping", "llms: x\n", [("1:7", "llms", "expected a mapping, found 'x'", "")]),
    (
        "text for list",
        "finetuning: {target_functions: answer}\n",
        [("1:32", "finetuning.target_functions", "expected a list", "")],
    ),
    ("empty list", "finetuning: {target_functions: []}\n", [("1:32", "finetuning.target_functions", "at least 1 item", "")]),
    (
        "choice",
        "llms: {m: {_type: endpoint, model: x}}\nfunctions: {f: {_type: answer, llm: m, style: shrt}}\n",
        [("2:47", "functions.f.style", "expected 'short' or 'long', found 'shrt'", "did you mean 'short'?")],
    ),
    (
        "unknown member of a union",
        "trainer_adapters: {a: {_type: here, algorithm: {name: ppo}}}\n",
        [("1:55", "trainer_adapters.a.algorithm.name", "expected 'grpo' or 'dpo', found 'ppo'", "'dpo'")],
    ),
    (
        "member of a union not named",
        "trainer_adapters: {a: {_type: here, algorithm: {beta: 1}}}\n",
        [("1:37", "trainer_adapters.a.algorithm.name", "the key 'name' is missing", "")],
    ),
    (
        "variable without quotes",
        "finetuning: {seed: ${SEED}}\n",
        [("1:21", "", "invalid YAML", "a `${VAR}` must be in quotes")],
    ),
    (
        "a component's own check",
        "eval: {evaluators: {e: {_type: judge, word: a b}}}\n",
        [("1:45", "eval.evaluators.e.word", "expected one word, found 'a b'", "")],
    ),
    ("version of the future", "config_version: 2\n", [("1:17", "config_version", "config_version 2 is not known", "newer")]),
    (
        "version 0",
        "config_version: 0\n",
        [("1:17", "config_version", "config_version 0 is not known", "write `config_version: 1`")],
    ),
    # ------------------------------------------------------------------------------------------------------ components
    (
        "unknown type",
        "trainers: {t: {_type: on_polcy_trainer}}\n",
        [("1:23", "trainers.t._type", "no component of trainers has the _type 'on_polcy_trainer'", "'on_policy_trainer'")],
    ),
    (
        "type missing",
        "trainers:\n  t: {num_runs: 1}\n",
        [("2:3", "trainers.t", "`_type` is missing", "on_policy_trainer, preference_trainer")],
    ),
    ("type is a number", "trainers: {t: {_type: 3}}\n", [("1:23", "trainers.t._type", "`_type` must be a text", "")]),
    (
        "component is a text",
        "trainers: {t: on_policy_trainer}\n",
        [("1:15", "trainers.t", "expected a mapping with a `_type`", "")],
    ),
    ("component is nothing", "trainers: {t: }\n", [("1:14", "trainers.t", "expected a mapping with a `_type`", "")]),
    # ------------------------------------------------------------------------------------------------------ references
    (
        "trainer",
        "finetuning: {trainer: fresh}\n",
        [("1:23", "finetuning.trainer", "trainers has no entry 'fresh'", "has no entries")],
    ),
    (
        "llm of a function",
        "llms: {policy: {_type: endpoint, model: x}}\nfunctions: {f: {_type: answer, llm: polcy}}\n",
        [("2:37", "functions.f.llm", "llms has no entry 'polcy'", "did you mean 'policy'?")],
    ),
    (
        "in a list, a dict and an optional field",
        "llms: {m: {_type: endpoint, model: x}}\n"
        "functions: {f: {_type: answer, llm: m, helper: g, judges: [a, b], strategies: {s: t}}}\n",
        [
            ("2:48", "functions.f.helper", "functions has no entry 'g'", "known: f"),
            ("2:60", "functions.f.judges[0]", "eval.evaluators has no entry 'a'", "`eval.evaluators` has no entries"),
            ("2:63", "functions.f.judges[1]", "eval.evaluators has no entry 'b'", ""),
            ("2:83", "functions.f.strategies.s", "ttc_strategies has no entry 't'", ""),
        ],
    ),
    (
        "target function",
        "finetuning: {target_functions: [<workflow>, anser]}\n"
        "functions: {answer: {_type: answer, llm: m}}\nllms: {m: {_type: endpoint, model: x}}\n",
        [("1:45", "finetuning.target_functions[1]", "functions has no entry 'anser'", "did you mean 'answer'?")],
    ),
    (
        "reward, target model, metrics",
        "finetuning:\n  reward_function: {name: r}\n  target_model: m\n"
        "  test: {dataset: {_type: csv, file_path: x}, metrics: [q]}\n",
        [
            ("2:27", "finetuning.reward_function.name", "eval.evaluators has no entry 'r'", ""),
            ("3:17", "finetuning.target_model", "llms has no entry 'm'", ""),
            ("4:57", "finetuning.test.metrics[0]", "eval.evaluators has no entry 'q'", ""),
        ],
    ),
    (
        "enabled, nothing named",
        "finetuning:\n  enabled: true\n",
        [("1:1", "finetuning", "enabled, but trainer and trajectory_builder and trainer_adapter not set", "")],
    ),
    # ------------------------------------------------------------------------------------------------------- variables
    (
        "unset",
        "finetuning: {seed: '${NOPE}'}\n",
        [("1:20", "finetuning.seed", "the environment variable NOPE is not set", "set it")],
    ),
    ("unset with message", "metadata: {a: '${NOPE:?ask Ada}'}\n", [("1:15", "metadata.a", "NOPE is not set: ask Ada", "")]),
    ("unclosed", "metadata: {a: '${NOPE'}\n", [("1:15", "metadata.a", "without a closing brace", "")]),
    ("no name", "metadata: {a: '${}'}\n", [("1:15", "metadata.a", "${} is not understood", "")]),
    ("not a name", "metadata: {a: '${a b}'}\n", [("1:15", "metadata.a", "${a b} is not understood: the forms are", "")]),
    (
        "text file missing",
        "metadata: {a: file://no.txt}\n",
        [("1:15", "metadata.a", "file://no.txt can't be read: No such file", "relative to this")],
    ),
    (
        "text file of another kind",
        "metadata: {a: file://c.yml}\n",
        [("1:15", "metadata.a", "file://c.yml is no text file", ".txt")],
    ),
    ("base missing", "llms: {}\nbase: no.yml\n", [("2:7", "base", "there is no file", "")]),
    ("base is a list", "base: [a]\n", [("1:7", "base", "base takes the path of one file, found a list", "")]),
    ("base is itself", "base: c.yml\n", [("1:7", "base", "base files in a circle: ", "")]),
    ("base is a folder", "base: .\n", [("1:7", "base", "is a folder", "")]),
]


@pytest.mark.parametrize(("text", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_fault_is_named_with_its_place(tmp_path, text, expected):
    found = problems_of(tmp_path, text)
    assert [(f"{p.line}:{p.column}", p.key) for p in found] == [case[:2] for case in expected]
    for problem, (_, _, message, hint) in zip(found, expected, strict=True):
        assert message in problem.message
        assert hint in (problem.hint or "")
        assert problem.file == str(tmp_path / "c.yml")


def test_all_faults_of_a_file_come_at_once_in_its_order(tmp_path):
    text = WHOLE.replace("max_concurrency: 4", "max_concurrency: 0").replace("num_epochs", "num_epoch")
    text = text.replace("trainer: fresh", "trainer: frsh").replace("llm: policy, helper: answer", "llm: polcy")
    text += "  seed: ${NOPE}\nprofiler: {}\n"
    assert [p.key for p in problems_of(tmp_path, text)] == [
        "workflow.llm",
        "eval.general.max_concurrency",
        "finetuning.trainer",
        "finetuning.seed",
        "profiler",
    ]


def test_one_fault_makes_one_problem(tmp_path):
    """A variable that is not set is no dangling reference, and whether the parts fit is asked when they are known."""
    misfit = WHOLE.replace("trainer: fresh", "trainer: once")
    (problem,) = problems_of(tmp_path, misfit.replace("target_model: policy", "target_model: '${NOPE}'"))
    assert problem.message == "the environment variable NOPE is not set"


def test_a_broken_component_does_not_hide_references_to_it(tmp_path):
    """An entry that is there but wrong is one problem, not also a dangling reference."""
    found = problems_of(tmp_path, WHOLE.replace("fresh: {_type: on_policy_trainer}", "fresh: {_type: on_polcy_trainer}"))
    assert [p.key for p in found] == ["trainers.fresh._type"]


@pytest.mark.parametrize(("name", "said"), [("no.yml", "there is no file"), (".", "is a folder, expected a YAML file")])
def test_a_path_that_is_no_file(tmp_path, name, said):
    with pytest.raises(ConfigError, match=said):
        load_config(tmp_path / name, registry=registry())


def test_too_deep(tmp_path):
    assert "nested too deeply" in problems_of(tmp_path, "metadata: " + "[" * 5000)[0].message


def test_aliases_that_multiply(tmp_path):
    lines = ["metadata:", "  a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "more than 100000 values" in problems_of(tmp_path, "\n".join(lines))[0].message


def test_a_sentence_about_several_keys_ends_where_it_ends(tmp_path):
    found = problems_of(tmp_path, "finetuning: {split: {validation: 0.6, test: 0.6}}\n")[0]
    assert (found.key, found.message) == ("finetuning.split", "validation and test leave nothing to train on")
