"""The model in every form an engine asks for, each made once by that engine's own tools and kept."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.install import InstallError
from benchmarks.peers.model_files import read_config, write_directory, write_gguf
from benchmarks.peers.worker_process import ROOT

_LIMIT_S = 1800
_GROUP = "32"
_LAST_LINES = 2


@dataclass(frozen=True)
class Forms:
    """Makes forms of one shape under ``home``; ``pythons`` are the environments' interpreters by name."""

    home: Path
    shape: str
    pythons: Mapping[str, Path]

    def path(self, made_by: str) -> Path:
        """The form, made first where needed. Raises InstallError with the tool's last words."""
        return self._makers()[made_by]()

    @property
    def config(self) -> dict[str, Any]:
        """The shape's config."""
        return read_config(self.shape)

    def _makers(self) -> dict[str, Callable[[], Path]]:
        makers: dict[str, Callable[[], Path]] = {
            "directory": self._directory,
            "gguf-bf16": lambda: write_gguf(self._target("bf16.gguf"), self._directory()),
        }
        for kind in ("q8_0", "q4_0", "q4_1"):
            makers[f"gguf-{kind}"] = lambda kind=kind: self._quantised(kind)  # type: ignore[misc]
        for weights in ("bf16", "int8", "int4"):
            makers[f"openvino-{weights}"] = lambda weights=weights: self._openvino(weights)  # type: ignore[misc]
        for weights in ("int8", "int4"):
            makers[f"onnx-{weights}"] = lambda weights=weights: self._onnx(weights)  # type: ignore[misc]
        return makers

    def _target(self, name: str) -> Path:
        folder = self.home / "models" / self.shape.replace("/", "__")
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def _directory(self) -> Path:
        return write_directory(self._target("directory"), self.config)

    def _quantised(self, kind: str) -> Path:
        source = write_gguf(self._target("bf16.gguf"), self._directory())
        module = "benchmarks.peers.workers.llama_cpp_quantize"
        return self._make(
            self._target(f"{kind}.gguf"),
            "llama.cpp",
            lambda scratch: ["-m", module, str(source), str(scratch), kind],
        )

    def _openvino(self, weights: str) -> Path:
        arguments = {
            "bf16": [],  # as the directory has them
            "int8": ["--weight-format", "int8"],
            "int4": ["--weight-format", "int4", "--group-size", _GROUP, "--ratio", "1.0"],
        }[weights]
        source = self._directory()
        command = ["-m", "optimum.commands.optimum_cli", "export", "openvino"]
        task = ["--task", "text-generation-with-past"]
        return self._make(
            self._target(f"openvino-{weights}"),
            "openvino",
            lambda scratch: [*command, "--model", str(source), *task, *arguments, str(scratch)],
        )

    def _onnx(self, weights: str) -> Path:
        source = self._directory()
        options = [f"block_size={_GROUP}", "accuracy_level=4"]  # 4: activations in int8
        return self._make(
            self._target(f"onnx-{weights}"),
            "onnxruntime-genai",
            lambda scratch: [
                "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", str(scratch),
                "-p", weights, "-e", "cpu", "--extra_options", *options,
            ],
        )  # fmt: skip

    def _make(self, target: Path, environment: str, arguments: Callable[[Path], list[str]]) -> Path:
        """Run a tool into a scratch path, which takes its name once it is whole."""
        if target.exists():
            return target
        scratch = target.with_name(f"part-{target.name}")
        if scratch.is_dir():
            shutil.rmtree(scratch)
        log = self.home / "logs" / f"make-{target.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8") as output:
            done = subprocess.run(
                [str(self.pythons[environment]), *arguments(scratch)],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
                timeout=_LIMIT_S,
                check=False,
            )
        if done.returncode or not scratch.exists():
            lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line]
            raise InstallError(f"{target.name} was not made: {' / '.join(lines[-_LAST_LINES:])}")
        scratch.rename(target)
        return target
