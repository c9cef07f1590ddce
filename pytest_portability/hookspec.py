"""The hooks that extend the plugin; a conftest and an installed package implement them alike."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    import pytest

    from pytest_portability.attribute import Cause
    from pytest_portability.compare import Comparison
    from pytest_portability.report import Report
    from pytest_portability.runtimes import Runtime

hookspec = pluggy.HookspecMarker("pytest")


@hookspec
def pytest_portability_runtimes(config: pytest.Config) -> Iterable[Runtime]:
    """Add runtimes of your own.

    Called once, when the first test that asks for ``portability`` is collected under
    ``--portability``. A runtime travels to the child process by cloudpickle, so it must not hold
    open devices or files. One with a method ``devices() -> (devices, absents)`` is asked for its
    hardware, in a child process; any other is taken to run on the CPU.

    Args:
        config: the pytest config object.

    Returns:
        Objects with the attributes and methods of ``pytest_portability.Runtime``, no two of one
        name.

    Example::

        def pytest_portability_runtimes(config):
            return [TunedSession()]
    """
    raise NotImplementedError


@hookspec
def pytest_portability_environment(
    config: pytest.Config, environment: MutableMapping[str, str]
) -> None:
    """Add or change environment variables of the measuring processes.

    Called before each item is measured; in a conftest, only for the tests below it. What is set
    here is recorded among the options, because it can change speed.

    Args:
        config: the pytest config object.
        environment: variable to value, both text; change it in place. Variables of the pytest
            process win.

    Example::

        def pytest_portability_environment(config, environment):
            environment["KMP_AFFINITY"] = "granularity=fine,compact,1,0"
    """


@hookspec
def pytest_portability_causes(config: pytest.Config, comparison: Comparison) -> Iterable[Cause]:
    """Add causes that only your project can know, such as a changed preprocessing step.

    Called for every comparison that does not pass, on the xdist worker that measured it.

    Args:
        config: the pytest config object.
        comparison: the verdict, and the record and its baseline, either of which may be None.

    Returns:
        Causes; they are ranked among the plugin's own by their share, before those of equal share.

    Example::

        def pytest_portability_causes(config, comparison):
            record, baseline = comparison.record, comparison.baseline
            if record and baseline and record.model.config != baseline.model.config:
                return [Cause(kind="graph", summary="the training configuration changed")]
            return []
    """
    raise NotImplementedError


@hookspec
def pytest_portability_report(config: pytest.Config, report: Report) -> None:
    """See the whole report before it is printed and written; add facts to ``report.session``.

    Called once, at the end of the session, on the controller. What it raises is said in the
    report, which is then not green.

    Args:
        config: the pytest config object.
        report: every comparison of the run.

    Example::

        def pytest_portability_report(config, report):
            report.session["ticket"] = os.environ.get("TICKET", "")
    """
