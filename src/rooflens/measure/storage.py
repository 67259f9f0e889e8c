"""Where probe records are kept, written whole or not at all, and found again."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from rooflens.errors import InputError
from rooflens.hardware.local_cpu import CpuInfo, read_cpu
from rooflens.measure.records import ProbeRecord
from rooflens.models.json_input import read_json_object
from rooflens.units import MIB

HOME_VARIABLE = "ROOFLENS_HOME"
LIMIT_BYTES = 64 * MIB
"""No record comes near this; a larger file is something else."""
CPU_TARGET = "cpu"
_SAME_MEMORY = 0.02


def data_home() -> Path:
    """The user's data directory: ``ROOFLENS_HOME``, else the platform's convention; not created here."""
    if given := os.environ.get(HOME_VARIABLE):
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "rooflens"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "rooflens"
    base = os.environ.get("XDG_DATA_HOME", "")
    # The base directory specification says to ignore relative paths.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "rooflens"


def probes_folder() -> Path:
    """Where records are saved when no file is named."""
    return data_home() / "probes"


def default_path(record: ProbeRecord) -> Path:
    """A new file's path: time and device, so that names sort by time."""
    when = re.sub(r"[^0-9TZ]", "", record.created)
    device = re.sub(r"[^a-z0-9]+", "-", f"{record.device.target} {record.device.name}".lower()).strip("-")
    return probes_folder() / f"{when}-{device}.json"


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, before anything is measured. Raises InputError."""
    try:
        _ensure_folder(path)
        if path.is_dir():
            raise IsADirectoryError(21, "Is a directory")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _unwritable(path, error) from None


def save_json(document: dict[str, Any], path: Path) -> None:
    """Write a document whole or not at all. Raises InputError where the folder or file is not writable."""
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    temporary = None
    try:
        _ensure_folder(path)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
            temporary = Path(file.name)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # The temporary file is private; a saved record is as readable as any other of the user's files.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        temporary = None
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def save_probe(record: ProbeRecord, path: Path | None = None) -> Path:
    """Save a record, by default under the user's data directory; returns the path."""
    path = default_path(record) if path is None else path
    save_json(record.to_dict(), path)
    return path


def load_probe(path: str | os.PathLike[str]) -> ProbeRecord:
    """Read a saved record. Raises NotFoundError for a missing file, InputError for anything else amiss."""
    return ProbeRecord.from_dict(read_json_object(path, what="probe record", limit_bytes=LIMIT_BYTES))


def latest_probe(*, cpu: CpuInfo | None = None) -> ProbeRecord | None:
    """The newest saved record of this machine that can describe a device; None if there is none.

    An accelerator's record goes before the CPU's. Records of other machines (a shared home directory) and
    interrupted ones without bandwidth or peak are passed over; a damaged newest file raises.
    """
    from rooflens.measure.roofs import roofs

    here = read_cpu() if cpu is None else cpu
    newest_first = sorted(probes_folder().glob("*.json"), reverse=True)
    for path in sorted(newest_first, key=lambda path: f"Z-{CPU_TARGET}-" in path.name):
        record = load_probe(path)
        if is_this_machine(record, cpu=here) and roofs(record).describe_a_device:
            return record
    return None


def is_this_machine(record: ProbeRecord, *, cpu: CpuInfo | None = None) -> bool:
    """Whether a record was taken on a machine with this one's CPU, core count and memory."""
    here = read_cpu() if cpu is None else cpu
    there = record.environment.get("cpu") or {}
    memory, memory_there = here.memory_total_bytes, there.get("memory_total_bytes")
    return (
        there.get("name") == here.name
        and there.get("machine_cores") == here.machine_cores
        and (memory == memory_there if not (memory and memory_there)
             else abs(memory / memory_there - 1) <= _SAME_MEMORY)
    )  # fmt: skip


def require_this_machine(record: ProbeRecord, *, cpu: CpuInfo | None = None) -> None:
    """Raise InputError for a record of another machine, naming both."""
    here = read_cpu() if cpu is None else cpu
    if not is_this_machine(record, cpu=here):
        there = record.environment.get("cpu") or {}
        raise InputError(
            "probe record is of another machine",
            value=f"{there.get('name')}, {there.get('machine_cores')} cores",
            allowed=f"this machine: {here.name}, {here.machine_cores} cores",
            next="measure here with `rooflens probe`",
        )


def _ensure_folder(path: Path) -> None:
    """Make the default folder if needed; a folder that the user named must exist."""
    if path.parent == probes_folder():
        path.parent.mkdir(parents=True, exist_ok=True)


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot write the probe record: {(error.strerror or str(error)).lower()}",
        value=str(path),
        next=f"name a file in a folder you may write to with -o, or set {HOME_VARIABLE}",
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
