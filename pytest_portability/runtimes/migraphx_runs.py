"""Runs a model and keeps what MIGraphX prints meanwhile.

It has not run on a device.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import partial

from pytest_portability.models import Arrays
from pytest_portability.runtimes import Request
from pytest_portability.runtimes import onnxruntime_library as library
from pytest_portability.runtimes.host_arrays import contiguous
from pytest_portability.runtimes.migraphx_trace import END_OF_RUN
from pytest_portability.runtimes.onnxruntime_options import in_force
from pytest_portability.runtimes.onnxruntime_session import choose, open_session, session_options


def printed(request: Request, inputs: Arrays, runs: int, short: str = "migraphx") -> str:
    """What is printed during one inference to warm up and ``runs`` more.

    To be called in a process that has not run a program yet, and has ``VARIABLE`` in its
    environment.

    Args:
        request: the build; where its cache holds the compiled programs, they are used.
        inputs: one batch.
        runs: how many.
        short: of the provider.

    Returns:
        The text, with ``END_OF_RUN`` behind each inference.
    """
    ort = library.load(cuda=False)
    choice = choose(ort, short, request)
    chosen = in_force(choice.provider, request)
    options = partial(session_options, ort, chosen)
    session = open_session(ort, choice, request, chosen, options)
    feeds = {name: contiguous(array) for name, array in inputs.items()}
    with tempfile.TemporaryFile() as file:
        with standard_output_to(file.fileno()):
            for _ in range(runs + 1):
                session.run(None, feeds)
                os.write(1, f"{END_OF_RUN}\n".encode())
        file.seek(0)
        return file.read().decode(errors="replace")


@contextlib.contextmanager
def standard_output_to(descriptor: int) -> Iterator[None]:
    """Have all that this process prints go there meanwhile, C++ libraries' lines included.

    MIGraphX ends its lines with ``std::endl``, so none of them waits in a buffer at the end.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(descriptor, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


__all__ = ["printed", "standard_output_to"]
