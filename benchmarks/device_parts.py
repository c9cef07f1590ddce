"""What ``device_check.py`` does part by part, within its seconds, and what it keeps of it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

import device_faults
from device_faults import FAULTS, UNCHANGED, Owed, Plan

HERE = Path(__file__).resolve().parent

SHARES: Mapping[str, tuple[float, float]] = {
    "agreement": (0.15, 10.0),
    "record": (0.45, 25.0),
    "faults": (0.25, 20.0),
    "neighbour": (0.1, 12.0),
    "compiled": (0.3, 35.0),
    "unchanged": (1.0, 15.0),
}
"""Part, in order → the most of all seconds that it may take, and the least it is begun with."""

ENDED = "not run: out of time, or it ended; its output tells"

LAST_WORDS_S = 8.0
"""What pytest gets to write its report after it was interrupted."""


class Budget:
    """What is left of the seconds.

    Args:
        seconds: for everything.
        clock: monotonic seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._start_s = clock()

    @property
    def spent_s(self) -> float:
        """Since the beginning."""
        return self._clock() - self._start_s

    def limit_s(self, part: str) -> float:
        """What the part may take now; 0 where that is too little to begin."""
        share, least_s = SHARES[part]
        limit = min(self.seconds - self.spent_s, share * self.seconds)
        return limit if limit >= least_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that is owed.

    Attributes:
        status: ``right``, ``wrong``, ``seen`` where nothing is owed, or ``not run: <why>``.
    """

    part: str
    what: str
    owed: str = ""
    seen: str = ""
    status: str


@dataclass(slots=True)
class Found:
    """Everything that goes into the JSON; written again after each part.

    Attributes:
        cases: what the stopwatch, the events, the loop and the kernels gave.
        reports: part → pytest's JSON report.
        records: file → its text.
        folder: of the test project, which is not written.
    """

    out: Path
    dry_run: bool
    machine: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    cases: list[dict[str, Any]] = field(default_factory=list)
    reports: dict[str, Any] = field(default_factory=dict)
    output: dict[str, str] = field(default_factory=dict)
    records: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None

    def write(self) -> None:
        """Write the JSON, whole or not at all."""
        names = [name for name in self.__slots__ if name not in {"out", "folder"}]
        tables = {name: getattr(self, name) for name in names}
        tables["rows"] = [asdict(row) for row in self.rows]
        text = json.dumps({"schema": 1, "written": _now(), **tables}, indent=1)
        text = anonymous(text, self.folder)
        draft = self.out.with_name(self.out.name + ".part")
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(self.out)

    def add(self, row: Row) -> None:
        """Keep a row, and show it."""
        # Not before what the plugin needs is known to be here.
        from pytest_portability.report.markdown import cell

        self.rows.append(row)
        cells = (row.part, row.what, row.owed or "–", row.seen or "–", row.status)
        print(f"| {' | '.join(cell(' '.join(text.split())) for text in cells)} |", flush=True)

    @property
    def code(self) -> int:
        """1 where something is wrong or nothing ran, else 0."""
        ran = [row for row in self.rows if not row.status.startswith("not run")]
        return int(not ran or any(row.status == "wrong" for row in ran))


def anonymous(text: str, folder: Path | None = None) -> str:
    """JSON without whose machine it is from, as it may become a fixture.

    Args:
        text: of the JSON.
        folder: which becomes ``.``, as the home folder becomes ``~``; ids of GPUs are cut.
    """
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path's own raises where there is none
    for path, mark in ((folder, "."), (home, "~")):
        if path is not None and path.name:  # a container's home may be the root
            text = re.sub(re.escape(json.dumps(str(path))[1:-1]) + r"(?![\w.-])", mark, text)
    return re.sub(r"(GPU|MIG)-[0-9a-f]{8}[0-9a-f-]*", r"\1-…", text)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


# --- children -----------------------------------------------------------------------------------


class Project:
    """The test project in a folder of its own, and runs of pytest in it."""

    def __init__(self, folder: Path, plan: Plan, found: Found) -> None:
        self.folder = folder.resolve()
        self.plan = plan
        self._found = found
        found.folder = self.folder
        (folder / "test_device.py").write_text(device_faults.PROJECT, encoding="utf-8")
        settings = {"repeats": plan.repeats, "seconds": plan.seconds}
        (folder / "pytest.ini").write_text(device_faults.INI.format(**settings), encoding="utf-8")

    def run(
        self, part: str, limit_s: float, *args: str, faulty: bool = False
    ) -> list[dict[str, Any]]:
        """Run pytest; its items, none where it left no report."""
        report = self.folder / f"{part}.json"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--portability"]
        command += ["-p", "pytest_portability.plugin"]
        environment = device_faults.environment(self.plan, faulty=faulty)
        # Neither the other plugins of this machine, nor ours twice where it is installed.
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        words = self.folder / f"{part}.log"
        with words.open("w+", encoding="utf-8") as log:
            command += [f"--portability-report=json:{report}", *args]
            _ended(_child(command, self.folder, log, environment), limit_s)
        self._found.output[part] = words.read_text(encoding="utf-8", errors="replace")[-20000:]
        baselines = self.folder / "baselines"
        for file in sorted(baselines.rglob("*.toml")):
            name = file.relative_to(baselines).as_posix()
            self._found.records[name] = file.read_text(encoding="utf-8")
        if not report.exists():
            return []
        self._found.reports[part] = json.loads(report.read_text(encoding="utf-8"))
        items: list[dict[str, Any]] = self._found.reports[part]["items"]
        return items


def _child(
    command: Sequence[str], folder: Path, out: IO[str] | int, environment: Mapping[str, str]
) -> subprocess.Popen[str]:
    """A process that imports what this one does, in a session of its own."""
    plugin = importlib.util.find_spec("pytest_portability")
    paths = [str(HERE), str(Path(str(plugin and plugin.origin)).parent.parent)]
    # Relative to the folder that it was given for, which is not the child's.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths += [str(Path(path).resolve()) for path in given if path]
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        stdout=out,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _ended(child: subprocess.Popen[str], limit_s: float) -> None:
    """Wait; at the limit interrupt it as a user would, who still gets a report, then kill it."""
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(1.0, limit_s - LAST_WORDS_S))
            return
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(LAST_WORDS_S)
    finally:
        if child.poll() is None:  # nor may it outlive us, should we be interrupted
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # its own session: nobody else's processes
            child.wait()


# --- parts --------------------------------------------------------------------------------------


def judged(part: str, what: str, owed: Owed, item: Mapping[str, Any], *, dry_run: bool) -> Row:
    """Hold an item of a report against what it is owed.

    Args:
        part: of the check.
        what: in words.
        owed: where it has no causes, nothing but the machine may be blamed.
        item: of pytest's report.
        dry_run: whether only what is broken is wrong.
    """
    verdict, kinds = str(item["verdict"]), [str(cause["kind"]) for cause in item["causes"]]
    seen = " ".join([verdict, *kinds[:1]])
    if item.get("loss"):
        seen += f", loss {item['loss']['value']:.1%}"
    right = verdict in owed.verdicts.split()
    if owed.causes:
        right = right and bool(kinds) and kinds[0] in owed.causes.split()
    else:
        right = right and not set(kinds) - {"machine"}
    if dry_run:
        right, status = verdict not in {"error", "placement", "skipped"}, "seen"
    else:
        status = "right"
    text = owed.verdicts.replace(" ", " or ")
    text += f", {owed.causes.replace(' ', ' or ')}" if owed.causes else ""
    if not right and item.get("reason"):
        seen += f": {str(item['reason'])[:300]}"
    return Row(part=part, what=what, owed=text, seen=seen, status=status if right else "wrong")


def agreement(project: Project, found: Found, limit_s: float) -> None:
    """Windows, events, loop and kernels of some builds."""
    import device_agreement

    plan = project.plan
    some = [(m, p, b) for p, b in _diagonal(plan) for m in ("conv", "minilm")]
    cases = [["torch", *case] for case in reversed(some)]
    cases += [[name, "onnx", "native", plan.batches[-1]] for name in plan.onnx]
    rounds = 1 if found.dry_run else 3
    given = {"plan": asdict(plan), "cases": cases, "rounds": rounds}
    command = [sys.executable, "-W", "ignore", device_agreement.__file__, json.dumps(given)]
    words = project.folder / "agreement.log"
    with words.open("w+", encoding="utf-8") as log:
        _ended(_child(command, project.folder, log, {"OMP_WAIT_POLICY": "PASSIVE"}), limit_s)
    text = words.read_text(encoding="utf-8", errors="replace")
    found.output["agreement"] = text[-20000:]
    lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"runtime"')]
    found.cases += lines
    for line in lines:
        found.add(_agreed(line, dry_run=found.dry_run))
    for runtime, model, precision, batch in cases[len(lines) :]:
        what = f"{runtime} {model}-{precision}-b{batch}"
        found.add(Row(part="agreement", what=what, status=ENDED))


def _diagonal(plan: Plan) -> list[tuple[str, int]]:
    """Every precision and every batch once: the largest batch in fp32, which the device bounds."""
    wanted = dict(zip(plan.batches, ("fp16", "native", "fp32"), strict=False))
    return [(p if p in plan.precisions else plan.precisions[0], b) for b, p in wanted.items()]


def _agreed(case: Mapping[str, Any], *, dry_run: bool) -> Row:
    import device_agreement

    what = f"{case['runtime']} {case['model']}-{case['precision']}-b{case['batch']}"
    if "error" in case:
        return Row(part="agreement", what=what, seen=case["error"], status="wrong")
    names = {"reported_rel": "loop ÷ window", "events_rel": "events ÷ window"}
    names["kernels_rel"] = "kernels ÷ window"
    known = {words: case[name] for name, words in names.items() if case.get(name) is not None}
    wrong = device_agreement.agreement(dict(case))
    status = "seen" if dry_run else "wrong" if wrong else "right"
    seen = ", ".join(
        [f"{w} {v:.3f}" for w, v in known.items()] + list(wrong.values()) * (not dry_run)
    )
    owed = "1 ± 0.02; kernels at most that, 0.9 where device-bound"
    return Row(part="agreement", what=what, owed=owed, seen=seen, status=status)


def record(project: Project, found: Found, limit_s: float) -> None:
    """Record every item but the compiled one."""
    names = ["wide"] * project.plan.on_device + ["onnx"] * bool(project.plan.onnx)
    names += ["minilm", "conv"]
    nodes = [f"test_device.py::test_{name}" for name in names]
    items = project.run("record", limit_s, "--update-baselines", *nodes)
    if len(items) < (owed := _count(project.plan)):
        what = f"{owed - len(items)} of {owed} items"
        found.add(Row(part="record", what=what, status=ENDED))
    for item in items:
        found.add(_kept("record", _name(item), item))


def _kept(part: str, what: str, item: Mapping[str, Any]) -> Row:
    right, seen = _is_recorded(item), f"{item['verdict']} {item['update']}"
    seen += "" if right else f": {item['reason'][:300]}"
    status = "right" if right else "wrong"
    return Row(part=part, what=what, owed="recorded", seen=seen, status=status)


def _is_recorded(item: Mapping[str, Any]) -> bool:
    """Whether an item that had no record has one now: one may be refused, or fail to be written."""
    return bool(item["verdict"] == "missing" and item["update"] == "written")


def _count(plan: Plan) -> int:
    """How many items there are to record."""
    suite = 2 * len(plan.batches) * len(plan.precisions)
    return suite + plan.on_device + len(plan.onnx) * len(plan.batches)


def _name(item: Mapping[str, Any]) -> str:
    return f"{item['runtime']} {item['model']}-{item['precision']}-b{item['batch']}"


def _recorded(found: Found) -> list[dict[str, Any]]:
    """Items that were recorded, so far."""
    reports = [found.reports[part] for part in ("record", "compiled") if part in found.reports]
    return [item for r in reports for item in r["items"] if _is_recorded(item)]


def faults(project: Project, found: Found, limit_s: float, model: str = "") -> None:
    """Check the bad build of each item that has one, in one run.

    Args:
        project: with its records.
        found: so far.
        limit_s: seconds.
        model: only faults of this one; empty for all but the compiled one.
    """
    plan, wanted = project.plan, {}
    for name, fault in FAULTS.items():
        if (fault.model == "compiled") != (model == "compiled"):
            continue
        items = [
            item
            for item in _recorded(found)
            if fault.hits(plan, item["model"], item["precision"], item["batch"])
        ]
        if why := fault.missing(plan) or ("" if items else "its good build was not recorded"):
            found.add(Row(part="faults", what=name, status=f"not run: {why}"))
        else:
            wanted[name] = items[0]["nodeid"]
    if not wanted:
        return
    part = f"faults-{model}" if model else "faults"
    more = ["-o", f"portability_repeats={1 if found.dry_run else 4}"]
    items = project.run(part, limit_s, *more, *wanted.values(), faulty=True)
    by_node = {item["nodeid"]: item for item in items}
    for name, node in wanted.items():
        _judge(found, "faults", name, FAULTS[name].owed, by_node.get(node))


def _judge(found: Found, part: str, what: str, owed: Owed, item: Mapping[str, Any] | None) -> None:
    if item is None:
        found.add(Row(part=part, what=what, status=ENDED))
    else:
        found.add(judged(part, what, owed, item, dry_run=found.dry_run))


def neighbour(project: Project, found: Found, limit_s: float) -> None:
    """Check an unchanged build while another process keeps the device busy."""
    import device_agreement

    plan = project.plan
    if not plan.on_device:
        found.add(Row(part="neighbour", what="unchanged build", status="not run: needs a GPU"))
        return
    nodes = [
        i["nodeid"]
        for i in _recorded(found)
        if (i["model"], i["batch"]) == ("minilm", plan.batches[-1])
    ]
    if not nodes:
        found.add(Row(part="neighbour", what="unchanged build", status="not run: not recorded"))
        return
    command = [sys.executable, device_agreement.__file__, "--neighbour", plan.handle]
    command.append(str(limit_s))
    start_s = time.monotonic()
    other = _child(command, project.folder, subprocess.PIPE, {})
    said = ""
    try:
        said = _until_ready(other, limit_s / 2)
        left_s = limit_s - (time.monotonic() - start_s)
        items = project.run("neighbour", left_s, nodes[-1]) if said.endswith("ready\n") else []
    finally:
        other.kill()
        said += other.communicate()[0]
    found.output["neighbour's own"] = said[-5000:]
    item = items[0] if items else None
    _judge(found, "neighbour", "unchanged build beside products", UNCHANGED, item)


def _until_ready(child: subprocess.Popen[str], limit_s: float) -> str:
    """What a child says until it is ready, or has ended: at the limit it is killed."""
    late = threading.Timer(limit_s, child.kill)
    late.start()
    said = ""
    try:
        while child.stdout and not said.endswith("ready\n") and (line := child.stdout.readline()):
            said += line
    finally:
        late.cancel()
    return said


def compiled(project: Project, found: Found, limit_s: float) -> None:
    """Record a compiled build, and check one whose graph breaks."""
    what = "torch.compile"
    if found.dry_run:
        found.add(Row(part="compiled", what=what, status="not run: needs a GPU"))
        return
    start_s = time.monotonic()
    node = "test_device.py::test_compiled"
    for item in project.run("compiled", limit_s / 2, "--update-baselines", node):
        found.add(_kept("compiled", what, item))
    faults(project, found, limit_s - (time.monotonic() - start_s), "compiled")


def unchanged(project: Project, found: Found, limit_s: float) -> None:
    """Check as many of the recorded items as there is time for, with nothing changed."""
    items = [item for item in _recorded(found) if item["model"] != "compiled"]
    per_item_s = found.seconds.get("record", 0.0) / max(1, len(items))
    fit = 1 if found.dry_run else int((limit_s - LAST_WORDS_S) / max(per_item_s, 0.1))
    # One of each batch and precision first, whatever the model.
    items.sort(key=lambda i: (i["batch"] + len(i["precision"]) + len(i["model"])) % 3)
    why = "a dry run needs one" if found.dry_run else "out of time"
    for item in items[fit:]:
        found.add(Row(part="unchanged", what=_name(item), status=f"not run: {why}"))
    if not items[:fit]:
        return
    seen = project.run("unchanged", limit_s, *(item["nodeid"] for item in items[:fit]))
    by_node = {item["nodeid"]: item for item in seen}
    for item in items[:fit]:
        _judge(found, "unchanged", _name(item), UNCHANGED, by_node.get(item["nodeid"]))


PARTS: Mapping[str, Callable[[Project, Found, float], None]] = {
    "agreement": agreement,
    "record": record,
    "faults": faults,
    "neighbour": neighbour,
    "compiled": compiled,
    "unchanged": unchanged,
}


def carry_out(project: Project, found: Found, budget: Budget) -> None:
    """Every part that there is time for; one that fails is wrong, and the next one follows."""
    for part, does in PARTS.items():
        limit_s = budget.limit_s(part)
        before_s = budget.spent_s
        if not limit_s:
            found.add(Row(part=part, what="everything", status="not run: out of time"))
        else:
            try:
                does(project, found, limit_s)
            except Exception as exc:  # noqa: BLE001 - what the others find is worth having
                words = f"{type(exc).__name__}: {exc}"
                found.add(Row(part=part, what="everything", seen=words, status="wrong"))
        found.seconds[part] = budget.spent_s - before_s
        found.write()
