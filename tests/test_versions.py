"""Stored records held against each other, through the command line and real git."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import KEY, RECORD, figures, path, steady, use
from vendors import VENDORS

from pytest_portability import cli, compare, records
from pytest_portability.errors import RecordError
from pytest_portability.outputs import sketch
from pytest_portability.records import Record
from pytest_portability.verdicts import Verdict
from pytest_portability.versions import git, history, sharing
from pytest_portability.versions.closest import beside

IDENTITY = {
    **{f"GIT_{who}_NAME": "A Tester" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "tester@example.org" for who in ("AUTHOR", "COMMITTER")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


class Project:
    """A git checkout with a directory of records, and the command line in it."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.baselines = root / "baselines"
        self._capsys = capsys
        self._commits = 0

    def git(self, *arguments: str) -> str:
        self._commits += arguments[0] == "commit"
        date = f"2026-03-{self._commits + 1:02d}T12:00:00Z"
        dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        return subprocess.run(
            ["git", "-C", str(self.root), *arguments],
            env={**os.environ, **IDENTITY, **dates},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    def commit(self, message: str = "x") -> str:
        self.git("add", "-A")
        self.git("commit", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def record(self, *some: Record, to: Path | None = None) -> None:
        for one in some:
            file = records.path_of(to or self.baselines, one.key.model, one.key.target)
            records.write(file, {one.key: one})

    def call(self, *arguments: str) -> tuple[int, str, str]:
        try:
            code = cli.main(arguments)
        except SystemExit as exc:  # argparse's own
            code = int(exc.code or 0)
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def json(self, *arguments: str) -> Any:
        return json.loads(self.call(*arguments, "--json")[1])


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Project:
    made = Project(tmp_path, capsys)
    made.git("init", "-q", "-b", "main")
    monkeypatch.chdir(tmp_path)
    return made


def at(level: float, base: Record = RECORD, **changes: Any) -> Record:
    """The record with another time per batch, relative to the yardstick and in seconds."""
    some = figures(steady(level), steady(level))
    return replace(base, **{"figures": replace(some, throughput=8000 / level), **changes})


def on(target: str, vendor: str, runtime: str, base: Record = RECORD, **changes: Any) -> Record:
    key = replace(base.key, target=target, runtime=runtime)
    product = target.partition("-")[2].upper()
    return replace(base, key=key, vendor=vendor, arch="", product=product, **changes)


H200 = on("nvidia-h200", "nvidia", "onnxruntime.cuda", at(1.0), platform="cuda")
MI300X = on("amd-mi300x", "amd", "onnxruntime.migraphx", at(2.0), platform="rocm")


# --- diff --------------------------------------------------------------------------------------


def test_two_commits_are_compared_row_by_row_with_their_causes(project: Project) -> None:
    fused = path(use("BiasGelu", 2, 0.5, absorbs=("Add", "Gelu")), use("MatMul", 2, 0.5))
    split = path(use("Add", 2, 0.3), use("Gelu", 2, 0.3), use("MatMul", 2, 0.4))
    project.record(at(10.0, path=fused))
    project.commit()
    project.git("tag", "v1")
    project.record(at(14.0, path=split, toolchain={"onnxruntime": "1.32.0"}))
    project.commit()
    for arguments in (("v1", "HEAD"), ("v1..HEAD",), ("v1", "baselines")):
        code, out, _ = project.call("diff", *arguments)
        assert code == 1
        assert f"{KEY.model} {KEY.row} on {KEY.target}: REGRESSED" in out
        assert "throughput  800 → 571.4 samples/s (-28.6%)" in out
        assert re.search(r"^    cause       .*% of the loss: fusion: ", out, re.MULTILINE)
        assert "compared: 1, worse: 1, too uncertain to tell: 0; only in v1: 0" in out
    assert project.call("diff", "HEAD", "HEAD")[0] == 0
    assert project.call("diff", "v1..HEAD", "--tolerance=0.5")[0] == 0


def test_two_targets_are_compared_by_raw_figures(project: Project) -> None:
    project.record(H200, MI300X)
    (row,) = project.json("diff", "nvidia-h200..amd-mi300x")["rows"]
    assert row["verdict"] == "regressed"
    assert row["old"]["runtime"] == "onnxruntime.cuda"
    assert row["key"]["runtime"] == "onnxruntime.migraphx"
    assert row["throughput"] == {"old": 8000, "new": 4000}
    assert "raw seconds" in row["reason"]


def test_targets_of_two_commits_are_compared(project: Project) -> None:
    project.record(H200)
    project.commit()
    project.git("tag", "v1")
    project.record(MI300X)
    project.commit()
    found = project.json("diff", "v1:nvidia-h200..HEAD:amd-mi300x")
    assert [row["old"]["target"] for row in found["rows"]] == ["nvidia-h200"]


def test_what_is_on_one_side_only_is_listed(project: Project) -> None:
    gone = at(10.0, replace(RECORD, key=replace(KEY, model="gone")))
    project.record(RECORD, gone)
    project.commit()
    (project.baselines / "gone" / f"{KEY.target}.toml").unlink()
    project.record(H200)
    code, out, _ = project.call("diff", "HEAD", "baselines")
    assert code == 0
    assert f"only in HEAD: gone {KEY.row} on {KEY.target}" in out
    assert f"only in baselines: {H200.key.model} {H200.key.row} on nvidia-h200" in out


def test_markdown_cannot_be_broken_out_of(project: Project) -> None:
    evil = replace(KEY, model="a|b*<script>`x`[l](u)\\[m\\](u)@team\n# h")
    project.record(at(10.0, replace(RECORD, key=evil)))
    _, out, _ = project.call("diff", "baselines", "baselines", "--markdown")
    (line,) = (line for line in out.splitlines() if line.startswith("| a"))
    assert line.count("|") - line.count("\\|") == 7
    assert "<script>" not in line
    assert "\\`x\\`" in line
    assert "\\\\\\[m" in line
    assert "@team" not in line


def test_a_row_that_both_have_is_no_row_of_another_target(project: Project) -> None:
    """One side names a target, the other none; another target's row comes first by name."""
    torch = [replace(r, key=replace(r.key, runtime="torch")) for r in (H200, MI300X)]
    project.record(*torch)
    project.commit()
    found = project.json("diff", "HEAD:nvidia-h200", "HEAD")
    assert [(r["old"]["target"], r["key"]["target"]) for r in found["rows"]] == [
        ("nvidia-h200", "nvidia-h200")
    ]
    assert [key["target"] for key in found["only_new"]] == ["amd-mi300x"]


def test_other_weights_that_are_slower_are_worse(project: Project) -> None:
    def computed(values: Any) -> Any:
        return replace(RECORD.parity, sketches={"y": sketch(values)})

    project.record(at(10.0, parity=computed(np.ones(16, np.float32))))
    project.commit()
    weights = replace(RECORD.model, weights="w2", tensors={"fc1.weight": "c"})
    other = computed(np.arange(16, dtype=np.float32))
    project.record(at(20.0, model=weights, parity=other))
    (row,) = project.json("diff", "HEAD", "baselines")["rows"]
    assert (row["verdict"], row["slower"]) == ("stale", True)
    assert project.call("diff", "HEAD", "baselines")[0] == 1


def test_memory_is_compared_where_both_know_the_same_figure(project: Project) -> None:
    device = replace(H200.figures, memory_device_bytes=2**30, memory_process_bytes=None)
    project.record(replace(H200, figures=device), MI300X)
    (row,) = project.json("diff", "nvidia-h200..amd-mi300x")["rows"]
    assert row["memory"] == {"old": 64 * 2**20, "new": 64 * 2**20}  # of the arena


def test_a_branch_may_have_the_name_of_a_directory(project: Project) -> None:
    project.record(RECORD)
    project.commit()
    project.git("branch", "docs")
    (project.root / "docs").mkdir()
    (project.root / "docs" / "index.md").write_text("x", encoding="utf-8")
    assert project.call("diff", "docs", "HEAD")[0] == 0


@pytest.mark.parametrize("count", [1, 40])
def test_many_models_are_read_by_several_processes(
    project: Project, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(sharing, "MANY", 2)
    project.record(
        *(replace(RECORD, key=replace(KEY, model=f"m{number:02}")) for number in range(count))
    )
    project.commit()
    found = project.json("diff", "HEAD", "baselines")
    assert [row["key"]["model"] for row in found["rows"]] == [f"m{n:02}" for n in range(count)]


# --- show --------------------------------------------------------------------------------------


def test_the_matrix_has_efficiencies_and_the_metric(project: Project) -> None:
    torch = replace(RECORD.key, runtime="torch")
    fast = at(5.0)  # 1600 per second
    slow = replace(at(10.0), key=torch)  # 800 per second: an efficiency of 0.5
    project.record(fast, slow, H200)
    found = project.json("show")
    cells = {(c["key"]["target"], c["key"]["runtime"]): c["efficiency"] for c in found["cells"]}
    assert cells == {
        (KEY.target, "onnxruntime.cpu"): 1.0,
        (KEY.target, "torch"): 0.5,
        ("nvidia-h200", "onnxruntime.cuda"): 1.0,
    }
    metrics = {m["key"]["runtime"]: (m["strict"], m["here"]) for m in found["metrics"]}
    assert metrics == {"onnxruntime": (1.0, 1.0), "torch": (0.0, 0.5)}
    code, out, _ = project.call("show")
    assert code == 0
    assert "m torch-native-b8: 0.00 strict, 0.50 over 1 of 2 targets" in out


# --- history -----------------------------------------------------------------------------------


def test_history_names_the_commits_where_a_row_stepped(project: Project) -> None:
    commits = []
    for level in (10.0, 10.1, 12.0, 12.0):
        project.record(at(level))
        commits.append(project.commit())
    (line,) = project.json("history")["lines"]
    assert [point["commit"] for point in line["points"]] == commits[:3]
    code, out, _ = project.call("history", "--model=m", "--target=cpu-*")
    assert code == 0
    assert f"m {KEY.row} on {KEY.target}: ██▁ 666.7 samples/s, -16.7% since 2026-03-02" in out
    assert f"    -15.8% in {commits[2][:12]} (2026-03-04)" in out
    code, _, err = project.call("history", "--model=other")
    assert code == 2
    assert "no commit touched a record of 'other' on '*'; models in git: m" in err


def test_a_row_that_is_gone_and_a_file_that_was_broken_are_said(project: Project) -> None:
    project.record(RECORD)
    project.commit()
    file = records.path_of(project.baselines, KEY.model, KEY.target)
    text = file.read_text(encoding="utf-8")
    file.write_bytes(b"\xff\xfe no TOML")
    project.commit()
    file.write_text(text, encoding="utf-8")
    project.commit()
    file.unlink()
    project.commit()
    code, out, _ = project.call("history")
    assert code == 1
    assert "no longer recorded" in out
    assert re.search(r"cannot be read: [0-9a-f]{12}: m/cpu-x-2c\.toml: is not UTF-8", out)


@pytest.mark.parametrize("at_once", [1, 500])
def test_a_long_history_is_read_part_by_part_and_by_several_processes(
    project: Project, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    for module in (git, history):
        monkeypatch.setattr(module, "AT_ONCE", at_once)
    monkeypatch.setattr(history, "MANY_BLOBS", 2)
    for level in (10.0, 12.0, 14.0):
        project.record(at(level))
        project.commit()
    (line,) = project.json("history")["lines"]
    assert [round(point["speed"]["throughput"]) for point in line["points"]] == [800, 667, 571]


def test_history_is_that_of_the_project_in_a_hook_of_another(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.record(RECORD)
    project.commit()
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert project.call("history")[0] == 0


# --- plan --------------------------------------------------------------------------------------


def test_a_plan_has_five_steps_and_a_command(project: Project) -> None:
    project.record(H200, RECORD)
    code, out, _ = project.call("plan", "--model=m", "--target=amd-mi300x")
    assert code == 0
    for words in (
        "m on amd-mi300x",
        "weights w1 (100 parameters)",
        "onnx of pytorch 2.13.0, op-set ai.onnx 20",
        "on amd: onnxruntime.migraphx",
        "nothing was recorded on amd-mi300x yet",
        "native was asked for, fp32 is what ran",
        "pytest --portability --portability-require=amd-mi300x --update-baselines -k m",
    ):
        assert words in out
    assert shlex.split(out.splitlines()[-1])[-2:] == ["-k", "m"]
    code, out, _ = project.call("plan", "--model=m", f"--target={H200.key.target}")
    assert out.splitlines()[-1] == "pytest --portability --portability-require=nvidia-h200 -k m"
    (project.baselines / "m" / "broken.toml").write_text("x", encoding="utf-8")
    code, out, _ = project.call("plan", "--model=m", "--target=amd-mi300x")
    assert code == 1
    assert "cannot be read: " in out
    (project.baselines / "m" / "broken.toml").unlink()
    code, _, err = project.call("plan", "--model=other", "--target=amd-mi300x")
    assert code == 2
    assert "no record of a model 'other' in baselines; models there: m" in err


# --- merge -------------------------------------------------------------------------------------


def snapshot(folder: Path) -> Mapping[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("*/*.toml"))}


def test_runners_are_merged_in_any_order_and_once_is_enough(project: Project) -> None:
    one, two = project.root / "one", project.root / "two"
    project.record(RECORD, to=one)
    project.record(H200, to=two)
    assert project.call("merge", "one", "two")[0] == 0
    first = snapshot(project.baselines)
    code, out, _ = project.call("merge", "two", "one")
    assert (code, out) == (0, "0 files written, 2 unchanged\n")
    assert snapshot(project.baselines) == first
    project.call("merge", "two", "one", "--baselines=other")
    assert snapshot(project.root / "other") == first


@pytest.mark.parametrize(
    ("changes", "words", "flag"),
    [
        ({"commit": "fedcba9876543210"}, "was measured at several commits", "--mixed"),
        ({"model": replace(RECORD.model, weights="w2")}, "has several weights", "--mixed"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(
    project: Project, changes: Mapping[str, Any], words: str, flag: str
) -> None:
    project.record(RECORD, to=project.root / "one")
    project.record(replace(H200, **changes), to=project.root / "two")
    code, out, err = project.call("merge", "one", "two")
    assert (code, out) == (1, "nothing was written\n")
    assert words in err
    assert flag in err
    assert not project.baselines.exists()
    assert project.call("merge", "one", "two", flag)[0] == 0


def test_of_rows_that_differ_the_later_one_is_taken_when_asked(project: Project) -> None:
    later = at(12.0, measured="2026-04-01T12:00:00Z")
    project.record(RECORD, to=project.root / "one")
    project.record(later, to=project.root / "two")
    code, _, err = project.call("merge", "one", "two")
    assert code == 1
    assert f"{KEY.model} {KEY.row} on {KEY.target} is not the same" in err
    for order in (("one", "two"), ("two", "one")):
        assert project.call("merge", *order, "--newest", f"--baselines={order[0]}-first")[0] == 0
        file = records.path_of(project.root / f"{order[0]}-first", KEY.model, KEY.target)
        assert records.read(file)[KEY].measured == later.measured


def test_a_file_that_one_runner_has_is_taken_as_it_is(project: Project) -> None:
    """With what a reviewer wrote into it, and whatever its name means to a pattern."""
    odd = replace(RECORD, key=replace(KEY, model="m[1]"))
    project.record(odd, RECORD, to=project.root / "one")
    file = records.path_of(project.root / "one", "m[1]", KEY.target)
    file.write_text("# agreed with Ann\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    project.record(H200, to=project.root / "two")
    assert project.call("merge", "one", "two")[0] == 0
    assert snapshot(project.baselines) == {
        **snapshot(project.root / "one"),
        **snapshot(project.root / "two"),
    }


def test_a_file_that_came_to_be_there_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    source, path = (records.path_of(tmp_path / n, KEY.model, KEY.target) for n in ("a", "b"))
    records.write(source, {KEY: RECORD})
    assert records.copy(source, path)
    assert not records.copy(source, path)
    other = at(12.0)
    records.write(path, {KEY: other})
    with pytest.raises(RecordError, match="was written by another process meanwhile; merge again"):
        records.copy(source, path)
    assert records.read(path)[KEY].figures.throughput == records.significant(
        other.figures.throughput
    )


def test_a_figure_that_is_not_known_is_no_contradiction(project: Project) -> None:
    """NaN equals nothing, itself included."""
    unknown = replace(RECORD.figures, yardstick_s=math.nan)
    project.record(replace(RECORD, figures=unknown), to=project.root / "one")
    for _ in range(2):
        assert project.call("merge", "one")[0] == 0


def test_rows_of_the_same_time_that_differ_are_for_a_person(project: Project) -> None:
    project.record(RECORD, to=project.root / "one")
    project.record(at(12.0), to=project.root / "two")
    code, _, err = project.call("merge", "one", "two", "--newest")
    assert code == 1
    assert "delete one of them" in err


# --- the closest record ------------------------------------------------------------------------


def test_the_gap_to_the_closest_record_is_told_with_its_causes() -> None:
    split = path(use("Add", 2, 0.3), use("Gelu", 2, 0.3), use("MatMul", 2, 0.4))
    fused = path(use("BiasGelu", 2, 0.5, absorbs=("Add", "Gelu")), use("MatMul", 2, 0.5))
    here = at(14.0, replace(RECORD, key=replace(KEY, target="cpu-y-2c")), path=split)
    there = at(10.0, path=fused)
    shown, causes = beside(compare.decide(here, None), {there.key: there})
    assert shown.verdict is Verdict.MISSING
    assert shown.closest == there
    assert any(
        text.startswith("unlike the closest: ") and "Gelu" in text for text in shown.warnings
    )
    assert causes == () or causes[0].kind == "fusion"
    slow = at(100.0, here, path=split)
    assert beside(compare.decide(slow, None), {there.key: there})[1][0].kind == "fusion"


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("diff", "v9", "HEAD"), "'v9' is no directory of records, no target with records in base"),
        (("diff", "HEAD"), "'HEAD' is one version; give two, or both as OLD..NEW"),
        (("diff", "--tolerance=7", "HEAD", "HEAD"), "--tolerance is 7"),
        (("diff", "--", "--output=x", "HEAD"), "'--output=x' is no directory"),
        (("diff", "HEAD:nvidia-h10", "HEAD"), "nothing to compare: HEAD:nvidia-h10 has 0 records"),
        (("diff", "HEAD", "HEAD", "--json", "--markdown"), "not allowed with argument"),
        (("show", "nowhere"), "'nowhere' is no directory"),
        (("merge", "nowhere"), "nowhere holds no records"),
    ],
)
def test_wrong_usage_is_told_and_writes_nothing(
    project: Project, arguments: tuple[str, ...], words: str
) -> None:
    project.record(RECORD)
    project.commit()
    before = snapshot(project.baselines)
    code, _, err = project.call(*arguments)
    assert code == 2
    assert words in err
    assert snapshot(project.baselines) == before


def test_a_measurement_is_not_too_noisy_to_be_itself(project: Project) -> None:
    axis = replace(RECORD.figures.wall, spread_rel=0.2)
    project.record(replace(RECORD, figures=replace(RECORD.figures, wall=axis, busy=axis)))
    project.commit()
    (row,) = project.json("diff", "HEAD..HEAD")["rows"]
    assert (row["verdict"], row["reason"]) == ("ok", "the same measurement")


def test_before_the_first_record_the_next_step_is_told(project: Project) -> None:
    code, _, err = project.call("show")
    assert code == 2
    assert "no records in " in err
    assert err.rstrip().endswith("pytest --portability --update-baselines writes them")


def test_a_file_that_cannot_be_read_fails_the_comparison(project: Project) -> None:
    project.record(RECORD)
    project.commit()
    file = records.path_of(project.baselines, KEY.model, KEY.target)
    file.write_bytes(os.urandom(1000))
    code, out, _ = project.call("diff", "HEAD", "baselines")
    assert code == 1
    assert "cannot be read: " in out


def test_outside_of_git_it_is_said_where_git_looked(
    project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(elsewhere.parent))
    for arguments in (("diff", "v1", "HEAD"), ("history",)):
        code, _, err = project.call(*arguments)
        assert code == 2
        assert "not a git repository" in err


def test_a_shallow_clone_says_how_to_deepen_it(project: Project, tmp_path: Path) -> None:
    project.record(RECORD)
    first = project.commit()
    project.record(at(12.0))
    project.commit()
    project.git("clone", "-q", "--depth=1", f"file://{tmp_path}", "shallow")
    code, _, err = project.call("diff", first, "HEAD", "--baselines=shallow/baselines")
    assert code == 2
    assert "git fetch --unshallow" in err
    out = project.call("history", "--baselines=shallow/baselines")[1]
    assert "older commits are not in this shallow clone: git fetch --unshallow" in out


def test_a_link_in_a_commit_is_not_followed(project: Project) -> None:
    project.record(RECORD)
    (project.baselines / "m" / "link.toml").symlink_to("/etc/passwd")
    project.commit()
    assert project.json("diff", "HEAD..HEAD")["problems"] == []


# --- eight vendors, SYNTHETIC --------------------------------------------------------------------


def test_the_matrix_of_eight_vendors_has_a_row_for_each(project: Project) -> None:
    project.record(*VENDORS)
    code, out, _ = project.call("show")
    assert code == 0
    for some in VENDORS:
        assert re.search(rf"^minilm +{some.key.target} +{some.key.row} ", out, re.MULTILINE)
    metrics = {m["key"]["runtime"]: m for m in project.json("show")["metrics"]}
    assert metrics["onnxruntime"]["strict"] == 0.0  # the Intel device has none
    assert len(metrics["onnxruntime"]["present"]) == 4


@pytest.mark.parametrize("other", sorted({r.key.target for r in VENDORS} - {"nvidia-h200"}))
def test_another_vendor_is_compared_with_its_reasons(project: Project, other: str) -> None:
    """By a runtime of the same family, or not at all; no kernel is compared by name."""
    project.record(*VENDORS)
    code, out, err = project.call("diff", "nvidia-h200", other)
    if other == "intel-max-1550":
        assert code == 2
        assert "none of the same build" in err
        return
    assert code == 1
    assert "(was " in out
    assert "same outputs" in out
    assert "raw seconds" in out
    assert not re.search(r"kernels .*(triton|Attention|TRTKernel)", out)


@pytest.mark.parametrize("some", VENDORS, ids=lambda r: f"{r.key.target}-{r.key.runtime}")
def test_a_record_of_each_shape_is_read_back_as_it_was(project: Project, some: Record) -> None:
    project.record(some)
    (read,) = records.read_all(project.baselines)[0].values()
    for fact in ("effective", "toolchain", "options", "providers", "platform", "arch"):
        assert getattr(read, fact) == getattr(some, fact)
    assert set(read.path.uses) == set(some.path.uses)
    assert project.call("diff", "baselines", "baselines")[0] == 0


@pytest.mark.parametrize("target", sorted({r.key.target for r in VENDORS}))
def test_the_way_to_each_vendor_names_its_builds(project: Project, target: str) -> None:
    """From a record on the CPU alone."""
    key = replace(KEY, model="minilm")
    project.record(replace(RECORD, key=key))
    steps = dict(project.json("plan", "--model=minilm", f"--target={target}")["steps"])
    vendor = target.partition("-")[0]
    (line,) = (
        line for lines in steps.values() for line in lines if line.startswith(f"on {vendor}: ")
    )
    assert "onnxruntime." in line or "openvino" in line


def test_a_reader_that_has_seen_enough_is_no_error(project: Project) -> None:
    """``pytest-portability show | head -1``."""
    names = [f"{n:03}{'x' * 150}" for n in range(400)]  # more than a pipe holds
    project.record(*(replace(RECORD, key=replace(KEY, model=name)) for name in names))
    command = [sys.executable, "-m", "pytest_portability", "show"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1  # what else it would have said is not known


def test_a_broken_file_of_a_commit_is_named_by_the_commit(project: Project) -> None:
    """Not by the folder that it was laid out in."""
    project.record(RECORD)
    file = records.path_of(project.baselines, KEY.model, KEY.target)
    text = file.read_text(encoding="utf-8")
    file.write_text("no TOML", encoding="utf-8")
    project.commit()
    file.write_text(text, encoding="utf-8")
    code, out, err = project.call("diff", "HEAD", "baselines")
    assert code == 1
    assert f"HEAD:m/{KEY.target}.toml: is not valid TOML" in out + err
    assert "portability-versions" not in out + err
