"""The memory rules of serving engines: from a LedgerInput to the Ledger as that engine would have it.

One module per engine, imported when first asked for. The rules follow the engines' published code; their
constants are ranges with the version and the source they were read from.
"""

from __future__ import annotations

import difflib
from importlib import import_module

from rooflens.analysis.ledger import LedgerRules
from rooflens.errors import UnsupportedError

# Engine name -> (module, function). "none" is plain arithmetic, with no engine's rounding or reserve.
_RULES: dict[str, tuple[str, str]] = {
    "none": ("rooflens.analysis.ledger", "bare_ledger"),
    "rooflens": ("rooflens.analysis.engines.native", "native_ledger"),
    "vllm": ("rooflens.analysis.engines.vllm", "vllm_ledger"),
    "sglang": ("rooflens.analysis.engines.sglang", "sglang_ledger"),
    "llama.cpp": ("rooflens.analysis.engines.llamacpp", "llamacpp_ledger"),
    "ollama": ("rooflens.analysis.engines.llamacpp", "ollama_ledger"),
}

ENGINES: tuple[str, ...] = tuple(_RULES)


def rules_for(engine: str) -> LedgerRules:
    """The memory rules of the engine of that name; raises UnsupportedError with the names there are."""
    found = _RULES.get(engine)
    if found is None:
        near = difflib.get_close_matches(engine, ENGINES, n=1)
        raise UnsupportedError(
            "engine has no memory rules here",
            value=engine,
            allowed=", ".join(ENGINES),
            next=f"did you mean {near[0]}?" if near else None,
        )
    module, function = found
    rules: LedgerRules = getattr(import_module(module), function)
    return rules


# Engines that run an fp32 checkpoint in 16 bits unless fp32 is asked for (their dtype "auto").
_HALVES_FP32 = ("vllm", "sglang")


def served_dtype(engine: str, dtype: str) -> str | None:
    """The element type that ``engine`` runs a checkpoint of ``dtype`` in by default, None if its own.

    Source: vLLM's ``_resolve_auto_dtype`` and SGLang's ``_get_and_verify_dtype``.
    """
    return "bf16" if engine in _HALVES_FP32 and dtype == "fp32" else None
