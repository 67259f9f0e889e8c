"""The mixes of tensor types that llama.cpp's quantize tool writes under one file type's name.

A recipe gives each kind of tensor a type, some of them by the layer's place. Sources: the type choice and
the fallbacks for odd row lengths in ``src/llama-quant.cpp`` of llama.cpp (2024 to 2025; later versions give
a fused attn_qkv the type of attn_v). Without an importance matrix unless the file type needs one. The
sizes are checked against the table for Llama-3.1-8B in ``tools/quantize/README.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Category(Enum):
    """The kinds of tensor that the recipes tell apart."""

    TOKEN_EMBD = "token_embd"
    OUTPUT = "output"
    ATTN_Q = "attn_q"
    ATTN_K = "attn_k"
    ATTN_V = "attn_v"
    ATTN_QKV = "attn_qkv"
    ATTN_OUTPUT = "attn_output"
    FFN_GATE = "ffn_gate"
    FFN_UP = "ffn_up"
    FFN_DOWN = "ffn_down"
    EXPERT = "expert"  # only where a recipe treats experts as such
    OTHER = "other"


@dataclass(frozen=True)
class Place:
    """Where a tensor stands: number ``index`` of ``count`` of its kind, in a model of these traits."""

    index: int
    count: int
    experts: int
    gqa: int  # query heads per KV head
    is_70b: bool = False
    is_falcon: bool = False

    @property
    def first_eighth(self) -> bool:
        """The first layers, which suffer most."""
        return self.index < self.count // 8

    @property
    def more_bits(self) -> bool:
        """The first and the last eighth, and every third layer between."""
        eighth = self.count // 8
        return self.first_eighth or self.index >= 7 * self.count // 8 or (self.index - eighth) % 3 == 2


Rule = str | Callable[[Place], str | None]  # None: the recipe's default type


@dataclass(frozen=True)
class Recipe:
    """One file type: the default tensor type and the exceptions from it."""

    default: str
    output: str = "Q6_K"
    token_embd: str | None = None
    attn_q: Rule | None = None
    attn_k: Rule | None = None
    attn_v: Rule | None = None
    attn_qkv: Rule | None = None
    attn_output: Rule | None = None
    ffn_gate: Rule | None = None
    ffn_up: Rule | None = None
    ffn_down: Rule | None = None
    expert: Rule | None = None
    plain: bool = False  # an unquantised file: one 16-bit type for all matrices
    low: bool = False  # the 1- and 2-bit types, which have rules of their own for 8 experts
    eight_experts_output: bool = False  # attn_output in Q5_K where the model has 8 experts

    def choose(self, category: Category, place: Place) -> str:
        """The tensor type for a tensor of this category at this place, before fallbacks for its shape."""
        if self.plain:
            return self.default
        if category is Category.OUTPUT:
            return "Q8_0" if place.is_falcon else self.output
        if category is Category.TOKEN_EMBD:
            return self.token_embd or self.default
        if category is Category.OTHER:
            return self.default
        special = self._eight_experts(category) if place.experts == 8 else None
        if special is not None:
            return special
        rule: Rule | None = getattr(self, category.value)
        chosen = (rule(place) if callable(rule) else rule) or self.default
        if category is Category.ATTN_V and place.is_70b and not self.low and chosen in ("Q3_K", "Q4_K"):
            return "Q5_K"
        return chosen

    def _eight_experts(self, category: Category) -> str | None:
        """Mixtral's attention is small beside its experts, so it gets more bits."""
        if category is Category.ATTN_K:
            return "Q4_K" if self.low else "Q8_0"
        if category is Category.ATTN_V and not self.low:
            return "Q8_0"
        if category is Category.ATTN_OUTPUT and (self.low or self.eight_experts_output):
            return "Q5_K"
        return None


def _if_grouped(wide: str, narrow: str | None = None) -> Callable[[Place], str | None]:
    """``wide`` where four or more query heads share a value head, so that it is small."""
    return lambda place: wide if place.gqa >= 4 else narrow


def _first_eighth(type_: str, rest: str | None = None) -> Callable[[Place], str | None]:
    return lambda place: type_ if place.first_eighth else rest


def _more_bits(type_: str) -> Callable[[Place], str | None]:
    return lambda place: type_ if place.more_bits else None


def _first(count: int, type_: str, rest: str | None = None) -> Callable[[Place], str | None]:
    return lambda place: type_ if place.index < count else rest


def _low_attn_v(narrow: str) -> Callable[[Place], str | None]:
    return lambda place: "Q4_K" if place.gqa >= 4 or place.experts >= 4 else narrow


def _q3_k_m_ffn_down(place: Place) -> str | None:
    if place.index < place.count // 16:
        return "Q5_K"
    return "Q4_K" if not place.is_falcon or place.more_bits else None


def _q4_k_m_ffn_down(place: Place) -> str | None:
    if not place.is_falcon:
        return "Q6_K" if place.more_bits else None
    if place.index < place.count // 16:
        return "Q6_K"
    return "Q5_K" if place.more_bits else None


def _iq3_m_ffn_down(place: Place) -> str | None:
    return "Q4_K" if place.first_eighth or (place.experts == 8 and place.more_bits) else None


def _middle(type_: str) -> Callable[[Place], str | None]:
    def rule(place: Place) -> str | None:
        return type_ if place.count // 8 <= place.index < 7 * place.count // 8 else None

    return rule


def _unless_falcon(type_: str, falcon: str | None = None) -> Callable[[Place], str | None]:
    return lambda place: falcon if place.is_falcon else type_


def _low(default: str, *, small: str, embd: str, output: str | None) -> Recipe:
    """The 1- and 2-bit recipes; ``small`` is for the tensors that are few or come first."""
    return Recipe(
        default,
        output="Q5_K",
        token_embd=embd,
        attn_v=_low_attn_v(small),
        attn_output=output,
        ffn_down=_first_eighth(small),
        low=True,
    )


RECIPES: dict[str, Recipe] = {
    "gguf-f16": Recipe("F16", plain=True),
    "gguf-bf16": Recipe("BF16", plain=True),
    "q4_0": Recipe("Q4_0"),
    "q4_1": Recipe("Q4_1"),
    "q5_0": Recipe("Q5_0"),
    "q5_1": Recipe("Q5_1"),
    "q8_0": Recipe("Q8_0", output="Q8_0"),
    "q2_k": Recipe(
        "Q2_K",
        attn_v=_if_grouped("Q4_K", "Q3_K"),
        attn_output=_unless_falcon("Q3_K"),
        ffn_down="Q3_K",
        eight_experts_output=True,
    ),
    "q2_k_s": Recipe("Q2_K", attn_v=_if_grouped("Q4_K"), ffn_down=_first_eighth("Q4_K")),
    "q3_k_s": Recipe("Q3_K", eight_experts_output=True),
    "q3_k_m": Recipe(
        "Q3_K",
        attn_v=_first(2, "Q5_K", "Q4_K"),
        attn_qkv="Q4_K",
        attn_output=_unless_falcon("Q4_K"),
        ffn_down=_q3_k_m_ffn_down,
        eight_experts_output=True,
    ),
    "q3_k_l": Recipe(
        "Q3_K",
        attn_v="Q5_K",
        attn_qkv="Q4_K",
        attn_output=_unless_falcon("Q5_K", "Q4_K"),
        ffn_down=_unless_falcon("Q5_K", "Q4_K"),
    ),
    "q4_k_s": Recipe(
        "Q4_K",
        attn_v=_first(4, "Q5_K"),
        ffn_down=lambda place: None if place.is_falcon else "Q5_K" if place.first_eighth else None,
        eight_experts_output=True,
    ),
    "q4_k_m": Recipe(
        "Q4_K",
        attn_v=_more_bits("Q6_K"),
        attn_qkv="Q5_K",
        ffn_down=_q4_k_m_ffn_down,
        eight_experts_output=True,
    ),
    "q5_k_s": Recipe("Q5_K"),
    "q5_k_m": Recipe(
        "Q5_K", attn_v=_more_bits("Q6_K"), attn_qkv="Q6_K", ffn_down=_more_bits("Q6_K")
    ),
    "q6_k": Recipe("Q6_K"),
    "iq1_s": _low("IQ1_S", small="Q2_K", embd="Q2_K", output="IQ2_XXS"),
    "iq1_m": _low("IQ1_M", small="Q2_K", embd="Q2_K", output="IQ2_XXS"),
    "iq2_xxs": _low("IQ2_XXS", small="Q2_K", embd="Q2_K", output=None),
    "iq2_xs": _low("IQ2_XS", small="Q2_K", embd="Q2_K", output=None),
    "iq2_s": _low("IQ2_XS", small="IQ3_S", embd="IQ3_S", output="IQ3_S"),
    "iq2_m": _low("IQ2_S", small="IQ3_S", embd="IQ3_S", output="IQ3_S"),
    "iq3_xxs": Recipe(
        "IQ3_XXS",
        output="Q5_K",
        token_embd="IQ3_S",
        attn_q="IQ2_S",
        attn_k="IQ2_S",
        attn_v=_if_grouped("Q4_K"),
        attn_output=_unless_falcon("IQ3_S"),
        eight_experts_output=True,
    ),
    "iq3_xs": Recipe(
        "IQ3_S",
        attn_q="IQ3_XXS",
        attn_k="IQ3_XXS",
        attn_v=_if_grouped("Q4_K"),
        ffn_gate=_middle("IQ3_XXS"),
        ffn_up=_middle("IQ3_XXS"),
        eight_experts_output=True,
    ),
    "iq3_s": Recipe("IQ3_S", attn_v=_if_grouped("Q4_K"), eight_experts_output=True),
    "iq3_m": Recipe(
        "IQ3_S",
        attn_v="Q4_K",
        attn_qkv="Q4_K",
        attn_output=_unless_falcon("Q4_K"),
        ffn_down=_iq3_m_ffn_down,
        eight_experts_output=True,
    ),
    "iq4_xs": Recipe(
        "IQ4_XS",
        attn_v=_if_grouped("Q5_K"),
        ffn_down=_first_eighth("Q5_K"),
        eight_experts_output=True,
    ),
    "iq4_nl": Recipe(
        "IQ4_NL",
        attn_v=_if_grouped("Q5_K"),
        ffn_down=_first_eighth("Q5_K"),
        eight_experts_output=True,
    ),
    "tq1_0": Recipe("TQ1_0", token_embd="Q4_K"),
    "tq2_0": Recipe("TQ2_0", token_embd="Q4_K"),
    "mxfp4_moe": Recipe("Q8_0", output="Q8_0", expert="MXFP4"),
}  # fmt: skip

RECIPE_ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}

# A row that is not a whole number of blocks takes a type of smaller blocks, at last F16.
FALLBACK: dict[str, str] = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
LAST_FALLBACK = "F16"
