"""``rooflens doctor``."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec
from typing import Any

import click

from rooflens.cli.options import output_options
from rooflens.cli.output import print_json
from rooflens.errors import RooflensError

# The libraries of each extra, by the name they are imported under.
EXTRAS: dict[str, tuple[str, ...]] = {
    "plot": ("altair", "vl_convert"),
    "runtime": ("torch", "tokenizers", "jinja2", "safetensors", "gguf"),
    "serve": ("fastapi", "uvicorn", "prometheus_client"),
    "web": ("fastapi", "uvicorn", "altair", "vl_convert"),
}


@click.command()
@output_options()
def doctor(as_json: bool, lang: str | None) -> int:
    """What Rooflens finds here: Python, torch and its kernels, devices, the probe, extras, models.

    Nothing is measured and nothing is changed.
    """
    document = examine()
    if as_json:
        print_json(document)
        return 0
    from rooflens.report.tables.doctor import doctor_report
    from rooflens.report.tables.layout import console, show
    from rooflens.report.words import language, words

    show(doctor_report(document, words(language(lang))), on=console())
    return 0


def examine() -> dict[str, Any]:
    """Everything that the command tells, as JSON; null for what is not there."""
    from rooflens import __version__
    from rooflens.hardware import detect_local
    from rooflens.models.bundled import bundled_models

    torch_facts, problem = _torch() if find_spec("torch") else (None, None)
    return {
        "schema": "rooflens.doctor/1",
        "rooflens": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "torch": torch_facts,
        "torch_problem": problem,
        "devices": [device.to_dict() for device in detect_local()],
        "probe": _probe(),
        "extras": {
            extra: [name for name in names if find_spec(name) is None] for extra, names in EXTRAS.items()
        },
        "bundled_models": len(bundled_models()),
        "models": _models(),
    }


def _torch() -> tuple[dict[str, Any] | None, str | None]:
    """(torch, the best device, the kernels that the runtime would take there), or why it will not load."""
    try:
        import torch

        from rooflens.runtime.backend import resolve_device
        from rooflens.runtime.dtypes import bf16_is_fast
        from rooflens.runtime.kernels import kernels_for

        device = resolve_device(None)
        kernels = kernels_for(device)
        facts = {
            "version": torch.__version__,
            "threads": torch.get_num_threads(),
            "device": str(device),
            "bf16": bf16_is_fast(device),
            "kernels": type(kernels).__name__,
            # How linears run shows only once some are packed: see `rooflens run`.
            "kernel_path": {name: how for name, how in kernels.describe().items() if name != "linear"},
            "cuda": torch.version.cuda,
        }
    except (ImportError, OSError, RooflensError) as error:
        return None, str(error).splitlines()[0]
    return facts, None


def _probe() -> dict[str, Any]:
    """The newest record of this machine."""
    from rooflens.measure.roofs import roofs
    from rooflens.measure.storage import latest_probe, probes_folder

    try:
        record = latest_probe()
    except RooflensError as error:
        return {"folder": str(probes_folder()), "problem": error.sentence()}
    if record is None:
        return {"folder": str(probes_folder()), "created": None}
    found = roofs(record)
    return {
        "folder": str(probes_folder()),
        "created": record.created,
        "device": record.device.name,
        "describes_a_device": found.describe_a_device,
    }


def _models() -> list[dict[str, Any]]:
    """Models with weights that installed packages bring, and checkpoints in the Hub's cache."""
    found = []
    if find_spec("gguf") is not None:
        from rooflens.runtime.discover import packaged_models

        found += [
            {"name": model.name, "from": f"package {model.package}", "bytes": _size(model.parts)}
            for model in packaged_models()
        ]
    try:
        from huggingface_hub import scan_cache_dir

        for repo in scan_cache_dir().repos:
            if repo.repo_type == "model":
                found.append({"name": repo.repo_id, "from": "Hub cache", "bytes": repo.size_on_disk})
    except Exception:  # no cache folder, or one that the library cannot read: nothing to list either way
        return found
    return found


def _size(parts: tuple[Any, ...]) -> int:
    return sum(part.stat().st_size for part in parts)
