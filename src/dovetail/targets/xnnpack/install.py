"""Whether executorch, torch and torchao are installed, in compatible versions."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from dovetail.backend import Probe

_INSTALL = "pip install 'dovetail-fit[xnnpack]'"
# The versions that everything was measured with: an executorch wheel is built against one version of torch.
PACKAGES = {"executorch": "1.5.1", "torch": "2.13.0", "torchao": "0.18.0"}
# Imported once for all children of this target: it takes seconds.
IMPORTS = (
    "dovetail.targets.xnnpack.lower",
    "dovetail.targets.xnnpack.session",
    "torch.export._trace",
    "executorch.exir",
    "executorch.backends.xnnpack.partition.xnnpack_partitioner",
    "executorch.backends.transforms.remove_clone_ops",
    "executorch.extension.pybindings._C",
    "dovetail.targets.xnnpack.lower:prepare",
)


def probe() -> Probe:
    """Whether the three packages are installed in compatible versions; none of them is imported."""
    installed = {name: _version(name) for name in PACKAGES}
    versions = {name: number for name, number in installed.items() if number}
    return Probe(not (missing := problem(installed)), versions, missing)


def problem(installed: dict[str, str]) -> str:
    """Which packages are missing or incompatible, with the command that installs them; empty if none is."""
    absent = [name for name, number in installed.items() if not number]
    if absent:
        return f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed: {_INSTALL}"
    incompatible = [
        f"{name} {number} is installed, {PACKAGES[name]} is required"
        for name, number in installed.items()
        if _release(number) != PACKAGES[name]
    ]
    return f"{', '.join(incompatible)}: {_INSTALL}" if incompatible else ""


def _release(number: str) -> str:
    """A version without its local part: ``2.13.0+cpu`` -> ``2.13.0``."""
    return number.partition("+")[0]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
