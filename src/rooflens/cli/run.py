"""``rooflens run``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rooflens.cli.guess_options import guess_options, open_proposer, take_guess_options
from rooflens.cli.options import by_hand_options, output_options
from rooflens.cli.output import print_json
from rooflens.cli.runtime_options import (
    ChosenModel,
    choose_model,
    predicting_device,
    read_text,
    require_runtime,
    runtime_options,
    whole_option,
)
from rooflens.errors import InputError

if TYPE_CHECKING:
    from rooflens.bench.run import Run
    from rooflens.hardware import Device
    from rooflens.report.words import Words
    from rooflens.runtime.backend import NativeBackend
    from rooflens.runtime.engine.speculative import Proposer
    from rooflens.runtime.sampling import SamplingParams

CANCELLED = 1
DEFAULT_RANDOM_PROMPT = 128
_TRACE = ".trace.json"
_CHARTS = ("png", "svg", "pdf", "html")
_SAMPLING = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "stop", "ignore_eos",
)  # fmt: skip


def _by_hand(function: Any) -> Any:
    for decorator in reversed(by_hand_options()):
        function = decorator(function)
    return function


@click.command()
@runtime_options
@click.option("--prompt", "-p", metavar="TEXT", help="What to answer.")
@click.option("--prompt-file", metavar="FILE", help="The same from a UTF-8 file; - is standard input.")
@whole_option("--prompt-tokens", help=f"With --random-weights: random tokens. [{DEFAULT_RANDOM_PROMPT}]")
@click.option("--system", metavar="TEXT", help="System message before the prompt.")
@click.option(
    "--chat/--raw", "chat", default=None, help="With the chat template, or the bare text. [chat if any]"
)
@click.option("--max-tokens", type=int, default=128, show_default=True, help="Longest answer.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0: the likeliest token.")
@click.option("--top-k", type=int, default=0, help="Choose among the K likeliest. [all]")
@click.option("--top-p", type=float, default=1.0, help="Choose among the likeliest that make up P. [1]")
@click.option("--min-p", type=float, default=0.0, help="Choose from P times the likeliest's share on. [0]")
@click.option("--seed", type=int, help="The same answer again.")
@click.option("--repetition-penalty", type=float, default=1.0, help="Over 1: avoid tokens seen before. [1]")
@click.option("--presence-penalty", type=float, default=0.0, help="-2 to 2, on tokens of the answer. [0]")
@click.option("--frequency-penalty", type=float, default=0.0, help="-2 to 2, per occurrence. [0]")
@click.option("--stop", metavar="TEXT", multiple=True, help="End before this text. Repeatable.")
@click.option("--ignore-eos", is_flag=True, help="Go on to --max-tokens.")
@guess_options
@click.option("--profile", is_flag=True, help="Measure every module and compare with the prediction.")
@click.option("--device-spec", metavar="NAME", help="Device to predict for: a name or a saved probe. [local]")
@_by_hand
@output_options("json", "csv", "trace.json", *_CHARTS)
def run(
    prompt: str | None,
    prompt_file: str | None,
    prompt_tokens: int | None,
    system: str | None,
    chat: bool | None,
    profile: bool,
    device_spec: str | None,
    peak: float | None,
    bandwidth: float | None,
    memory: float | None,
    as_json: bool,
    out: str | None,
    lang: str | None,
    **options: Any,
) -> int:
    """Run MODEL on this machine and stream its answer; with --profile say where the time went.

    MODEL is a directory, a .gguf or .safetensors file, OWNER/NAME on the Hub, or a model that an installed
    package brings. -o FILE.json keeps the whole profile, FILE.csv a row per step and per answer,
    FILE.trace.json what Perfetto opens, FILE.svg (png, pdf, html) the account as a chart.

    \b
    rooflens run smollm2-135m-instruct --prompt "Explain the ridge point" --profile
    rooflens run qwen2.5-0.5b-instruct --random-weights --prompt-tokens 512 --profile
    rooflens run ./my-checkpoint --prompt-file question.txt --max-tokens 256 -o run.trace.json

    Ctrl-C keeps the text and the profile so far; exit code 1.
    """
    require_runtime()
    from rooflens.report.words import language, words

    say = words(language(lang))
    if out is not None:
        _check_out(Path(out), profile=profile)
    random_weights = options["random_weights"]
    text = _prompt_text(prompt, prompt_file, random_weights=random_weights)
    _refuse_mixed(chat, system, prompt_tokens, random_weights=random_weights)
    sampling = {name: options.pop(name) for name in _SAMPLING}
    params = _params(sampling, random_weights=random_weights)
    guessing = take_guess_options(options)
    device = None
    if profile:
        # A name that there is none of is refused before the model is loaded.
        device = predicting_device(device_spec, peak=peak, bandwidth=bandwidth, memory=memory)
        if device is None and out is not None and _ending(Path(out)) in _CHARTS:
            raise InputError(
                "a chart needs something to compare with, and this machine has no measured roofs",
                next="run `rooflens probe --quick`, or give --device-spec, or --peak and --bandwidth",
            )
    elif any(value is not None for value in (device_spec, peak, bandwidth, memory)):
        raise InputError("a device to predict for has no meaning without --profile", next="add --profile")
    as_given = dict(options)
    chosen = choose_model(options)
    tokens = _tokens(chosen, text, system=system, chat=chat, random_tokens=prompt_tokens)
    chosen.check(prompt_tokens=len(tokens), max_tokens=params.max_tokens)
    backend = chosen.load()
    proposer = open_proposer(guessing, backend, as_given)
    result = _run(backend, tokens, params, profile=profile, device=device, proposer=proposer, quiet=as_json)
    if out is not None:
        _write(result, Path(out), say)
        click.echo(say("wrote", path=out), err=True)
    if as_json:
        print_json(result.to_dict())
    else:
        from rooflens.report.tables.layout import console, show
        from rooflens.report.tables.run import run_report

        show(run_report(result, say), on=console())
    return CANCELLED if result.cancelled else 0


def _params(sampling: dict[str, Any], *, random_weights: bool) -> SamplingParams:
    from rooflens.runtime.sampling import SamplingParams

    if random_weights:
        if sampling["stop"]:
            raise InputError("--stop needs a tokenizer, and random weights have none")
        sampling["ignore_eos"] = True  # noise ends nowhere in particular
    return SamplingParams(**sampling)


def _ending(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


def _check_out(path: Path, *, profile: bool) -> None:
    """Refuse a file that could not be written, before the model is loaded."""
    from rooflens.measure.storage import check_writable

    ending = _ending(path)
    if ending not in ("json", "csv", *_CHARTS):
        raise InputError(
            "file ending is not one that can be written here",
            value=str(path),
            allowed=", ".join((".json", ".csv", _TRACE, *(f".{chart}" for chart in _CHARTS))),
        )
    if ending in _CHARTS:
        if not profile:
            raise InputError("a chart of the account needs --profile", value=str(path), next="add --profile")
        from rooflens.report.charts.theme import require_altair

        require_altair()
    check_writable(path)


def _write(result: Run, path: Path, say: Words) -> None:
    from rooflens.report.files import save_chart, write_whole
    from rooflens.runtime.profile.export import write_csv, write_trace

    if path.name.lower().endswith(_TRACE):
        write_trace(result.profile, path)
    elif path.suffix.lower() == ".csv":
        write_csv(result.profile, steps=path, requests=path.with_suffix(".requests.csv"))
    elif _ending(path) in _CHARTS:
        from rooflens.report.charts.account import account_chart

        explained = result.explained
        assert explained is not None  # refused before the run where there is no device
        chart = account_chart(explained.accounts, explained.reading, say, model=result.name)
        save_chart(chart, path, lang=say.language)
    else:
        text = json.dumps(result.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        write_whole(path, f"{text}\n".encode())


def _prompt_text(prompt: str | None, prompt_file: str | None, *, random_weights: bool) -> str | None:
    if prompt is not None and prompt_file is not None:
        raise InputError("both --prompt and --prompt-file are given", next="leave one of them out")
    if random_weights:
        if prompt is not None or prompt_file is not None:
            raise InputError(
                "random weights have no tokenizer, so a text cannot be their prompt",
                next="give --prompt-tokens N",
            )
        return None
    if prompt_file is not None:
        return read_text(prompt_file, option="--prompt-file")
    if prompt is None:
        raise InputError("no prompt is given", allowed="--prompt TEXT or --prompt-file FILE (- reads a pipe)")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise InputError("--prompt is not valid UTF-8", value=f"position {error.start}") from None
    return prompt


def _refuse_mixed(
    chat: bool | None, system: str | None, prompt_tokens: int | None, *, random_weights: bool
) -> None:
    """Options that would be dropped silently."""
    if prompt_tokens is not None and not random_weights:
        raise InputError("--prompt-tokens has a meaning with --random-weights only", value=prompt_tokens)
    if random_weights and (chat or system is not None):
        raise InputError("random weights have no chat template", next="leave --chat and --system out")
    if chat is False and system is not None:
        raise InputError("--system needs the chat template", next="leave --raw or --system out")


def _tokens(
    chosen: ChosenModel,
    text: str | None,
    *,
    system: str | None,
    chat: bool | None,
    random_tokens: int | None,
) -> list[int]:
    """The prompt's tokens: of the text, in the model's own chat form where it has one."""
    if text is None:
        from rooflens.bench.prompts import random_prompt

        return random_prompt(chosen.spec.vocab_size, tokens=random_tokens or DEFAULT_RANDOM_PROMPT)
    tokenizer = chosen.tokenizer
    if tokenizer is None:
        raise InputError(
            f"{chosen.spec.name} has no tokenizer", next="save tokenizer.json beside its weights"
        )
    if chat or system is not None or (chat is None and tokenizer.chat_template is not None):
        messages = [{"role": "user", "content": text}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        return tokenizer.encode_chat(messages)
    return tokenizer.encode(text)


def _run(
    backend: NativeBackend,
    tokens: list[int],
    params: SamplingParams,
    *,
    profile: bool,
    device: Device | None,
    proposer: Proposer | None,
    quiet: bool,
) -> Run:
    from rooflens.bench.run import run_prompt

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    shows = backend.tokenizer is not None and not quiet
    result = run_prompt(
        backend,
        tokens,
        params,
        modules=profile,
        device=device,
        proposer=proposer,
        on_text=write if shows else None,
    )
    if shows:
        click.echo()
    return result
