"""The command lines that start an engine as a configuration says."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rooflens.analysis.communication import DEVICES_PER_NODE, shares_experts
from rooflens.analysis.parallelism import Layout

# Formats that an engine makes from a 16-bit checkpoint at start-up; others need a checkpoint of their own.
_ONLINE = {"vllm": {"fp8": "fp8"}, "sglang": {"fp8": "fp8"}}
_CACHES = {
    "vllm": {"fp8": "fp8"},
    "sglang": {"fp8": "fp8_e4m3"},
    "llama.cpp": {"q8_0": "q8_0", "fp16": "f16"},
}
_FIRST_PORT = 8000
_SIDE_PORT = 5600
_VLLM_PROXY = "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py"
"""In vLLM's repository."""


@dataclass(frozen=True)
class Launch:
    """What a start-up line says: ``weights`` None is the checkpoint's own format, lengths in tokens.

    ``role`` is serve, prefill or decode; ``replicas`` instances of ``layout`` on ``device``. ``visible`` is
    the variable that says which devices of a machine a process sees.
    """

    engine: str
    model: str
    weights: str | None
    kv_dtype: str | None
    layout: Layout
    replicas: int
    max_model_len: int
    max_sequences: int
    budget: int
    devices_per_node: int = DEVICES_PER_NODE
    role: str = "serve"
    device: str = ""
    visible: str | None = None


def command_lines(launches: Sequence[Launch]) -> tuple[str, ...]:
    """The lines to run, one an instance: vLLM, SGLang, llama.cpp's server or Rooflens's own.

    Replicas that an engine starts by itself (data parallel within a node) are one line; others are one line
    each, with a port of its own. Prefill and decode pools end with the line of what joins them. A format that
    the engine cannot make by itself needs a checkpoint in it, which the line's model name says.
    """
    first = launches[0]
    by_itself = (
        first.engine in ("vllm", "sglang")
        and not shares_experts(first.layout)
        and first.replicas * first.layout.devices <= first.devices_per_node
    )
    if len(launches) == 1 and (first.replicas == 1 or by_itself):
        return (shlex.join(_words(first, None)),)
    lines: list[str] = []
    ports: dict[str, list[int]] = {}
    port = _FIRST_PORT
    used = 0
    alone = _share_a_node(launches)
    for launch in launches:
        for _ in range(launch.replicas):
            port += 1
            ports.setdefault(launch.role, []).append(port)
            words = _words(replace(launch, replicas=1), port)
            lines.append(" ".join([*_environment(launch, len(lines), used, alone), shlex.join(words)]))
            used += launch.layout.devices
    return (*lines, shlex.join(_router(first, ports))) if len(launches) > 1 else tuple(lines)


def _share_a_node(launches: Sequence[Launch]) -> bool:
    """Whether all instances are on devices of one machine."""
    devices = sum(launch.replicas * launch.layout.devices for launch in launches)
    return len({launch.device for launch in launches}) == 1 and devices <= launches[0].devices_per_node


def _environment(launch: Launch, number: int, used: int, shared: bool) -> list[str]:
    """What an instance beside others must be told: its devices, and a port of its own for cache transfers."""
    told = []
    if shared and launch.visible is not None:
        devices = ",".join(str(used + index) for index in range(launch.layout.devices))
        told.append(f"{launch.visible}={devices}")
    if launch.engine == "vllm" and launch.role != "serve":
        told.append(f"VLLM_NIXL_SIDE_CHANNEL_PORT={_SIDE_PORT + number}")
    return told


def _words(launch: Launch, port: int | None) -> list[str]:
    builders = {"vllm": _vllm, "sglang": _sglang, "llama.cpp": _llama_cpp, "ollama": _llama_cpp}
    words = builders.get(launch.engine, _rooflens)(launch)
    return words if port is None else [*words, "--port", str(port)]


def _model(launch: Launch) -> tuple[str, list[str]]:
    """The model to name, and the option that quantises it."""
    if launch.weights is None:
        return launch.model, []
    online = _ONLINE.get(launch.engine, {}).get(launch.weights)
    if online:
        return launch.model, ["--quantization", online]
    return f"{launch.model}-{launch.weights.upper()}", []


def _cache(launch: Launch, option: str) -> list[str]:
    name = _CACHES.get(launch.engine, {}).get(launch.kv_dtype or "")
    return [option, name] if name else []


def _parallel(launch: Launch, names: tuple[str, str, str]) -> list[str]:
    replicas = launch.layout.dp if shares_experts(launch.layout) else launch.replicas
    degrees = zip(names, (launch.layout.tp, launch.layout.pp, replicas), strict=True)
    return [word for name, degree in degrees if degree > 1 for word in (name, str(degree))]


def _nodes(launch: Launch) -> int:
    return -(-launch.layout.devices // launch.devices_per_node)


def _vllm(launch: Launch) -> list[str]:
    model, quantised = _model(launch)
    experts = ["--enable-expert-parallel"] if launch.layout.ep > 1 else []
    # More than one node: Ray starts the workers, which it knows already.
    nodes = ["--distributed-executor-backend", "ray"] if _nodes(launch) > 1 else []
    transfer = (
        ["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}']
        if launch.role != "serve"
        else []
    )
    return [
        "vllm", "serve", model, *quantised, *_cache(launch, "--kv-cache-dtype"),
        *_parallel(launch, ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")),
        *experts, *nodes, "--max-model-len", str(launch.max_model_len), "--max-num-seqs",
        str(launch.max_sequences), "--max-num-batched-tokens", str(launch.budget), *transfer,
    ]  # fmt: skip


def _sglang(launch: Launch) -> list[str]:
    model, quantised = _model(launch)
    layout = launch.layout
    if shares_experts(layout):
        # SGLang counts attention's data-parallel ranks within its tensor-parallel ones.
        size = str(layout.tp * layout.dp)
        parallel = ["--tp", size, "--dp", str(layout.dp), "--enable-dp-attention", "--ep", str(layout.ep)]
    else:
        parallel = _parallel(launch, ("--tp", "--pp-size", "--dp"))
        parallel += ["--ep", str(layout.ep)] if layout.ep > 1 else []
    if _nodes(launch) > 1:
        parallel += [
            "--nnodes",
            str(_nodes(launch)),
            "--node-rank",
            "0",
            "--dist-init-addr",
            "FIRST_NODE:5000",
        ]
    role = ["--disaggregation-mode", launch.role] if launch.role != "serve" else []
    return [
        "python", "-m", "sglang.launch_server", "--model-path", model, *quantised,
        *_cache(launch, "--kv-cache-dtype"), *parallel,
        "--context-length", str(launch.max_model_len), "--max-running-requests", str(launch.max_sequences),
        "--chunked-prefill-size", str(launch.budget), *role,
    ]  # fmt: skip


def _router(launch: Launch, ports: dict[str, list[int]]) -> list[str]:
    """What sends requests to a prefill instance and then to a decode instance."""
    if launch.engine == "sglang":
        words = ["python", "-m", "sglang_router.launch_router", "--pd-disaggregation"]
        for role in ("prefill", "decode"):
            words += [word for port in ports[role] for word in (f"--{role}", f"http://HOST:{port}")]
        return [*words, "--port", str(_FIRST_PORT)]
    words = ["python", _VLLM_PROXY]
    for role, name in (("prefill", "prefiller"), ("decode", "decoder")):
        words += [f"--{name}-hosts", *("HOST" for _ in ports[role])]
        words += [f"--{name}-ports", *(str(port) for port in ports[role])]
    return [*words, "--port", str(_FIRST_PORT)]


def _llama_cpp(launch: Launch) -> list[str]:
    name = launch.model.rpartition("/")[2]
    cache = _CACHES["llama.cpp"].get(launch.kv_dtype or "")
    typed = ["--cache-type-k", cache, "--cache-type-v", cache] if cache else []
    # It splits by layers over devices unless it is told to split rows.
    split = ["--split-mode", "row"] if launch.layout.tp > 1 else []
    return [
        "llama-server", "-m", f"{name}-{(launch.weights or 'f16').upper()}.gguf", "-ngl", "999", *split,
        "-c", str(launch.max_model_len * launch.max_sequences), "-np", str(launch.max_sequences), *typed,
    ]  # fmt: skip


def _rooflens(launch: Launch) -> list[str]:
    quantised = ["--weights", launch.weights] if launch.weights else []
    return [
        "rooflens", "serve", launch.model, *quantised, "--max-model-len", str(launch.max_model_len),
        "--max-sequences", str(launch.max_sequences), "--max-batched-tokens", str(launch.budget),
    ]  # fmt: skip
