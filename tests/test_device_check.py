"""The check for a machine with a GPU: its rules on made-up data, and a dry run on the CPU."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import device_check
import device_faults
import device_parts
import pytest
from device_faults import FAULTS, UNCHANGED, Owed, Plan
from device_parts import Budget, Found, Project, Row

from pytest_portability import run, targets

SCRIPT = Path(device_check.__file__)

H200 = Plan(
    target="nvidia-h200",
    handle="cuda:0",
    platform="cuda",
    size="full",
    batches=(1, 8, 64),
    precisions=("native", "fp32", "fp16"),
    onnx={"onnxruntime.cuda": "gpu:0"},
)
CPU = Plan(
    target="cpu-x",
    handle="cpu",
    platform="cpu",
    size="tiny",
    batches=(2,),
    precisions=("native",),
)


def item(model: str = "minilm", verdict: str = "ok", **changed: Any) -> dict[str, Any]:
    """An item of a report, as far as the check reads it."""
    precision, batch = changed.pop("precision", "native"), changed.pop("batch", 64)
    return {
        "nodeid": f"test_device.py::test_{model}[{precision}-b{batch}]",
        "model": model,
        "runtime": "torch",
        "precision": precision,
        "batch": batch,
        "verdict": verdict,
        "causes": [{"kind": kind} for kind in changed.pop("causes", ())],
        "loss": {"value": changed.pop("loss", 0.0)},
        "reason": "because",
        "update": "written",
        "throughput": 1.0,
        **changed,
    }


@dataclass
class Scripted(Project):
    """A project whose runs give what they are told to; what is recorded had no record before."""

    folder: Path
    plan: Plan
    found: Found
    gives: list[dict[str, Any]]
    asked: list[tuple[str, ...]] = field(default_factory=list)
    limits_s: list[float] = field(default_factory=list)

    def run(
        self, part: str, limit_s: float, *args: str, faulty: bool = False
    ) -> list[dict[str, Any]]:
        self.asked.append((part, *args))
        self.limits_s.append(limit_s)
        gives = self.gives
        if "--update-baselines" in args:
            gives = [{**it, "verdict": it["verdict"].replace("ok", "missing")} for it in gives]
        self.found.reports[part] = {"items": gives}
        return gives


def scripted(path: Path, plan: Plan, gives: list[dict[str, Any]]) -> Scripted:
    found = Found(out=path / "d.json", dry_run=not plan.on_device)
    return Scripted(path, plan, found, gives)


class TestBudget:
    """Each part has a share; what does not fit any more is not begun."""

    @pytest.mark.parametrize(
        ("spent_s", "part", "limit_s"),
        [
            (0.0, "agreement", 49.5),  # its share
            (300.0, "agreement", 30.0),  # what is left
            (322.0, "agreement", 0.0),  # too little to begin
            (200.0, "unchanged", 130.0),  # all that is left
        ],
    )
    def test_a_part_gets_its_share_of_what_is_left(
        self, spent_s: float, part: str, limit_s: float
    ) -> None:
        now = iter([10.0, 10.0 + spent_s])
        budget = Budget(330.0, clock=lambda: next(now))
        assert budget.limit_s(part) == pytest.approx(limit_s)

    def test_a_part_without_time_is_not_run_and_one_that_fails_is_wrong(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The JSON has what there is after each of them."""

        def fails(*_args: Any) -> None:
            msg = "no such thing"
            raise ValueError(msg)

        monkeypatch.setattr(device_parts, "PARTS", {"agreement": fails, "record": fails})
        monkeypatch.setattr(device_parts, "SHARES", {"agreement": (1, 1.0), "record": (1, 1e9)})
        project = scripted(tmp_path, H200, [])
        device_parts.carry_out(project, project.found, Budget(100.0))
        rows = json.loads(project.found.out.read_text())["rows"]
        assert [(r["part"], r["seen"], r["status"]) for r in rows] == [
            ("agreement", "ValueError: no such thing", "wrong"),
            ("record", "", "not run: out of time"),
        ]
        assert project.found.code == 1

    def test_a_child_that_ignores_the_interrupt_is_ended(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(device_parts, "LAST_WORDS_S", 0.1)
        text = "import signal, time; signal.signal(2, signal.SIG_IGN); print(flush=True); "
        command = [sys.executable, "-c", text + "time.sleep(600)"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, start_new_session=True, text=True
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            device_parts._ended(child, 1.0)
        assert child.returncode == -signal.SIGKILL


class TestJudging:
    """A verdict and its first cause, against what is owed."""

    @pytest.mark.parametrize(
        ("owed", "seen", "status"),
        [
            (Owed("regressed", "options precision"), ("regressed", ["precision"]), "right"),
            (Owed("regressed", "options"), ("regressed", ["launches", "options"]), "wrong"),
            (Owed("regressed", "options"), ("regressed", []), "wrong"),
            (Owed("regressed", "options"), ("ok", ["options"]), "wrong"),
            (UNCHANGED, ("ok", []), "right"),
            (UNCHANGED, ("inconclusive", ["machine"]), "right"),
            (UNCHANGED, ("inconclusive", ["kernel"]), "wrong"),
            (UNCHANGED, ("regressed", ["unexplained"]), "wrong"),
        ],
    )
    def test_both_have_to_be_as_owed(
        self, owed: Owed, seen: tuple[str, list[str]], status: str
    ) -> None:
        found = item(verdict=seen[0], causes=seen[1])
        assert device_parts.judged("faults", "it", owed, found, dry_run=False).status == status

    def test_what_was_seen_is_said_and_why_where_it_is_wrong(self) -> None:
        found = item(verdict="ok", loss=0.123)
        row = device_parts.judged("faults", "it", Owed("unfit", "memory"), found, dry_run=False)
        assert row.owed == "unfit, memory"
        assert row.seen == "ok, loss 12.3%: because"

    @pytest.mark.parametrize(
        ("verdict", "status"), [("regressed", "seen"), ("inconclusive", "seen"), ("error", "wrong")]
    )
    def test_a_dry_run_owes_no_verdict_that_speed_decides(self, verdict: str, status: str) -> None:
        row = device_parts.judged("faults", "it", UNCHANGED, item(verdict=verdict), dry_run=True)
        assert row.status == status

    @pytest.mark.parametrize(
        ("statuses", "code"),
        [(["right", "not run: no"], 0), (["right", "wrong"], 1), (["not run: no"], 1), ([], 1)],
    )
    def test_only_what_ran_and_was_right_is_a_success(
        self, tmp_path: Path, statuses: list[str], code: int
    ) -> None:
        found = Found(out=tmp_path / "d.json", dry_run=False)
        found.rows = [Row(part="p", what="w", status=status) for status in statuses]
        assert found.code == code


def test_what_a_runtime_wrote_is_one_row_of_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Found(out=tmp_path / "d.json", dry_run=False)
    seen = "RuntimeError: a | b\n  in c\x1b[2J"
    found.add(Row(part="agreement", what="it", seen=seen, status="wrong"))
    row = r"| agreement | it | – | RuntimeError: a \| b in c\\x1b\[2J | wrong |"
    assert capsys.readouterr().out == row + "\n"
    assert found.rows[0].seen == seen


class TestAnonymity:
    """What is written may become a fixture: it does not say whose machine it was."""

    GPU = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"

    def test_folders_and_ids_of_gpus_are_not_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = tmp_path / "alice"
        monkeypatch.setenv("HOME", str(home))
        folder = home / "tmp" / "device-1"
        found = Found(out=tmp_path / "d.json", dry_run=False, folder=folder)
        found.output["record"] = f"{folder}/test_device.py:3\n{home}/site/torch.py\n{home}2"
        found.machine["environment"] = {"CUDA_VISIBLE_DEVICES": f"{self.GPU},MIG-{self.GPU}/1/2"}
        found.write()
        written = json.loads(found.out.read_text(encoding="utf-8"))
        assert written["output"]["record"] == f"./test_device.py:3\n~/site/torch.py\n{home}2"
        visible = written["machine"]["environment"]["CUDA_VISIBLE_DEVICES"]
        assert visible == "GPU-…,MIG-GPU-…/1/2"
        assert "folder" not in written

    def test_a_home_that_is_the_root_is_no_reason_to_touch_a_path(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", "/")
        assert device_parts.anonymous("/usr/lib") == "/usr/lib"

    def test_targets_are_written_without_their_addresses_and_twins(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cards = [
            targets.Device(
                runtimes=("torch",),
                handle=f"cuda:{number}",
                vendor="nvidia",
                arch="sm_90",
                product="NVIDIA H200",
                platform="cuda",
                index=number,
                address={"pci": f"0000:1{number}:00.0", "uuid": f"{number}{self.GPU}"},
            )
            for number in range(2)
        ]
        seen = SimpleNamespace(targets=targets.merge(cards), absents=())
        monkeypatch.setattr(run, "discover", lambda _servers: seen)
        monkeypatch.setattr(device_check, "_said", lambda *_command: "")
        found = Found(out=tmp_path / "d.json", dry_run=False)
        assert device_check.machine(found) == seen.targets
        (target,) = found.machine["targets"]
        assert (target["product"], target["handles"]) == ("NVIDIA H200", {"torch": "cuda:0"})
        assert "0000:1" not in json.dumps(found.machine)
        assert "8932f937" not in json.dumps(found.machine)


class TestRecording:
    """An item is recorded where it had no record and has one now."""

    FAILED = "failed: No space left on device"

    @pytest.mark.parametrize("model", ["minilm", "compiled"])
    @pytest.mark.parametrize(
        ("verdict", "update", "status", "seen"),
        [
            ("missing", "written", "right", "missing written"),
            ("missing", FAILED, "wrong", f"missing {FAILED}: because"),
            ("error", "refused: error is never recorded", "wrong", "error refused: error is"),
            ("improved", "written", "wrong", "improved written: because"),
        ],
    )
    def test_only_what_was_written_is_right(  # noqa: PLR0917 - the cases
        self, tmp_path: Path, model: str, verdict: str, update: str, status: str, seen: str
    ) -> None:
        batch = 1 if model == "compiled" else 64
        project = scripted(tmp_path, H200, [item(model, verdict, update=update, batch=batch)])
        part = "compiled" if model == "compiled" else "record"
        device_parts.PARTS[part](project, project.found, 100.0)
        (row,) = (r for r in project.found.rows if r.part == part and r.owed == "recorded")
        assert row.status == status
        assert row.seen.startswith(seen)
        if status == "wrong":
            device_parts.unchanged(project, project.found, 100.0)
            device_parts.faults(project, project.found, 100.0, model)
            left = {r.status for r in project.found.rows if r.part in {"unchanged", "faults"}}
            assert left == {"not run: its good build was not recorded"}


class TestAgreement:
    """Windows against the loop, the events and the kernels."""

    @pytest.fixture(autouse=True)
    def torch_is_here(self) -> None:
        pytest.importorskip("torch")

    @pytest.mark.parametrize(
        ("figures", "wrong"),
        [
            ({"reported_rel": 1.019, "events_rel": 0.981, "kernels_rel": 0.95}, set()),
            ({"reported_rel": 1.021, "events_rel": 1.0}, {"reported_rel"}),
            ({"reported_rel": 1.0, "events_rel": 0.97}, {"events_rel"}),
            ({"reported_rel": 1.0, "events_rel": None, "kernels_rel": None}, set()),
            ({"reported_rel": 1.0, "kernels_rel": 1.03}, {"kernels_rel"}),
            ({"reported_rel": 1.0, "kernels_rel": 0.89}, {"kernels_rel"}),
            ({"reported_rel": 1.0, "kernels_rel": 0.3, "device_bound": False}, set()),
        ],
    )
    def test_two_percent_are_allowed(self, figures: dict[str, Any], wrong: set[str]) -> None:
        import device_agreement  # noqa: PLC0415 - not where NumPy alone is installed

        assert set(device_agreement.agreement({"device_bound": True, **figures})) == wrong

    def test_events_enclose_what_stands_between_two_synchronisations(self) -> None:
        import device_agreement  # noqa: PLC0415

        said: list[str] = []

        class Event:
            def record(self) -> None:
                said.append("record")

            def elapsed_time(self, _end: Any) -> float:
                return 3.0

        build = SimpleNamespace(
            launch=lambda: said.append("launch"), synchronize=lambda: said.append("wait")
        )
        evented = device_agreement.Evented(build, Event)
        evented.launch()
        evented.launch()
        evented.synchronize()
        evented.synchronize()
        assert said == ["record", "launch", "launch", "record", "wait", "wait"]
        ((launches, seconds, wall_s),) = evented.spans
        assert (launches, seconds) == (2, 0.003)
        assert wall_s >= 0

    def test_one_that_fails_says_so_in_few_words_and_the_next_one_follows(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        import device_agreement  # noqa: PLC0415

        def fails(*_args: Any, **_named: Any) -> None:
            msg = "no kernel image\n" * 1000
            raise RuntimeError(msg)

        monkeypatch.setattr(device_agreement, "measured", fails)
        cases = [["torch", "conv", "fp32", batch] for batch in (1, 64)]
        given = {"plan": asdict(H200), "cases": cases, "rounds": 1}
        assert device_agreement.main([json.dumps(given)]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["batch"] for line in lines] == [1, 64]
        assert lines[0]["error"].startswith("RuntimeError: no kernel image")
        assert len(lines[0]["error"]) == 300

    def test_the_largest_batch_is_in_fp32_which_the_device_bounds(self) -> None:
        assert device_parts._diagonal(H200) == [("fp16", 1), ("native", 8), ("fp32", 64)]
        assert device_parts._diagonal(CPU) == [("native", 2)]


class TestFaults:
    """What is seeded, where."""

    def test_on_a_cuda_device_each_has_one_item_of_its_own(self) -> None:
        hits = {
            name: [
                (model, precision, batch)
                for model in device_faults.MODELS
                for precision in H200.precisions
                for batch in H200.batches
                if fault.hits(H200, model, precision, batch)
            ]
            for name, fault in FAULTS.items()
        }
        assert all(len(items) == 1 for items in hits.values()), hits
        assert len({items[0] for items in hits.values()}) == len(FAULTS)

    def test_what_cannot_show_here_is_not_run_and_says_why(self, tmp_path: Path) -> None:
        project = scripted(tmp_path, CPU, [item(batch=2)])
        device_parts.record(project, project.found, 100.0)
        device_parts.faults(project, project.found, 100.0)
        rows = {row.what: row.status for row in project.found.rows if row.part == "faults"}
        assert rows.pop("math SDPA") == "seen"
        assert set(rows.values()) == {"not run: needs a GPU"}

    def test_all_of_them_are_checked_in_one_run(self, tmp_path: Path) -> None:
        recorded = [
            item(model, precision=precision, batch=batch)
            for model in ("minilm", "conv", "wide")
            for precision in H200.precisions
            for batch in H200.batches
        ]
        project = scripted(tmp_path, H200, recorded)
        device_parts.record(project, project.found, 100.0)
        device_parts.faults(project, project.found, 100.0)
        (_, part) = project.asked
        assert part[1:3] == ("-o", "portability_repeats=4")
        assert part[3:] == (
            "test_device.py::test_minilm[native-b64]",
            "test_device.py::test_conv[native-b64]",
            "test_device.py::test_minilm[fp16-b64]",
            "test_device.py::test_conv[fp32-b64]",
            "test_device.py::test_wide[native-b64]",
        )
        rows = {row.what: row.status for row in project.found.rows if row.part == "faults"}
        assert rows["CPU fallback of ONNX nodes"] == "not run: its good build was not recorded"
        assert rows["math SDPA"] == "wrong"  # the script says that nothing was lost

    def test_a_fault_changes_the_options_or_the_model_of_its_item_only(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def asked(model: str, precision: str, batch: int) -> dict[str, Any]:
            it = SimpleNamespace(precision=precision, batch=batch)
            found: dict[str, Any] = device_faults.ask(H200, model, it)
            return found

        monkeypatch.setenv("DEVICE_FAULTY", "0")
        assert asked("minilm", "native", 64)["options"] == {"torch": {"matmul_precision": "high"}}
        monkeypatch.setenv("DEVICE_FAULTY", "1")
        assert asked("minilm", "native", 64)["options"] == {"torch": {}}
        assert asked("minilm", "native", 8)["options"] == {"torch": {"matmul_precision": "high"}}
        assert asked("minilm", "fp16", 64)["options"] == {"torch": {"sdpa": "math"}}
        assert asked("conv", "fp32", 64)["model"].keywords == {"elsewhere": True}
        assert asked("wide", "native", 64)["model"].keywords == {"device": "cuda:0", "fits": 32}

    def test_the_plan_travels_by_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in device_faults.environment(H200, faulty=True).items():
            monkeypatch.setenv(name, value)
        assert asdict(device_faults.here()) == json.loads(json.dumps(asdict(H200)))

    def test_unchanged_items_are_checked_as_far_as_the_time_goes(self, tmp_path: Path) -> None:
        project = scripted(tmp_path, H200, [item(batch=batch) for batch in (1, 8, 64)])
        device_parts.record(project, project.found, 100.0)
        project.found.seconds["record"] = 30.0
        device_parts.unchanged(project, project.found, 28.0)
        assert len(project.asked[-1]) == 1 + 2
        rows = [row.status for row in project.found.rows if row.part == "unchanged"]
        assert sorted(rows) == ["not run: out of time", "right", "right"]


class TestNeighbour:
    """Another process on the device, which must be there before the build is checked."""

    def beside(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, script: str, limit_s: float
    ) -> Scripted:
        """The part, beside a neighbour of that script."""
        pytest.importorskip("torch")
        import device_agreement  # noqa: PLC0415 - not where NumPy alone is installed

        file = path / "neighbour.py"
        file.write_text(f"import time\n{script}\ntime.sleep(600)\n", encoding="utf-8")
        monkeypatch.setattr(device_agreement, "__file__", str(file))
        project = scripted(path, H200, [item()])
        device_parts.record(project, project.found, 100.0)
        device_parts.neighbour(project, project.found, limit_s)
        return project

    def test_the_build_is_checked_in_what_is_left_once_the_neighbour_is_busy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever its libraries say first."""
        script = "print('a warning'); print('ready', flush=True)"
        project = self.beside(tmp_path, monkeypatch, script, 60.0)
        assert project.asked[-1] == ("neighbour", item()["nodeid"])
        assert project.limits_s[-1] < 60.0
        assert project.found.rows[-1].status == "right"
        assert project.found.output["neighbour's own"] == "a warning\nready\n"

    def test_one_that_hangs_in_its_start_is_ended_and_costs_this_part_only(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project = self.beside(tmp_path, monkeypatch, "", 1.0)
        assert [part for part, *_ in project.asked] == ["record"]
        assert project.found.rows[-1].status == device_parts.ENDED


def test_packages_that_are_missing_are_named() -> None:
    needed, optional = device_check.absent(lambda name: name not in {"tomli", "torch", "onnx"})
    assert needed == ["torch", "tomli"]
    assert optional == [
        "onnx is not installed: no ONNX item, as the plugin reads ONNX models with it"
    ]


def test_the_first_accelerator_of_torch_is_measured_and_a_cpu_only_when_dry() -> None:
    cpu = SimpleNamespace(id="cpu-x", platform="cpu", handles={"torch": "cpu"})
    handles = {"torch": "cuda:0", "onnxruntime.tensorrt": "gpu:0", "onnxruntime.cuda": "gpu:0"}
    gpu = SimpleNamespace(id="nvidia-h200", platform="cuda", handles=handles)
    plan = device_check.plan_of([gpu, cpu], dry_run=False, onnx=True)
    assert (plan.target, plan.handle, plan.batches) == ("nvidia-h200", "cuda:0", (1, 8, 64))
    assert plan.onnx == {"onnxruntime.cuda": "gpu:0"}
    assert device_check.plan_of([gpu, cpu], dry_run=True, onnx=False).target == "cpu-x"
    words = r"torch reaches no accelerator here \(found: cpu-x\); --dry-run measures on the CPU"
    with pytest.raises(device_check.CannotRunError, match=words):
        device_check.plan_of([cpu], dry_run=False, onnx=True)


def test_a_dry_run_carries_out_every_part_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "device.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--dry-run", "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    assert list(found["seconds"]) == ["machine", *device_parts.PARTS]
    assert [c["model"] for c in found["cases"]][:2] == ["minilm", "conv"]
    assert {"record", "faults", "unchanged"} == set(found["reports"])
    assert {name.partition("/")[0] for name in found["records"]} >= {"conv", "minilm"}
    assert all("schema = 1" in text for text in found["records"].values())
    assert found["machine"]["targets"][-1]["platform"] == "cpu"
    statuses = {row["status"] for row in found["rows"] if row["part"] == "neighbour"}
    assert statuses == {"not run: needs a GPU"}
    assert f"everything is in {out}" in done.stdout
