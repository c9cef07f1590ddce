"""The other hooks: variables of the measuring processes, causes of one's own, facts of the run."""

from pytest_portability import Cause


def pytest_portability_environment(config, environment):
    """Pin the instruction set, so that runners of several generations share one record."""
    environment["ONEDNN_MAX_CPU_ISA"] = "AVX2"


def pytest_portability_causes(config, comparison):
    """Say what only this project knows: the preprocessing that the inputs went through."""
    record, baseline = comparison.record, comparison.baseline
    if record is None or baseline is None:
        return []
    ours, theirs = (r.model.config.get("resample") for r in (record, baseline))
    if ours == theirs:
        return []
    return [Cause(kind="graph", summary=f"resampling changed: {theirs} → {ours}")]


def pytest_portability_report(config, report):
    """Add a fact to the JSON report's session."""
    report.session["service"] = "voice-activity"
