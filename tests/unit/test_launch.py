"""Lines that start engines as a configuration says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rooflens.analysis.launch import Launch, command_lines
from rooflens.analysis.parallelism import Layout

LAUNCH = Launch("vllm", "owner/model", "fp8", "fp8", Layout(2), 4, 4096, 64, 8192)


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        ("vllm", "vllm serve owner/model --quantization fp8 --kv-cache-dtype fp8 --tensor-parallel-size 2 "
         "--data-parallel-size 4 --max-model-len 4096 --max-num-seqs 64 --max-num-batched-tokens 8192"),
        ("sglang", "python -m sglang.launch_server --model-path owner/model --quantization fp8 "
         "--kv-cache-dtype fp8_e4m3 --tp 2 --dp 4 --context-length 4096 --max-running-requests 64 "
         "--chunked-prefill-size 8192"),
    ],
)  # fmt: skip
def test_replicas_within_a_node_are_one_line(engine: str, line: str) -> None:
    assert command_lines([replace(LAUNCH, engine=engine)]) == (line,)


def test_other_engines() -> None:
    llama = Launch("llama.cpp", "owner/model", "q4_k_m", "q8_0", Layout(), 1, 2048, 4, 512)
    assert command_lines([llama]) == (
        "llama-server -m model-Q4_K_M.gguf -ngl 999 -c 8192 -np 4 --cache-type-k q8_0 --cache-type-v q8_0",
    )
    own = Launch("rooflens", "owner/model", None, None, Layout(), 2, 2048, 4, 512)
    first, second = command_lines([own])
    assert first.startswith("rooflens serve owner/model --max-model-len 2048")
    assert first.endswith("--port 8001")
    assert second.endswith("--port 8002")
    one, two = command_lines([replace(own, visible="CUDA_VISIBLE_DEVICES", layout=Layout(2))])
    assert one.startswith("CUDA_VISIBLE_DEVICES=0,1 rooflens serve")
    assert two.startswith("CUDA_VISIBLE_DEVICES=2,3 rooflens serve")
    awq = Launch("vllm", "owner/model", "awq", None, Layout(), 1, 2048, 4, 512)
    # A format that vLLM cannot make by itself needs a checkpoint of its own.
    assert command_lines([awq])[0].startswith("vllm serve owner/model-AWQ --max-model-len")


def test_shared_experts_are_attention_data_parallel() -> None:
    layout = Layout(tp=1, dp=8, ep=8)
    vllm = command_lines([replace(LAUNCH, layout=layout, replicas=1)])[0]
    assert "--data-parallel-size 8 --enable-expert-parallel" in vllm
    assert "--tensor-parallel-size" not in vllm
    sglang = command_lines([replace(LAUNCH, engine="sglang", layout=layout, replicas=1)])[0]
    assert "--tp 8 --dp 8 --enable-dp-attention --ep 8" in sglang


def test_stages_over_nodes() -> None:
    wide = replace(LAUNCH, layout=Layout(8, 2), replicas=1)
    assert "--pipeline-parallel-size 2 --distributed-executor-backend ray" in command_lines([wide])[0]
    assert "--nnodes 2" in command_lines([replace(wide, engine="sglang")])[0]


def test_pools_are_a_line_an_instance_and_one_that_joins_them() -> None:
    pools = [replace(LAUNCH, replicas=2, role="prefill"), replace(LAUNCH, replicas=1, role="decode")]
    *servers, router = command_lines(pools)
    assert len(servers) == 3
    assert all("NixlConnector" in line for line in servers)
    assert [line.split()[0] for line in servers] == [
        f"VLLM_NIXL_SIDE_CHANNEL_PORT={port}" for port in (5600, 5601, 5602)
    ]
    assert "--prefiller-hosts HOST HOST --prefiller-ports 8001 8002" in router
    assert "--decoder-hosts HOST --decoder-ports 8003" in router
    *servers, router = command_lines([replace(one, engine="sglang") for one in pools])
    assert [line.count("--disaggregation-mode prefill") for line in servers] == [1, 1, 0]
    assert "--pd-disaggregation" in router
