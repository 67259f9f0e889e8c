"""Compares the engines' ledgers with their start-up logs and writes docs/engine-ledgers.md.

Two modes: from the settings alone, and with the log's own figure for the cache memory, which leaves only
the layout to be right. Run: python benchmarks/engine_ledgers.py [--check].
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from rooflens.analysis.engines import rules_for
from rooflens.analysis.ledger import Ledger, LedgerInput
from rooflens.analysis.parallelism import Layout, rank_specs
from rooflens.errors import InputError
from rooflens.models.bundled import find_bundled
from rooflens.models.formats.apply import apply_format
from rooflens.models.read import read_model
from rooflens.models.spec import Attention, Layer, ModelSpec
from rooflens.units import GIB

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "engines"
PAGE = ROOT / "docs" / "engine-ledgers.md"
ENGINES = {"vLLM": "vllm", "ik_llama.cpp": "llama.cpp", "llama.cpp": "llama.cpp", "ollama": "ollama"}
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
# Builds whose cache a row without a build number had; the newest where the row's notes say latent cache.
BUILDS = {"L128": "b4700"}


@dataclass(frozen=True)
class Figure:
    """A figure as computed and as logged."""

    ours: float
    logged: float

    @property
    def difference(self) -> float:
        """Ours over theirs, less one."""
        return self.ours / self.logged - 1


@dataclass(frozen=True)
class Comparison:
    """One row: what was computed and logged, bytes in GiB. ``predicted`` is from the settings alone."""

    row: str
    engine: str
    model: str
    split: str
    weights: Figure | None = None
    predicted_pool: Figure | None = None
    predicted_tokens: Figure | None = None
    given_tokens: Figure | None = None
    concurrency: Figure | None = None
    cache: Figure | None = None
    failure: str = ""
    logged_failure: str = ""
    reason: str = ""


@lru_cache(maxsize=1)
def cases() -> dict[str, Any]:
    """How each row is compared."""
    found: dict[str, Any] = json.loads((DATA / "cases.json").read_text())
    return found


def rows(name: str = "engine_logs.csv") -> list[dict[str, str]]:
    """The rows of a file of logs."""
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


def _laid_over(fields: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(fields)
    for name, value in changes.items():
        merged[name] = _laid_over(merged[name], value) if isinstance(value, Mapping) else value
    return merged


def _cache_only(name: str, shape: Mapping[str, Any]) -> ModelSpec:
    """A model's attention layers alone, in their order of one kind after the other."""

    def layers(kind: str, window: int | None) -> list[Layer]:
        count, kv_heads, head_dim = shape[kind]
        mixer = Attention(heads=2 * kv_heads, kv_heads=kv_heads, head_dim=head_dim, linears=(), window=window)
        return [Layer((mixer,), None, ())] * count

    stack = (*layers("sliding", shape["window"]), *layers("full", None))
    return ModelSpec(name, "cache_only", 1, 1024, stack, None, None, max_context=262144)


@lru_cache(maxsize=64)
def model_of(name: str, dtype: str) -> ModelSpec:
    """The model of a row, its weights in the row's format."""
    case = cases()["models"][name]
    if "cache_only" in case:
        return _cache_only(name, case["cache_only"])
    if "changes" in case:
        bundled = find_bundled(case["model"])
        assert bundled is not None
        fields = json.loads((bundled.directory / "config.json").read_text())
        spec = read_model(_laid_over(fields, case["changes"]))
    else:
        spec = read_model(case["model"])
    if "weights" in case:
        return apply_format(spec, case["weights"])
    return apply_format(spec, dtype) if dtype and dtype != spec.dtype else spec


def _number(text: str) -> float | None:
    return float(text.split()[0]) if text else None


def _whole(text: str) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


def _kv_dtype(row: Mapping[str, str], spec: ModelSpec) -> str:
    asked = row["kv_cache_dtype"].split(" ")[0]
    return spec.dtype if asked in ("", "auto", "bf16") else {"f16": "fp16"}.get(asked, asked)


def ledger_of(row: Mapping[str, str], *, pool_bytes: int | None = None) -> Ledger:
    """The ledger of a row, from its settings; ``pool_bytes`` is the cache memory where it is given."""
    settings = cases()["rows"].get(row["row"], {})
    dtype = DTYPES.get(row["dtype"], "")
    online = row["quantization"] if row["quantization"] == "fp8" else ""
    spec = model_of(row["model_id"], dtype)
    if online and "weights" not in cases()["models"][row["model_id"]]:
        spec = apply_format(spec, online)
    layout = Layout(_whole(row["tp"]) or 1, _whole(row["pp"]) or 1)
    total = settings.get("total_gpu_gib") or _number(row["total_gpu_gib"])
    total_bytes = None if total is None else int(total * GIB)
    version = cases()["versions"].get(row["version"], row["version"])
    length = _whole(row["max_model_len"])
    return rules_for(ENGINES.get(row["engine"], "llama.cpp"))(
        LedgerInput(
            spec=spec,
            stages=rank_specs(spec, layout),
            layout=layout,
            batch=1,
            prompt=512,
            context=length or 640,
            kv_dtype=_kv_dtype(row, spec),
            capacity_bytes=total_bytes,
            reported_bytes=total_bytes,
            max_model_len=length,
            max_batched_tokens=settings.get("max_batched_tokens"),
            max_sequences=settings.get("max_sequences"),
            memory_utilization=_number(row["mem_util"]),
            engine_version=version if row["engine"] in ("vLLM", "ollama") else BUILDS.get(row["row"]),
            kv_pool_bytes=pool_bytes,
            block_size=_whole(row["block_size"]) if row["engine"] == "vLLM" else None,
            prefix_caching=settings.get("prefix_caching"),
            device_name=row["gpu"],
        )
    )


def _weights_gib(row: Mapping[str, str], ledger: Ledger) -> float:
    """Weights as the row prints them: a GGUF file's size has the token table, which stays on the host."""
    host = sum(line.bytes for line in ledger.outside if line.name == "host")
    return (ledger.row("weights") + host) / GIB


def compare_row(row: Mapping[str, str]) -> Comparison:
    """A row's figures beside ours."""
    name, only = row["row"], cases()["rows"].get(row["row"], {}).get("compare")
    compares = lambda what: only is None or what in only  # noqa: E731
    split = f"tp {row['tp'] or 1}" + (f" pp {row['pp']}" if row["pp"] not in ("", "1") else "")
    about = {
        "row": name,
        "engine": f"{row['engine']} {row['version']}",
        "model": row["model_id"],
        "split": split,
    }
    about["reason"] = cases()["reasons"].get(name, "")
    about["logged_failure"] = row["outcome"].partition("FAIL:")[2].strip()
    try:
        predicted = ledger_of(row)
    except InputError as error:
        return Comparison(**about, failure=error.what)
    logged_pool, logged_tokens = _number(row["kv_gib_per_gpu"]), _whole(row["kv_tokens"])
    weights = _number(row["weights_gib_per_gpu"]) if compares("weights") else None
    figures: dict[str, Figure | None] = {
        "weights": None if weights is None else Figure(_weights_gib(row, predicted), weights)
    }
    failure = predicted.reasons
    if row["engine"] != "vLLM":
        assert predicted.cache is not None
        if logged_pool:
            figures["cache"] = Figure(predicted.cache.allocated_bytes / GIB, logged_pool)
        return Comparison(**about, **figures)
    settled = compares("weights") and predicted.capacity_bytes is not None and row["mem_util"] != ""
    if settled and logged_pool and logged_pool > 0:
        figures["predicted_pool"] = Figure((predicted.kv_capacity_bytes or 0) / GIB, logged_pool)
    if settled and logged_tokens and predicted.kv_capacity_tokens:
        figures["predicted_tokens"] = Figure(predicted.kv_capacity_tokens, logged_tokens)
    stated = cases()["rows"].get(name, {}).get("kv_pool_gib") or logged_pool
    pool = None if not stated or stated < 0 else int(stated * GIB)
    blocks = _whole(row["gpu_blocks"])
    if pool is None and predicted.cache is not None and predicted.cache.bytes_per_block and blocks:
        pool = blocks * predicted.cache.bytes_per_block
    if pool is not None:
        given = ledger_of(row, pool_bytes=pool)
        failure = failure or given.reasons
        if logged_tokens and compares("tokens"):
            figures["given_tokens"] = Figure(given.kv_capacity_tokens or 0, logged_tokens)
        logged = _number(row["max_concurrency"])
        if logged and given.max_concurrency:
            figures["concurrency"] = Figure(given.max_concurrency, logged)
    if not row["max_model_len"] or (not settled and pool is None):
        failure = ()  # which length the engine was asked for, or what it had, is not known
    return Comparison(**about, **figures, failure=failure[0] if failure else "")


def compare_all(name: str = "engine_logs.csv") -> list[Comparison]:
    """Every row of a file that can be compared."""
    skipped = cases()["not_compared"]
    return [compare_row(row) for row in rows(name) if row["row"] not in skipped]


def differences(found: Iterable[Comparison], figure: str) -> list[float]:
    """Absolute differences of a figure over the rows that have it."""
    figures = (getattr(item, figure) for item in found)
    return [abs(each.difference) for each in figures if each is not None]


def _cell(figure: Figure | None, form: str) -> str:
    if figure is None:
        return ""
    return f"{figure.ours:{form}} / {figure.logged:{form}} ({100 * figure.difference:+.2f} %)"


FIGURES = {
    "weights": "weights per GPU",
    "predicted_pool": "cache memory, settings only",
    "predicted_tokens": "cache tokens, settings only",
    "given_tokens": "cache tokens, memory given",
    "concurrency": "concurrency, memory given",
    "cache": "cache bytes (llama.cpp, ollama)",
}
HEAD = """# Engine ledgers against start-up logs

Generated by `python benchmarks/engine_ledgers.py`; a test checks that it is current. Every cell is
`ours / logged (difference)`. *Settings only* knows the device's reported memory and the command line;
*memory given* takes the log's own cache memory, so that only the layout is judged. The rules and the
sources of their constants are in `src/rooflens/analysis/engines`; the logs and how each is read in
`tests/data/engines`.

What the rows below do and do not prove. Weights, block groups, pages and printed sizes are arithmetic on
the model's shapes by the engine's published code, without a constant: *memory given* tests them on every
source. *Settings only* also rests on figures that were inferred from some of these rows, which are
therefore no test of them:

- 38 bytes per logit of the sorting sampler (before 0.17): inferred from L067 and L068, then explained by
  tensors; the 14 bytes since were seen in the slope of L006 to L041 over the vocabulary, then read in code;
- hidden vectors alive beside the feed-forward: 4 compiled (L001), 3 eager (L074, L075);
- 150 MiB of image input (L009 to L011); the experts' kept workspace (L002, L041), read in the code after;
- memory outside torch: 0.25 GiB (tp 1), 2.1 GiB (tp 2 and 4), 0.07 GiB (pipelines) from L001 to L058, 0.13
  and 0.55 GiB from L067 and L068, 0.35 GiB from L074; CUDA graphs from L001 to L058;
- that V0 peaks outside its sampler: chosen because L075's report and L080 show no sampler; L083 and L084 do;
- L118's weight format: the group size is not stated, and 128 was taken because 64 gives 3.1 % more weight.

The held-out logs were first compared when these rules were done, and nothing was changed after but the note
on H08. They are of the same collection (0.19.0, H100) as L001 to L058: other models, the same machine. No
log of another machine tests *settings only* without having been seen.
"""


def _summary(found: list[Comparison]) -> list[str]:
    lines = ["| figure | rows | median | largest |", "|---|---|---|---|"]
    for figure, name in FIGURES.items():
        values = differences(found, figure)
        if values:
            lines.append(f"| {name} | {len(values)} | {median(values):.2%} | {max(values):.2%} |")
    return lines


def _table(found: list[Comparison]) -> list[str]:
    columns = ("row", "engine", "model", "split", "weights, GiB", "cache, GiB", "tokens, settings only",
               "tokens, memory given", "note")  # fmt: skip
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for item in found:
        note = item.reason
        if item.logged_failure:
            note = "; ".join(filter(None, (f"failed: {item.logged_failure}. Ours: {item.failure}", note)))
        cells = (
            item.row,
            item.engine,
            item.model,
            item.split,
            _cell(item.weights, ".2f"),
            _cell(item.predicted_pool or item.cache, ".2f"),
            _cell(item.predicted_tokens, ".0f"),
            _cell(item.given_tokens, ".0f"),
            note,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def render() -> str:
    """The page, in Markdown."""
    found, held = compare_all(), compare_all("held_out.csv")
    lines = [HEAD, *_summary(found), "", "## Rows", "", *_table(found), "", "## Held out", ""]
    lines += [*_summary(held), "", *_table(held), "", "## Not compared", "", "| row | why |", "|---|---|"]
    lines += [f"| {row} | {why} |" for row, why in cases()["not_compared"].items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or with --check say whether it is current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if the page is not current")
    text = render()
    if parser.parse_args().check:
        return 0 if PAGE.is_file() and PAGE.read_text() == text else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
