"""Every directory of ``conftest_examples``, executed as a user would: recorded, then checked."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from example_runs import EXAMPLES, HARMLESS, MODELS, SHORT, Run, copy, need, run

from pytest_portability import cli

need("onnx", "onnxruntime", "openvino", "torch", "safetensors", "tokenizers", *MODELS)

CPU = ("-o", "portability_targets=cpu-*")
"""What the examples leave open: a machine with an accelerator would measure that alone."""

ITEMS = {
    "quick_start": {("pitch", "onnxruntime.cpu", "fp32"), ("pitch", "openvino", "fp32")},
    "recurrent": {("silero", "onnxruntime.cpu", "native")},
    "targets_and_tolerances": {
        ("magika", "onnxruntime.cpu", "fp32"),
        ("magika", "openvino", "fp32"),
    },
    "torch_module": {("minilm", "torch", "native"), ("minilm", "torch.compile", "native")},
    "custom_runtime": {
        ("reference", "onnx.reference", "native"),
        ("reference", "onnxruntime.cpu", "native"),
    },
    "hooks": {("vad", "onnxruntime.cpu", "native")},
}
"""Directory → model, runtime and precision of its items on a CPU."""

EVERY = [(name, *item) for name, items in ITEMS.items() for item in sorted(items)]


FLOOR = """
from pytest_portability import footprint

footprint.FLOOR_BYTES = 16 * 2**20
"""
"""ONNX Runtime 1.32 plans the memory of the pitch model in one of two ways, 8 MiB apart, process by
process; that few repeats may well see one way in the first run and the other in the second."""


class Examples:
    """A copy of the examples, recorded and checked at most once: the hooks alone, the rest at once.

    A conftest is meant for what is beside it, and a user of all of them has them in one project.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._runs: dict[tuple[str, bool], Run] = {}

    def recorded(self, name: str = "") -> Run:
        """The run that wrote the records, of the hooks or of the rest."""
        # No figure is judged, so one repeat is enough.
        return self._run(name == "hooks", "--update-baselines", "-o", "portability_repeats=1")

    def checked(self, name: str) -> Run:
        """The run that held the same builds against them."""
        self.recorded(name)
        # What torch.compile does is seen while recording; once more it would cost half a minute.
        args = ("--portability", "--portability-tolerance=0.9", "-k", "not compile")
        return self._run(name == "hooks", *args)

    def _run(self, hooks: bool, *args: str) -> Run:
        key = (args[0], hooks)
        if key not in self._runs:
            paths = sorted(name for name in ITEMS if (name == "hooks") is hooks)
            self._runs[key] = run(self.root, *SHORT, *CPU, *args, *paths)
        return self._runs[key]

    @staticmethod
    def items(of: Run, name: str) -> list[dict[str, Any]]:
        """The items of one directory."""
        return [item for item in of.items if item["nodeid"].startswith(f"{name}/")]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    """A copy of the examples."""
    root = copy(tmp_path_factory.mktemp("examples") / "project")
    with (root / "conftest.py").open("a", encoding="utf-8") as conftest:
        conftest.write(FLOOR)
    return Examples(root)


def test_every_directory_is_executed_here() -> None:
    """A new example without a test is found."""
    directories = {path.parent.relative_to(EXAMPLES) for path in EXAMPLES.rglob("test_*.py")}
    assert {str(directory) for directory in directories} == {*ITEMS}


@pytest.mark.parametrize("name", ITEMS)
def test_every_directory_stands_alone(examples: Examples, name: str) -> None:
    """It runs from its own directory; without the flag its tests are skipped and say why."""
    plain = run(examples.root / name)
    assert plain.code == 0, plain.output
    assert "skipped" in plain.output
    assert " passed" not in plain.output
    assert not plain.report


# --- recorded, then checked ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ITEMS)
def test_the_first_run_measures_every_item_and_writes_its_record(
    examples: Examples, name: str
) -> None:
    """Nothing is skipped on a CPU with every runtime installed."""
    recorded = examples.recorded(name)
    assert recorded.code == 0, recorded.output
    items = examples.items(recorded, name)
    found = {(i["model"], i["runtime"], i["precision"]): i for i in items}
    assert ITEMS[name] <= found.keys()
    assert {item["verdict"] for item in found.values()} == {"missing"}
    assert {item["update"] for item in found.values()} == {"written"}


@pytest.mark.parametrize("name", ITEMS)
def test_the_second_run_finds_nothing_wrong(examples: Examples, name: str) -> None:
    """Identical builds: outputs, interface, placement, memory and kernels are what they were."""
    checked = examples.checked(name)
    assert checked.code == 0, checked.output
    items = examples.items(checked, name)
    assert items
    recorded = examples.recorded(name)
    for item in items:
        assert item["verdict"] in HARMLESS, checked.output
        before = recorded.item(item["model"], item["runtime"], item["precision"])
        assert _kernels(item) == _kernels(before)


def _kernels(item: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Kernels and launches of an item, without their times."""
    uses = item["record"]["path"]["uses"]
    return [(json.dumps(use["kernel"], sort_keys=True), use["launches"]) for use in uses]


@pytest.mark.parametrize(("name", "model", "runtime", "precision"), EVERY)
def test_a_record_says_how_it_was_built_and_what_it_achieved(
    examples: Examples, name: str, model: str, runtime: str, precision: str
) -> None:
    """It reads back from the file as what the report says of it."""
    recorded = examples.recorded(name)
    item = recorded.item(model, runtime, precision)
    record = recorded.record(model, runtime, precision)
    assert record.effective == item["record"]["effective"] == "fp32"
    assert record.toolchain
    assert record.model.weights
    assert record.figures.throughput == pytest.approx(item["throughput"], rel=1e-4)
    assert 0 < item["latency"]["p50_s"] <= item["latency"]["p90_s"] <= item["latency"]["p99_s"]
    assert item["memory_bytes"] == record.figures.memory_process_bytes
    assert item["memory_bytes"] > 0
    assert item["parity"]["error_rel"] < 1e-3
    assert record.parity.repeatable
    assert len(item["windows"]) == 1
    assert all(item["windows"])


PATHS = [
    ("pitch", "onnxruntime.cpu", {"CPUExecutionProvider"}, {"Conv", "FusedConv"}),
    ("pitch", "openvino", {"ov:CPU"}, {"Convolution"}),
    ("silero", "onnxruntime.cpu", {"CPUExecutionProvider"}, {"LSTM", "If"}),
    ("magika", "onnxruntime.cpu", {"CPUExecutionProvider"}, {"MatMul"}),
    ("magika", "openvino", {"ov:CPU"}, {"FullyConnected"}),
    ("minilm", "torch", {"aten:cpu"}, {"addmm"}),
    ("minilm", "torch.compile", {"inductor"}, {"addmm"}),
    ("reference", "onnx.reference", {"numpy"}, {"Conv", "LSTM"}),
]


@pytest.mark.parametrize(("model", "runtime", "providers", "ops"), PATHS)
def test_the_kernel_path_is_that_of_the_model(
    examples: Examples, model: str, runtime: str, providers: set[str], ops: set[str]
) -> None:
    """Its kernels are the runtime's own words for what this network is made of."""
    record = examples.recorded().record(model, runtime)
    assert not record.path.caveats
    assert {use.kernel.provider for use in record.path.uses} == providers
    assert {*record.providers} == providers
    assert ops <= {use.kernel.op for use in record.path.uses}
    assert all(use.launches >= 1 for use in record.path.uses)
    shares = [use.share for use in record.path.uses if use.share is not None]
    assert not shares or 0.5 < sum(shares) < 1.0001


METRICS = [
    ("pitch", "onnxruntime.cpu", "margin", 0.526),
    ("pitch", "openvino", "margin", 0.526),
    ("silero", "onnxruntime.cpu", "highest_probability", 0.048),
    ("magika", "onnxruntime.cpu", "confidence", 0.9596),
    ("magika", "openvino", "confidence", 0.9596),
    ("minilm", "torch", "margin", 0.3355),
    ("minilm", "torch.compile", "margin", 0.3355),
]


@pytest.mark.parametrize(("model", "runtime", "metric", "value"), METRICS)
def test_the_task_metric_is_the_trained_model_s(
    examples: Examples, model: str, runtime: str, metric: str, value: float
) -> None:
    """Everything is recognised, and the continuous figure beside it is the one known."""
    metrics = examples.recorded().item(model, runtime)["parity"]["metrics"]
    assert metrics.get("accuracy", 1.0) == 1.0
    assert metrics[metric] == pytest.approx(value, rel=0.01)


def test_throughput_counts_what_the_test_says(examples: Examples) -> None:
    """Tokens of a text model, frames of a sound model."""
    minilm = examples.recorded().record("minilm", "torch").figures
    assert (minilm.unit, minilm.items) == ("tokens", 4 * 32)
    assert examples.recorded().record("silero", "onnxruntime.cpu").figures.unit == ("frames")


def test_the_threads_asked_for_are_the_threads_recorded(examples: Examples) -> None:
    """``options={"torch": …}`` reaches both runtimes of that family."""
    recorded = examples.recorded()
    for runtime in ("torch", "torch.compile"):
        assert recorded.record("minilm", runtime).threads == 1


def test_torch_compile_really_compiled(examples: Examples) -> None:
    """One graph, and fewer kernels than run eagerly."""
    recorded = examples.recorded()
    eager, compiled = (recorded.record("minilm", r) for r in ("torch", "torch.compile"))
    assert compiled.compiled
    assert compiled.graph_breaks == 0
    launches = [
        sum(u.launches for u in r.path.uses if u.kernel.role == "compute")
        for r in (eager, compiled)
    ]
    assert launches[1] < launches[0]


# --- hooks --------------------------------------------------------------------------------------


def test_the_hooks_environment_is_recorded(examples: Examples) -> None:
    """And only in the record of the test beside that conftest."""
    vad = examples.recorded("hooks").record("vad", "onnxruntime.cpu")
    assert vad.options["env.ONEDNN_MAX_CPU_ISA"] == "AVX2"
    silero = examples.recorded().record("silero", "onnxruntime.cpu")
    assert "env.ONEDNN_MAX_CPU_ISA" not in silero.options


def test_the_hooks_fact_is_in_the_report(examples: Examples) -> None:
    """In its session."""
    assert examples.recorded("hooks").report["session"]["service"] == "voice-activity"
    assert "service" not in examples.recorded().report["session"]


def test_the_hooks_cause_explains_another_configuration(examples: Examples, tmp_path: Path) -> None:
    """A record twenty times as fast cannot be met; the cause names what the test changed."""
    examples.recorded("hooks")
    root = copy(tmp_path / "project")
    for file in (examples.root / "baselines" / "vad").iterdir():
        text = re.sub(
            r"^((?:busy|wall)_ratio) = (\S+)$",
            lambda m: f"{m[1]} = {float(m[2]) / 20:.5g}",
            file.read_text(encoding="utf-8"),
            flags=re.MULTILINE,
        )
        copied = root / "baselines" / "vad" / file.name
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_text(text, encoding="utf-8")
    test = root / "hooks" / "test_vad.py"
    text = test.read_text(encoding="utf-8")
    assert "polyphase 48 kHz" in text
    test.write_text(text.replace("polyphase 48 kHz", "linear 48 kHz"), encoding="utf-8")
    changed = run(root, *SHORT, *CPU, "--portability", "hooks")
    item = changed.item("vad", "onnxruntime.cpu")
    assert item["verdict"] in {"regressed", "inconclusive"}, changed.output
    causes = {(cause["kind"], cause["summary"]) for cause in item["causes"]}
    expected = "polyphase 48 kHz to 16 kHz → linear 48 kHz to 16 kHz"
    assert ("graph", f"resampling changed: {expected}") in causes
    assert expected in changed.output


# --- the demonstration --------------------------------------------------------------------------


@pytest.mark.alone
def test_a_lowered_optimization_level_is_a_regression_with_its_option_named(
    tmp_path: Path,
) -> None:
    """Default seconds and as many repeats as it takes; a loaded machine may need a second try."""
    root = copy(tmp_path / "project")
    args = (*CPU, "-m", "onnxruntime", "targets_and_tolerances")
    level = "--optimization-level=ORT_ENABLE_EXTENDED"
    for _ in range(2):
        recorded = run(root, "--update-baselines", *args)
        assert recorded.code == 0, recorded.output
        lowered = run(root, "--portability", level, *args)
        item = lowered.item("magika", "onnxruntime.cpu")
        if item["verdict"] != "inconclusive":
            break
    assert item["verdict"] == "regressed", lowered.output
    assert lowered.code == pytest.ExitCode.TESTS_FAILED
    assert item["loss"]["value"] > 0.08
    assert item["loss"]["low"] > 0
    assert item["loss"]["tolerance_source"] == "marker"
    first = item["causes"][0]
    assert first["kind"] == "options", item["causes"]
    assert first["summary"].startswith("graph_optimization_level: ")
    assert "extended" in first["summary"]
    assert item["parity"]["metrics"]["accuracy"] == 1.0


# --- the CI matrix ------------------------------------------------------------------------------


def _ci_scripts(name: str) -> tuple[list[dict[str, str]], list[str], list[str]]:
    """Runners of a CI's matrix, the commands of each, and those of the job that joins them."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (see tox.ini)")
    whole = yaml.safe_load((EXAMPLES / "ci_matrix" / name).read_text(encoding="utf-8"))
    if "jobs" not in whole:
        rows = whole["portability"]["parallel"]["matrix"]
        return rows, whole["portability"]["script"], whole["together"]["script"]
    jobs = whole["jobs"]
    each, joined = (
        [s.get("run", "") for s in jobs[n]["steps"]] for n in ("portability", "together")
    )
    return jobs["portability"]["strategy"]["matrix"]["include"], each, joined


def _ci_commands(name: str) -> list[tuple[list[str], str]]:
    """The pytest command of each runner of a matrix, and what it requires."""
    rows, scripts, _ = _ci_scripts(name)
    found = []
    for row in rows:
        for command in scripts:
            for key, value in row.items():
                for pattern in (f"${{{{ matrix.{key} }}}}", f"${key}"):
                    command = command.replace(pattern, str(value))  # noqa: PLW2901
            if command.startswith("pytest "):
                assert "${{" not in command
                found.append((shlex.split(command), row.get("require") or row["REQUIRE"]))
    return found


def test_both_ci_matrices_ask_for_the_same() -> None:
    """Their reports apart, which have other names; and the job that joins them asks for one."""
    github, gitlab = (
        [
            ([a for a in command if "report" not in a and "junit" not in a], require)
            for command, require in _ci_commands(name)
        ]
        for name in ("portability.yml", "gitlab.yml")
    )
    assert github == gitlab
    for name in ("portability.yml", "gitlab.yml"):
        *_, last = _ci_scripts(name)[2]
        command = shlex.split(last.partition(">")[0])
        assert command[:2] == ["pytest-portability", "report"]
        assert cli.parser().parse_args(command[1:]).files


def test_every_command_of_the_ci_matrix_is_one_of_ours(examples: Examples) -> None:
    """Where the required target is missing the run says so, which is what the job is for."""
    commands = _ci_commands("portability.yml")
    assert len(commands) == 4
    for command, require in commands:
        assert command[0] == "pytest"
        collected = run(examples.root, *command[1:], "--collect-only", "recurrent")
        if require == "cpu":
            assert collected.code == 0, collected.output
            assert "test_silero[cpu-" in collected.output
        elif collected.code:
            assert collected.code == pytest.ExitCode.USAGE_ERROR, collected.output
            assert f"{require}" in collected.output
            assert "cpu-" in collected.output  # what is here instead
            assert "unrecognized arguments" not in collected.output
            assert "not found in `markers`" not in collected.output
