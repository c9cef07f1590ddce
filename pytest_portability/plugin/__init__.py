"""The pytest plugin: options, markers, the fixture, and what a verdict does to an item.

Every pytest run imports this module, with or without ``--portability``: what imports NumPy or a
runtime is imported inside functions that only a measuring run calls.
"""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_portability import selection, settings
from pytest_portability.errors import PortabilityError
from pytest_portability.plugin import flag, fleet
from pytest_portability.plugin.measuring import RunHooks, deselected_key

if TYPE_CHECKING:
    from pytest_portability.fixture import Portability

run_key = pytest.StashKey[RunHooks]()

# --- options -----------------------------------------------------------------------------------


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Make our hooks known."""
    from pytest_portability import hookspec

    pluginmanager.add_hookspecs(hookspec)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options and their ini twins, all but ``--update-baselines``."""
    settings.declare(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    """Take ``--update-baselines`` out of the arguments, unless an initial conftest owns the name.

    Many projects define that very flag in a conftest. An option of ours would break each of their
    runs; so there is none, except where help is asked for and it has to be shown.
    """
    result = yield
    asks_help = bool({"-h", "--help"}.intersection(args))
    if flag.UPDATE in args or asks_help:
        ours = not flag.takes(parser, flag.UPDATE)
        if flag.UPDATE in args:
            early_config.stash[flag.update_key] = parser if ours else None
        if ours:
            args[:] = [arg for arg in args if arg != flag.UPDATE]
        if ours and asks_help:
            parser.getgroup("portability").addoption(
                flag.UPDATE,
                action="store_true",
                dest="portability_update",
                help="write what was measured as the new records; implies --portability",
            )
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Settle what xdist reads when it is configured."""
    if config.getoption("portability") or flag.update_key in config.stash:
        fleet.keep_going(config)


# --- set-up ------------------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register markers; set up the run if it measures."""
    config.addinivalue_line(
        "markers",
        "portability(batches, precisions, targets, runtimes, tolerance, parity, seconds, known): "
        "how the portability fixture builds and judges the model of this test",
    )
    for name in selection.names(config.getoption("markexpr", default="") or ""):
        selection.register(config, name)
    if flag.update_key in config.stash:
        if config.getoption("portability"):
            config.stash[flag.update_key] = None  # no doubt whose flag it is
        # Among the options xdist hands both to the workers, which see no flag of ours.
        config.option.portability |= config.stash[flag.update_key] is not None
        config.option.portability_update = True
    updating = config.getoption("portability_update", default=False)
    if config.getoption("portability_accept") and not updating:
        msg = f"--portability-accept says why a worse record is written: only with {flag.UPDATE}"
        raise pytest.UsageError(msg)
    if not config.getoption("portability"):
        return
    try:
        hooks = RunHooks(config)
    except PortabilityError as exc:
        raise pytest.UsageError(str(exc)) from exc
    config.stash[run_key] = hooks
    config.pluginmanager.register(hooks, "portability-run")
    if config.getoption("dist", "no") != "no":
        config.pluginmanager.register(hooks.fleet, "portability-fleet")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test that asks for the fixture over what it is to be built for."""
    hooks = metafunc.config.stash.get(run_key, None)
    if hooks is not None and selection.is_meant(metafunc, __name__):
        try:
            hooks.parametrize(metafunc)
        except PortabilityError as exc:
            raise pytest.Collector.CollectError(str(exc)) from exc


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Remember that a test of ours was not selected."""
    for item in items:
        if selection.is_meant(item, __name__):
            item.config.stash[deselected_key] = True


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Say why ``-m rocm`` selects none of ours where nothing is measured."""
    meant = selection.asks(config.getoption("markexpr", default="") or "")
    if run_key in config.stash or deselected_key not in config.stash or not meant:
        return []
    return [f"portability: with -m, {meant!r} is only there under --portability"]


@pytest.fixture
def portability(request: pytest.FixtureRequest) -> Portability:
    """Build, measure and judge a model on what is here: ``portability.check(model, inputs)``.

    ``model`` is a path to an ONNX file, an ``onnx.ModelProto``, a ``torch.nn.Module`` or a function
    that makes one; ``inputs`` is a function ``(batch, rng)`` that makes arrays, or ready ones.
    ``check`` also takes ``metric``, ``reference``, ``name``, ``options`` and more, fails the test
    by its verdict and returns what was measured: ``help(pytest_portability.Portability.check)``.

    The test runs once for each target × runtime × precision × batch that ``--portability``, the ini
    file and the ``portability`` marker choose (``pytest --markers``); without the flag it is
    skipped. ``--update-baselines`` records.
    """
    hooks = request.config.stash.get(run_key, None)
    if hooks is None:
        pytest.skip("needs --portability")
    from pytest_portability import ledger
    from pytest_portability.fixture import Portability

    node = request.node
    hooks.begin(request)
    if not hasattr(request, "param"):
        hooks.keep(node, ledger.unparametrized(node.nodeid, selection.name(node)))
        hooks.end(node, "fail", ledger.UNPARAMETRIZED)
    name, marker = selection.name(node), selection.marker(node)
    return Portability(hooks, node, name=name, marker=marker, item=request.param)
