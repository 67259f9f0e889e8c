"""GLM models with latent attention: GLM-4.7-Flash and GLM-5, whose indexer is shared between layers."""

from __future__ import annotations

from rooflens.errors import InputError
from rooflens.models.families.config import Config
from rooflens.models.families.deepseek import latent_decoder
from rooflens.models.families.nested import with_defaults
from rooflens.models.spec import ModelSpec

_LETTERS = {"F": "full", "S": "shared"}


def indexer_types(cfg: Config, layers: int) -> list[str | None]:
    """Which layers have an indexer of their own and which reuse an earlier layer's choice of tokens.

    From ``indexer_types``, a pattern of F and S, or every ``index_topk_freq``-th layer once the first
    ``index_skip_topk_offset`` have passed.
    """
    types = cfg.kinds("indexer_types", known=("full", "shared"), length=layers)
    pattern = cfg.get("index_topk_pattern")
    if types is None and isinstance(pattern, str):
        types = [_LETTERS.get(letter, letter) for letter in pattern]
    elif types is None and pattern is not None:
        types = cfg.items("index_topk_pattern", length=layers)
    if types is None:
        every, offset = cfg.size("index_topk_freq", default=1), cfg.count("index_skip_topk_offset", default=2)
        return ["shared" if max(i - offset + 1, 0) % every else "full" for i in range(layers)]
    if len(types) != layers or any(kind not in _LETTERS.values() for kind in types):
        raise InputError(
            f"{cfg.where}: the indexer types are not one of full and shared for each of {layers} layers",
            value=pattern or types[:4],
        )
    return list(types)


def glm_moe_dsa(cfg: Config, name: str) -> ModelSpec:
    """GLM-5: latent attention to the tokens that an indexer chooses; its keys are cached, too."""
    cfg = with_defaults(cfg, first_k_dense_replace=3, n_shared_experts=1)
    layers = cfg.layers("num_hidden_layers")
    declared, used = cfg.optional_size("head_dim"), cfg.size("qk_rope_head_dim")
    if declared not in (None, used):
        cfg.note(f"head_dim {declared} is not used: the rotary part of a head has {used} features")
    return latent_decoder(cfg, name, indexers=indexer_types(cfg, layers), eps=1e-5)


def glm4_moe_lite(cfg: Config, name: str) -> ModelSpec:
    """GLM-4.7-Flash: DeepSeek's layers at a smaller size, the first one dense."""
    cfg = with_defaults(cfg, q_lora_rank=768, first_k_dense_replace=1, n_shared_experts=1)
    return latent_decoder(cfg, name, eps=1e-5)


ADAPTERS = {"glm_moe_dsa": glm_moe_dsa, "glm4_moe_lite": glm4_moe_lite}
