"""Whether executorch, torch and torchao are installed here, and go together."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from dovetail.backend import Probe

_INSTALL = "pip install 'dovetail-fit[xnnpack]'"
# The versions that everything here was measured with: an executorch wheel is built against one torch.
PACKAGES = {"executorch": "1.5.1", "torch": "2.13.0", "torchao": "0.18.0"}


def probe() -> Probe:
    """Whether the three packages are here in versions that go together; none of them is imported for it."""
    found = {name: _version(name) for name in PACKAGES}
    versions = {name: number for name, number in found.items() if number}
    return Probe(not (missing := obstacle(found)), versions, missing)


def obstacle(found: dict[str, str]) -> str:
    """What is missing or does not go together, in one sentence with the line that installs it; empty if nothing."""
    absent = [name for name, number in found.items() if not number]
    if absent:
        return f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed: {_INSTALL}"
    other = [
        f"{name} {number} is installed, {PACKAGES[name]} is needed"
        for name, number in found.items()
        if _release(number) != PACKAGES[name]
    ]
    return f"{', '.join(other)}: {_INSTALL}" if other else ""


def _release(number: str) -> str:
    """A version without its build, as in ``2.13.0+cpu``."""
    return number.partition("+")[0]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
