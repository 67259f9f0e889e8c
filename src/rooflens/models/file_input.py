"""Files that cannot be read, or are not what their names promise, explained.

A failed download leaves a web page, an error message or a Git LFS pointer under the name of a model
file. Each has a well-known beginning and its own remedy, so a reader can say more than "invalid header".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rooflens.errors import InputError, NotFoundError, RooflensError, UnsupportedError
from rooflens.units import format_bytes

#: How many leading bytes `refuse_foreign` needs to see.
HEAD_BYTES = 512

_LFS = b"version https://git-lfs.github.com/spec/"
_LFS_SIZE = re.compile(rb"^size (\d{1,18})$", re.MULTILINE)
_HTML = (b"<!doctype html", b"<html", b"<head", b"<body")
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_DOWNLOAD_AGAIN = "download the file again and check the address and the access token"

#: Formats that exist and are not read, by magic number: (what it is, what to do).
_OTHER_FORMATS: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "a ZIP archive (a pickled PyTorch checkpoint, or NumPy's .npz)", "pickle"),
    (b"lmgg", "a GGML file from before GGUF", "gguf"),
    (b"fmgg", "a GGMF file from before GGUF", "gguf"),
    (b"tjgg", "a GGJT file from before GGUF", "gguf"),
    (b"algg", "a GGLA adapter from before GGUF", "gguf"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras weights)", "convert"),
    (b"\x1f\x8b", "a gzip archive", "unpack"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive", "unpack"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "unpack"),
)
_REMEDY = {
    "pickle": "unpickling can run code, so Rooflens never does: use the model's .safetensors or .gguf files",
    "gguf": "convert the model to GGUF with llama.cpp's convert_hf_to_gguf.py",
    "convert": "use the model's .safetensors or .gguf files",
    "unpack": "unpack it first",
}


def quoted(name: str) -> str:
    """A name from a file, safe to print: control characters escaped, long ones cut."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


def stays_inside(name: str) -> bool:
    """Is this a printable relative name that lies below the directory it is joined to, on any system?"""
    steps = name.replace("\\", "/").split("/")
    return steps[0] != "" and ".." not in steps and ":" not in steps[0] and name.isprintable()


def file_error(path: Path, error: OSError | ValueError, *, what: str = "") -> RooflensError:
    """The error to raise for a file that the system would not open; ``what`` says what it should be."""
    name = f"{what} {quoted(str(path))}".strip()
    if isinstance(error, FileNotFoundError):
        if path.is_symlink():
            return NotFoundError(f"{name} is a link to a file that is not there", next="download it again")
        return NotFoundError(f"{name} does not exist", next="check the path")
    if isinstance(error, IsADirectoryError):
        return InputError(f"{name} is a directory", next="name a file in it")
    if isinstance(error, PermissionError):
        return InputError(f"{name} may not be read", next="check the file's permissions")
    # A null character in the path is a ValueError, the rest of the system's reasons have a text.
    return InputError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}")


def some(names: Sequence[str]) -> str:
    """The first few of many names, for a sentence: ``'a', 'b', 'c' and 7 more``."""
    shown = ", ".join(quoted(name) for name in names[:3])
    return f"{shown} and {len(names) - 3:,} more" if len(names) > 3 else shown


def refuse_foreign(head: bytes, *, name: str, expected: str) -> None:
    """Raise the error that explains ``head``, the first bytes of file ``name``; return if none is known.

    ``expected`` says what the caller wanted ("a JSON file"). Raises InputError for an empty file, a Git LFS
    pointer, a web page or a server's error text; UnsupportedError for a known format that is not read.
    """
    if not head:
        raise InputError(f"{name} is empty, not {expected}", next=_DOWNLOAD_AGAIN)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith(_LFS):
        size = _LFS_SIZE.search(head)
        stands_for = f" for a file of {format_bytes(int(size[1]))}" if size else ""
        raise InputError(
            f"{name} is a Git LFS pointer{stands_for}, not {expected}",
            next="run `git lfs pull` in the repository it was cloned from",
        )
    if text.startswith(_HTML):
        raise InputError(f"{name} is a web page (HTML), not {expected}", next=_DOWNLOAD_AGAIN)
    if text.startswith(b"<?xml"):
        raise InputError(f"{name} is an XML document, not {expected}", next=_DOWNLOAD_AGAIN)
    for magic, description, remedy in _OTHER_FORMATS:
        if head.startswith(magic):
            raise UnsupportedError(f"{name} is {description}, not {expected}", next=_REMEDY[remedy])
    if _PICKLE.match(head):
        raise UnsupportedError(f"{name} is a Python pickle, not {expected}", next=_REMEDY["pickle"])


def refuse_text(head: bytes, *, name: str, expected: str) -> None:
    """Raise InputError if ``head`` is plain text, such as a server's error message saved as a model."""
    line = head[:80].split(b"\n", 1)[0].rstrip()
    if line and all(0x20 <= byte < 0x7F for byte in line):
        raise InputError(
            f"{name} is a text file, not {expected}", value=line.decode("ascii"), next=_DOWNLOAD_AGAIN
        )
