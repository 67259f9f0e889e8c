"""Hub checkpoints over real HTTP, from a small Hub on 127.0.0.1: right, cached, and on every bad day."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_files import gguf_bytes, safetensors_bytes, shard, split_part, words_of
from hub_server import COMMIT, FakeHub, fake_hub

from rooflens.errors import InputError, NotFoundError, RooflensError
from rooflens.models.checkpoint import range_source
from rooflens.models.checkpoint.hub import HubRepo, open_hub_checkpoint
from rooflens.models.checkpoint.tensor import Checkpoint
from rooflens.units import MIB

hub_constants = pytest.importorskip("huggingface_hub.constants")

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(range_source, "PAUSE_S", 0.001)
    with fake_hub() as server:
        yield server


def read(hub: FakeHub, *, file: str | None = None, revision: str | None = None) -> Checkpoint:
    return open_hub_checkpoint(
        hub.repo, file=file, revision=revision, endpoint=hub.endpoint, token="hf_secret"
    )


def cached(tmp_path: Path, files: dict[str, bytes]) -> None:
    """Lay out files as huggingface_hub's cache does."""
    folder = tmp_path / "cache" / "models--owner--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    for name, raw in files.items():
        path = folder / "snapshots" / COMMIT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)


# --- right answers -----------------------------------------------------------------------------------


def test_a_single_file_is_read_without_its_weights(hub: FakeHub) -> None:
    size = 4 * MIB
    table = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    hub.files = {"config.json": b"{}", SINGLE: safetensors_bytes(table, size)}
    found = read(hub)
    assert (found.total_bytes, found.files[0].bytes) == (size, len(hub.files[SINGLE]))
    assert hub.requests(SINGLE) == 1
    assert hub.bytes_sent < MIB


def test_the_token_goes_to_the_hub_and_not_to_the_storage(hub: FakeHub) -> None:
    hub.files = {SINGLE: shard({"a": 4})}
    read(hub)
    assert {has_token for path, _, has_token in hub.log if path.startswith("/api/")} == {True}
    assert {has_token for path, _, has_token in hub.log if "/resolve/" in path} == {True}
    assert {has_token for path, _, has_token in hub.log if path.startswith("/cdn/")} == {False}


def test_shards_with_an_index(hub: FakeHub) -> None:
    names = [f"model-{number:05d}-of-00012.safetensors" for number in range(1, 13)]
    hub.files = {name: shard({name: 4}) for name in names}
    index = {"metadata": {"total_size": 12 * 16}, "weight_map": {name: name for name in names}}
    hub.files[INDEX] = json.dumps(index).encode()
    found = read(hub)
    assert [file.name for file in found.files] == names
    assert (found.total_bytes, found.problems) == (192, ())


def test_gguf_by_the_label_of_its_quantisation(hub: FakeHub) -> None:
    hub.files = {
        "m-Q4_K_M.gguf": gguf_bytes(),
        "m-Q8_0.gguf": gguf_bytes(tensors=[("only", (32,), 8, 0)], data_bytes=34),
        "BF16/m-BF16-00001-of-00002.gguf": split_part(0, 2, ["a"], 2),
        "BF16/m-BF16-00002-of-00002.gguf": split_part(1, 2, ["b"], 2),
    }
    assert read(hub, file="q8_0").by_name["only"].dtype == "Q8_0"
    assert set(read(hub, file="BF16").by_name) == {"a", "b"}
    assert set(read(hub, file="m-Q4_K_M.gguf").by_name) == {"a"}
    with pytest.raises(InputError, match=r"owner/model holds several models; name one of: BF16/m-BF16-00001"):
        read(hub)
    with pytest.raises(NotFoundError, match=r"no file or GGUF quantisation 'Q4_K'; name one of: .*m-Q4_K_M"):
        read(hub, file="Q4_K")


def test_a_long_gguf_header_takes_several_ranges(hub: FakeHub) -> None:
    tokens = ("tokenizer.ggml.tokens", "array:str", [f"token {index}" for index in range(60_000)])
    hub.files = {"m.gguf": gguf_bytes([tokens], [("w", (MIB,), 0, 0)], data_bytes=4 * MIB)}
    found = read(hub)
    assert len(found.metadata["tokenizer.ggml.tokens"]) == 60_000
    # 60,000 x (8 + 11) bytes of tokens: windows of 1/4, 1/2 and 1 MiB.
    assert hub.requests("m.gguf") <= 4
    assert found.metadata["tokenizer.ggml.tokens"].values()[-1] == "token 59999"


def test_cached_files_are_read_from_disk_at_the_hubs_commit(hub: FakeHub, tmp_path: Path) -> None:
    hub.files = {SINGLE: shard({"a": 4})}
    cached(tmp_path, {SINGLE: shard({"a": 4})})
    assert read(hub).total_bytes == 16
    assert hub.requests(SINGLE) == 0


def test_a_server_without_ranges_serves_short_headers(hub: FakeHub) -> None:
    hub.files = {SINGLE: shard({"a": 4})}
    hub.behaviour = {SINGLE: "whole"}
    assert read(hub).total_bytes == 16


def test_a_busy_server_is_asked_again(hub: FakeHub) -> None:
    hub.files = {SINGLE: shard({"a": 4})}
    hub.behaviour = {SINGLE: "flaky:2"}
    assert read(hub).total_bytes == 16
    assert hub.requests(SINGLE) == 3


def test_json_files_and_the_names(hub: FakeHub) -> None:
    hub.files = {"config.json": b'{"model_type": "llama"}', "big.json": b"{" + b" " * (17 * MIB) + b"}"}
    repo = HubRepo(hub.repo, endpoint=hub.endpoint)
    assert repo.read_json("config.json") == {"model_type": "llama"}
    assert (set(repo.names()), repo.commit, repo.problem) == ({"config.json", "big.json"}, COMMIT, None)
    with pytest.raises(InputError, match="too large for a JSON file"):
        repo.read_json("big.json")
    with pytest.raises(NotFoundError, match=r"no file 'absent.json'"):
        repo.read_json("absent.json")


# --- without the Hub ---------------------------------------------------------------------------------


def test_offline_reads_the_cache_and_says_so(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    cached(tmp_path, {"config.json": b"{}", SINGLE: shard({"a": 4})})
    found = read(hub)
    assert found.total_bytes == 16
    assert found.problems == ("owner/model was read from the local cache, since HF_HUB_OFFLINE is set",)
    assert read(hub, revision=COMMIT).total_bytes == 16
    assert hub.log == []


def test_offline_without_a_cache(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(NotFoundError, match=r"not in the local cache, and HF_HUB_OFFLINE.*; unset"):
        read(hub)


def test_offline_with_only_a_config_cached(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    cached(tmp_path, {"config.json": b"{}"})
    with pytest.raises(NotFoundError, match="owner/model has no weights"):
        read(hub)


def test_an_unreachable_hub(hub: FakeHub, tmp_path: Path) -> None:
    hub.close()
    with pytest.raises(InputError, match=r"could not be reached for owner/model .*; check the network"):
        read(hub)
    cached(tmp_path, {SINGLE: shard({"a": 4})})
    assert "since the Hub could not be reached" in read(hub).problems[0]


# --- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "error", "words"),
    [
        (401, "RepoNotFound", NotFoundError, "no model owner/model, or it is private; .*HF_TOKEN"),
        (404, "RepoNotFound", NotFoundError, "the Hub has no model owner/model"),
        (403, "GatedRepo", InputError, r"gated; accept its terms at https://huggingface.co/owner/model"),
        (404, "RevisionNotFound", NotFoundError, "owner/model has no revision 'v9'"),
        (403, "", InputError, "refused access to owner/model .status 403."),
        (429, "", InputError, "limits the rate"),
        (500, "", InputError, "status 500"),
    ],
    ids=words_of,
)
def test_the_listing_is_refused(
    hub: FakeHub, status: int, code: str, error: type[RooflensError], words: str
) -> None:
    hub.api_status, hub.api_code = status, code
    with pytest.raises(error, match=words) as caught:
        read(hub, revision="v9")
    assert "\n" not in str(caught.value)
    assert "hf_secret" not in str(caught.value)


@pytest.mark.parametrize("body", [b"<!DOCTYPE html><p>Proxy</p>", b"[]", b"{}", b'{"id": 3}'])
def test_a_listing_that_is_not_the_hubs(hub: FakeHub, body: bytes) -> None:
    hub.api_body = body
    with pytest.raises(InputError, match=r"does not come from the Hub|could not be read from the Hub"):
        read(hub)


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("404", f"{SINGLE} of owner/model does not exist on the Hub"),
        ("code:404:EntryNotFound", "does not exist on the Hub"),
        ("401", "refused access to model.safetensors of owner/model .status 401.; log in"),
        ("code:403:GatedRepo", "gated"),
        ("503", "given up after 3 attempts: the server answered with status 503"),
        ("429", "given up after 3 attempts: the server answered with status 429"),
        ("html", "web page"),
        ("cut", "given up after 3 attempts"),
        ("shifted", "answered another range"),
        ("grown", "has 87 bytes on the server, but 86 were announced"),
    ],
    ids=words_of,
)
def test_a_file_is_refused(hub: FakeHub, behaviour: str, words: str) -> None:
    hub.files = {SINGLE: shard({"a": 4})}
    assert len(hub.files[SINGLE]) == 86
    hub.behaviour = {SINGLE: behaviour}
    with pytest.raises(RooflensError, match=words) as caught:
        read(hub)
    assert "\n" not in str(caught.value)


def test_a_server_without_ranges_is_not_asked_for_more(hub: FakeHub) -> None:
    hub.files = {SINGLE: shard({f"tensor.{index}": 1 for index in range(4000)})}
    hub.behaviour = {SINGLE: "whole"}
    with pytest.raises(InputError, match="only as a whole, not in ranges; download"):
        read(hub)


def test_a_stalled_connection_ends(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_source, "SILENCE_S", 0.05)
    hub.files = {SINGLE: shard({"a": 4})}
    hub.behaviour = {SINGLE: "stall"}
    with pytest.raises(InputError, match=r"given up after 3 attempts: .*[Tt]imed ?out|ReadTimeout"):
        read(hub)


def test_a_trickle_ends(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_source, "SLACK_S", -10.0)
    hub.files = {SINGLE: shard({"a": 4})}
    with pytest.raises(InputError, match="bytes came in time"):
        read(hub)


def test_a_file_cut_off_on_the_hub(hub: FakeHub) -> None:
    hub.files = {SINGLE: shard({"a": 400})[:-10]}
    with pytest.raises(InputError, match="is cut off: its tensors end at"):
        read(hub)


@pytest.mark.parametrize("repo", ["a/b/c", "../x", "-bad-", "", "a b"])
def test_names_that_cannot_be_repositories(hub: FakeHub, repo: str) -> None:
    with pytest.raises(InputError, match="not the name of a Hub repository"):
        open_hub_checkpoint(repo, endpoint=hub.endpoint)


@pytest.mark.parametrize("revision", ["../../x", "/etc", ""])
def test_revisions_that_leave_the_cache(revision: str) -> None:
    with pytest.raises(InputError, match="not a branch, tag or commit"):
        HubRepo("owner/model", revision=revision)


def test_names_in_the_listing_that_leave_the_repository_are_dropped(hub: FakeHub) -> None:
    hub.files = {"../../evil.safetensors": b"", SINGLE: shard({"a": 4})}
    repo = HubRepo(hub.repo, endpoint=hub.endpoint)
    assert list(repo.names()) == [SINGLE]
