"""Every exception and warning of the package.

PortabilityError
├── UsageError          a marker, ini key or option asks for something that does not exist
├── ModelError          the model cannot be read
├── InputsError         the inputs do not fit the model or the item
├── Unsupported         this runtime or precision cannot do this model here: the item skips
├── RuntimeUnavailable  a platform library is missing, or present but unusable
├── DoesNotFit          the profile needs more memory than the target has
├── BuildError          the runtime refused to build or to run the model
├── ChildFailed         a child process died, hung or raised something unforeseen
└── RecordError         a baseline file cannot be used as it is
"""

from __future__ import annotations

import traceback


class PortabilityError(Exception):
    """Something went wrong that the user can act upon; the message says what and how.

    Attributes:
        log: the last lines that the child process it came from wrote, empty if it came from none.
    """

    log = ""


class UsageError(PortabilityError):
    """A marker, ini key, option or argument asks for something that does not exist."""


class ModelError(PortabilityError):
    """The model cannot be read."""


class InputsError(PortabilityError):
    """The inputs do not fit the model or the item."""


class Unsupported(PortabilityError):
    """This runtime or precision cannot do this model here; the item skips with this reason."""


class RuntimeUnavailable(PortabilityError):
    """A platform library is not installed, or present but unusable."""


class DoesNotFit(PortabilityError):
    """The profile needs more memory than the target has."""


class BuildError(PortabilityError):
    """The runtime refused to build or to run the model; the message is the runtime's own."""


class ChildFailed(PortabilityError):
    """A child process died, hung or raised something unforeseen.

    Attributes:
        log: the last lines the child wrote to its standard output and error.
        signal_number: the signal that ended the child, None if none did.
    """

    def __init__(self, message: str, *, log: str = "", signal_number: int | None = None) -> None:
        super().__init__(message)
        self.log = log
        self.signal_number = signal_number


class RecordError(PortabilityError):
    """A baseline file cannot be used as it is; the message names file and key."""


class PortabilityWarning(UserWarning):
    """A measurement was taken and judged, and something about it deserves attention."""


def error_text(exc: BaseException) -> str:
    """Type and message, whatever its ``__str__`` does."""
    return "".join(traceback.format_exception_only(exc)).strip()


def message(exc: BaseException) -> str:
    """What an exception says, else its type; the ``__str__`` of a user's class may raise."""
    try:
        return str(exc) or type(exc).__name__
    except Exception:  # noqa: BLE001 - see above
        return type(exc).__name__
