"""Expanded blocks (LPBQ) on HTP: the option of the provider, and the encodings that it passed to the compiler.

With the option, the provider turns every symmetric int4 weight in blocks along the input channels of a MatMul or of a
1 x 1 Conv into integer scales times one scale per channel: those that were planned, if they already are such products.
Without it, and where it declines, the layer runs with float16 activations.
"""

from __future__ import annotations

import re
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from dovetail.encoding import Array, Granularity, QParams
from dovetail.storage import Plan

# In the metadata of a model with expanded blocks.
_MARK = "dovetail.expanded_blocks"
_OPTION = {"enable_block_quant_weight_optimization": "1"}
# The encodings that the provider passed to QNN, beside its dumped graph, which does not have them.
ENCODINGS = "encodings.bin"
# The member of a DLC with the graph and its encodings.
_DLC_GRAPH = "model"
# What the provider logs of a tensor in expanded blocks; of the integer scales it logs only the first ones.
_LOGGED = re.compile(
    r" name=(?P<name>\S+) id=.* dimensions=\((?P<shape>[\d ]+)\).*BLOCKWISE_EXPANSION axis=(?P<axis>\d+) "
    r"numBlocksPerAxis=(?P<blocks>\d+) blockScaleBitwidth=(?P<bits>\d+)"
)


def mark_expanded_blocks(emitted: ir.Model, plan: Plan) -> None:
    """Record in an emitted model that its plan has expanded blocks; a model without them is not changed."""
    if any(has_expanded_blocks(choice.storage) for choice in plan.edges.values()):
        emitted.metadata_props[_MARK] = "1"


def has_expanded_blocks(storage: object) -> bool:
    """Whether a storage is in expanded blocks."""
    return isinstance(storage, QParams) and storage.encoding.granularity is Granularity.EXPANDED_BLOCK


def block_options(model: Path) -> dict[str, str]:
    """The provider's options for an emitted model: whether it converts blocks to expanded blocks."""
    metadata = onnx.load(model, load_external_data=False).metadata_props
    return dict(_OPTION) if any(entry.key == _MARK for entry in metadata) else {}


def extract_encodings(dlc: Path, output: Path) -> None:
    """Write the part of a DLC that has the encodings of its tensors; read without its checksum, which is wrong."""
    with zipfile.ZipFile(dlc) as archive, dlc.open("rb") as file:
        member = archive.getinfo(_DLC_GRAPH)
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"the member {_DLC_GRAPH!r} of {dlc.name} is compressed")
        file.seek(member.header_offset + 26)
        name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
        file.seek(name_bytes + extra_bytes, 1)
        output.write_bytes(file.read(member.file_size))


@dataclass(frozen=True, slots=True)
class _LoggedBlocks:
    """What the provider logged of one weight."""

    shape: tuple[int, ...]
    axis: int
    blocks: int
    scale_bits: int


@dataclass(frozen=True, slots=True)
class BlockEncodings:
    """The encodings of expanded blocks that the provider passed to QNN: from its log, and from a DLC of the graph."""

    logged: dict[str, _LoggedBlocks]
    encodings: bytes

    @classmethod
    def read(cls, dump: Path, log: str) -> BlockEncodings:
        """Read what ``extract_encodings`` wrote beside the dumped graph, and the log."""
        logged = {}
        for match in _LOGGED.finditer(log):
            shape = tuple(int(size) for size in match["shape"].split())
            blocks = _LoggedBlocks(shape, int(match["axis"]), int(match["blocks"]), int(match["bits"]))
            logged[match["name"]] = blocks
        path = dump / ENCODINGS
        return cls(logged, path.read_bytes() if path.exists() else b"")

    def difference(self, name: str, params: QParams) -> tuple[str, str] | None:
        """What is planned and what was found instead for the weight with this name in the dump; None if all is equal.

        QNN has the input channels on the axis before that of the output channels, which is the last one, and the
        integer scales of one output channel after those of another.
        """
        if params.int_scale is None or params.channel_scale is None or params.axis is None:
            raise ValueError(f"{name!r} is not planned in expanded blocks")
        integers = np.moveaxis(params.int_scale, params.axis, -1).reshape(params.channel_scale.size, -1)
        found = self.logged.get(name)
        if found is None:
            return "expanded blocks", "a tensor without a logged encoding"
        planned = (len(found.shape) - 1, params.encoding.block_size, params.encoding.scale_bits)
        passed = (found.axis, found.shape[-2] / found.blocks, found.scale_bits)
        if passed != planned:
            return _layout_text(*planned), _layout_text(*passed)
        return self._integers_difference(name, integers, params.channel_scale.reshape(-1))

    def _integers_difference(self, name: str, integers: Array, channel: Array) -> tuple[str, str] | None:
        """The DLC has a weight's integer scales as one array, then its channels' scales, the last one first, and then
        its name."""
        stored = struct.pack("<I", integers.size) + integers.tobytes()
        first, end = self._record(name)
        start = self.encodings.rfind(stored, first, end) if end >= 0 else -1
        if start < 0:
            return f"{integers.size} integer scales", "others"
        position = end
        for scale in channel.astype("<f4"):
            position = self.encodings.rfind(scale.tobytes(), start + len(stored), position)
            if position < 0:
                return f"scale {float(scale):.6g} of a channel", "another one"
        return None

    def _record(self, name: str) -> tuple[int, int]:
        """Where the record of a weight is: from the name of the weight before it to its own name, -1 if not found."""
        ends = [self.encodings.find(_label(other)) for other in self.logged]
        end = self.encodings.find(_label(name))
        return max((other for other in ends if 0 <= other < end), default=0), end


def _label(name: str) -> bytes:
    """A name as the DLC has it."""
    return struct.pack("<I", len(name)) + name.encode() + b"\0"


def _layout_text(axis: int, block_size: float, scale_bits: int) -> str:
    return f"scales on axis {axis}, blocks of {block_size:g}, {scale_bits}-bit integer scales"
