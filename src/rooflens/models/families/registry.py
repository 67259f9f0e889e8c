"""From a config's model_type to the adapter that reads it; unknown types are refused by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.families.config import Config
from rooflens.models.formats.quant_entry import find_quantization
from rooflens.models.spec import ModelSpec

Adapter = Callable[[Config, str], ModelSpec]

# model_type -> module of this package whose ADAPTERS has it; modules are imported when first needed.
FAMILIES: dict[str, str] = {
    # Dense decoders and Mixtral-style experts.
    "llama": "llama",
    "code_llama": "llama",
    "aquila": "llama",
    "Yi": "llama",
    "xverse": "llama",
    "mistral": "llama",
    "ministral": "llama",
    "ministral3": "llama",
    "internlm": "llama",
    "internlm3": "llama",
    "smollm3": "llama",
    "seed_oss": "llama",
    "helium": "llama",
    "arcee": "llama",
    "hunyuan_v1_dense": "llama",
    "ernie4_5": "llama",
    "cwm": "llama",
    "qwen": "qwen",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "qwen2_moe": "qwen",
    "qwen3_moe": "qwen",
    "gemma": "gemma",
    "gemma2": "gemma",
    "vaultgemma": "gemma",
    "gemma3_text": "gemma",
    "phi": "phi",
    "phi-msft": "phi",
    "phi3": "phi",
    "phimoe": "phi",
    "gpt2": "gpt",
    "gpt_bigcode": "gpt",
    "gpt_neo": "gpt",
    "gptj": "gpt",
    "codegen": "gpt",
    "gpt_neox": "neox",
    "stablelm": "neox",
    "starcoder2": "neox",
    "persimmon": "neox",
    "opt": "neox",
    "bloom": "bloom",
    "falcon": "bloom",
    "RefinedWeb": "bloom",
    "RefinedWebModel": "bloom",
    "mpt": "bloom",
    "cohere": "cohere",
    "cohere2": "cohere",
    "olmo": "olmo",
    "olmo2": "olmo",
    "olmo3": "olmo",
    "olmoe": "olmo",
    "flex_olmo": "olmo",
    "granite": "granite",
    "granitemoe": "granite",
    "granitemoeshared": "granite",
    "hyperclovax": "granite",
    "mixtral": "moe",
    "minimax_m2": "moe",
    "dbrx": "moe",
    "dots1": "moe",
    "solar_open": "moe",
    "ernie4_5_moe": "moe",
    "hunyuan_v1_moe": "moe",
    "glm": "glm",
    "glm4": "glm",
    "glm4_moe": "glm",
    "chatglm": "glm",
    "exaone": "exaone",
    "exaone4": "exaone",
    "exaone_moe": "exaone",
    "internlm2": "internlm",
    "baichuan": "internlm",
    "orion": "internlm",
    "minicpm": "internlm",
    "nemotron": "squared_relu",
    "jais2": "squared_relu",
    "apertus": "squared_relu",
    "bitnet": "squared_relu",
    # Latent attention, hybrids, multimodal models.
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "deepseek_v32": "deepseek",
    "deepseek_v4": "deepseek_v4",
    "deepseek_ref": "deepseek_v4",
    "kimi_k2": "deepseek",
    "kimi_linear": "kimi",
    "kimi_k25": "kimi",
    "kimi_k3": "kimi",
    "glm_moe_dsa": "glm_moe",
    "glm4_moe_lite": "glm_moe",
    "gpt_oss": "gpt_oss",
    "mimo_v2_flash": "mimo",
    "step3p5": "step",
    "step3p7": "step",
    "step3p7_text": "step",
    "minimax": "minimax",
    "minimax_text_01": "minimax",
    "minimax_m1": "minimax",
    "minimax_m3": "minimax",
    "minimax_m3_vl": "minimax",
    "minimax_m3_vl_text": "minimax",
    "nemotron_h": "nemotron",
    "mamba": "mamba",
    "falcon_mamba": "mamba",
    "mamba2": "mamba",
    "granitemoehybrid": "granite_hybrid",
    "bamba": "granite_hybrid",
    "falcon_h1": "granite_hybrid",
    "jamba": "jamba",
    "zamba2": "jamba",
    "bert": "encoders",
    "roberta": "encoders",
    "xlm-roberta": "encoders",
    "camembert": "encoders",
    "distilbert": "encoders",
    "modernbert": "encoders",
    "nomic_bert": "encoders",
    "whisper": "encoder_decoder",
    "t5": "encoder_decoder",
    "mt5": "encoder_decoder",
    "umt5": "encoder_decoder",
    "nemotron-nas": "nemotron_nas",
    "deci": "nemotron_nas",
    "recurrent_gemma": "recurrent_gemma",
    "longcat_flash": "longcat",
    "minicpm3": "deepseek",
    "youtu": "deepseek",
    "sarvam_mla": "deepseek",
    "axk1": "deepseek",
    "bailing_moe": "bailing",
    "bailing_moe_v2": "bailing",
    "sarvam_moe": "bailing",
    "afmoe": "afmoe",
    "hy_v3": "afmoe",
    "olmo_hybrid": "olmo_hybrid",
    "mistral4": "deepseek",
    "kimi_vl": "kimi",
    "phi4_multimodal": "phi4_multimodal",
    "phi4mm": "phi4_multimodal",
    "voxtral": "qwen_vl",
    "glm46v": "qwen_vl",
    "glm_ocr": "qwen_vl",
    "deepseek_vl": "vision_language",
    "mllama": "mllama",
    "multi_modality": "janus",
    "deepseek_vl_v2": "janus",
    "phi3_v": "janus",
    "deepseek": "deepseek",
    "gemma3": "vision_language",
    "shieldgemma2": "vision_language",
    "llava": "vision_language",
    "vipllava": "vision_language",
    "llava_next": "vision_language",
    "llava_onevision": "vision_language",
    "mistral3": "vision_language",
    "paligemma": "vision_language",
    "aya_vision": "vision_language",
    "cohere2_vision": "vision_language",
    "idefics3": "vision_language",
    "smolvlm": "vision_language",
    "internvl": "vision_language",
    "internvl_chat": "vision_language",
    "lfm2_vl": "vision_language",
    "lfm2": "lfm",
    "lfm2_moe": "lfm",
    "qwen2_5_omni": "qwen_vl",
    "qwen2_5_omni_thinker": "qwen_vl",
    "qwen3_omni_moe": "qwen_vl",
    "qwen3_omni_moe_thinker": "qwen_vl",
    "qwen2_audio": "qwen_vl",
    "glm4v": "qwen_vl",
    "glm4v_moe": "qwen_vl",
    "gemma3n": "gemma3n",
    "gemma3n_text": "gemma3n",
    "gemma4": "gemma4",
    "gemma4_text": "gemma4",
    "gemma4_unified": "gemma4",
    "gemma4_unified_text": "gemma4",
    "llama4": "llama4",
    "llama4_text": "llama4",
    "qwen3_next": "qwen_hybrid",
    "qwen3_5_text": "qwen_hybrid",
    "qwen3_5_moe_text": "qwen_hybrid",
    "qwen2_vl": "qwen_vl",
    "qwen2_5_vl": "qwen_vl",
    "qwen3_vl": "qwen_vl",
    "qwen3_vl_moe": "qwen_vl",
    "qwen3_5": "qwen_vl",
    "qwen3_5_moe": "qwen_vl",
}


def adapter_for(model_type: str) -> Adapter:
    """The adapter of ``model_type``; raises UnsupportedError naming it and the nearest known types."""
    module = FAMILIES.get(model_type)
    if module is None:
        near = difflib.get_close_matches(model_type, FAMILIES, n=3)
        raise UnsupportedError(
            f"the architecture '{model_type}' is not covered",
            allowed=f"{len(FAMILIES)} model types, nearest: {', '.join(near)}" if near else None,
            next="give its sizes by hand with --params and --kv-bytes-per-token",
        )
    adapters: Mapping[str, Adapter] = import_module(f"rooflens.models.families.{module}").ADAPTERS
    return adapters[model_type]


def _inner_type(cfg: Config) -> str | None:
    """The covered model_type of a language model inside an unknown multimodal config, if there is one."""
    from rooflens.models.families.nested import text_config

    section = text_config(cfg, required=False)
    inner = section.text("model_type", default="")
    return inner if section is not cfg and inner in FAMILIES else None


def read_spec(
    fields: Mapping[str, Any],
    *,
    name: str,
    where: str = "config.json",
    hf_quant_config: Mapping[str, Any] | None = None,
) -> ModelSpec:
    """Build the ModelSpec that a config.json describes, its own quantisation included.

    ``hf_quant_config`` is the file of that name that ModelOpt puts beside the config. Never runs code of
    the checkpoint (``auto_map`` is ignored). Raises InputError for unusable fields and UnsupportedError
    for an architecture or a quantisation method that is not covered.
    """
    cfg = Config(fields, where=where)
    model_type = cfg.text("model_type", default="")
    if not model_type:
        raise InputError(f"{where} has no model_type", allowed="the config.json of a language model")
    if model_type not in FAMILIES and (inner := _inner_type(cfg)) is not None:
        raise UnsupportedError(
            f"the multimodal architecture '{model_type}' is not covered",
            value=model_type,
            next=f"its language model is a {inner}, which is: inspect that section of the config alone",
        )
    spec = adapter_for(model_type)(cfg, name)
    quantization = find_quantization(fields)
    if not quantization and not hf_quant_config:
        return spec
    # Imported here: most models are not quantised, and the readers are many.
    from rooflens.models.formats.checkpoint_quant import apply_checkpoint_quantization

    return apply_checkpoint_quantization(
        spec,
        quantization,
        hf_quant_config=hf_quant_config,
        expert_dtype=cfg.text("expert_dtype", default="") or None,
    )
