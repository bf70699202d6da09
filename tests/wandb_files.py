"""Reads the files that wandb writes offline."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def wandb_runs(folder: Path) -> list[dict[str, Any]]:
    """What the files of the offline runs below a folder hold, in their order."""
    from wandb.proto.wandb_internal_pb2 import Record

    runs = []
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        run: dict[str, Any] = {"series": {}}
        for part in map(Record.FromString, wandb_records(path)):
            if part.HasField("run"):
                given = {item.key: json.loads(item.value_json) for item in part.run.config.update}
                given.pop("_wandb", None)
                run |= {"name": part.run.display_name, "project": part.run.project}
                run |= {"group": part.run.run_group, "config": given}
            for item in part.history.item:
                name = item.key or "/".join(item.nested_key)
                if not name.startswith("_"):
                    value = json.loads(item.value_json)
                    run["series"].setdefault(name, []).append((part.history.step.num, value))
        runs.append(run)
    return runs


def wandb_records(path: Path) -> Iterator[bytes]:
    """The records of a file in the format of LevelDB's logs, after a header of 7 bytes."""
    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # what is too short for a header ends a block
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
