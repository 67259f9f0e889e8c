"""Small models of every dense and Mixtral-style family, built and saved with transformers.

The checkpoint that transformers writes must hold exactly the tensors that our description names, and the
parameters must add up to our total. A new family or variant is a line in ``CASES``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.24")

from rooflens.models.accounting import count_parameters  # noqa: E402
from rooflens.models.families.registry import read_spec  # noqa: E402
from rooflens.models.tensors import checkpoint_tensors  # noqa: E402

# Sizes that are all different, so that no two dimensions can be taken for each other.
SMALL = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MHA = SMALL | {"num_key_value_heads": 6}
WIDE_HEADS = SMALL | {"head_dim": 16}  # heads * head_dim is not hidden_size
GPT = {
    "vocab_size": 96,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 6,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 5, "num_local_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
ROUTED = {"n_routed_experts": 5, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
GROUPS = {"n_group": 1, "topk_group": 1}
BIASES = {"attention_bias": True, "mlp_bias": True}
# Ministral 3 scales queries past the original length; within it, by one.
UNSCALED_QUERIES = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1000.0,
        "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 64,
    }
}
PLAIN_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}

CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", SMALL),
    ("llama", WIDE_HEADS | BIASES | {"tie_word_embeddings": True}),
    ("mistral", WIDE_HEADS | {"sliding_window": 8}),
    ("llama", SMALL | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    ("ministral", WIDE_HEADS | {"sliding_window": 8}),
    ("ministral3", SMALL | UNSCALED_QUERIES),
    ("qwen2", SMALL | {"tie_word_embeddings": True}),
    ("qwen2", SMALL | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("qwen3", SMALL),
    ("qwen3", WIDE_HEADS | {"attention_bias": True}),
    ("qwen2_moe", SMALL | EXPERTS | {"shared_expert_intermediate_size": 32}),
    ("qwen2_moe", SMALL | EXPERTS | {"shared_expert_intermediate_size": 32, "decoder_sparse_step": 2}),
    ("qwen3_moe", WIDE_HEADS | EXPERTS | {"mlp_only_layers": [1]}),
    ("qwen3_moe", WIDE_HEADS | {"num_local_experts": 0}),
    ("gemma", SMALL),
    ("gemma2", SMALL | {"head_dim": 16, "sliding_window": 8}),
    ("gemma3_text", SMALL | {"head_dim": 16, "sliding_window": 8}),
    ("phi", MHA),
    ("phi", SMALL | {"qk_layernorm": True}),
    ("phi3", SMALL),
    ("phi3", SMALL | {"tie_word_embeddings": True, "partial_rotary_factor": 0.5}),
    ("phimoe", SMALL | EXPERTS | {"attention_bias": True, "lm_head_bias": True}),
    ("gpt_neox", MHA),
    ("gpt_neox", MHA | {"use_parallel_residual": False, "attention_bias": False}),
    ("gpt2", GPT),
    ("gpt2", GPT | {"n_inner": 40, "tie_word_embeddings": False}),
    ("gptj", GPT | {"rotary_dim": 4}),
    ("codegen", GPT | {"n_head": 4, "rotary_dim": 4}),
    ("gpt_bigcode", GPT),
    ("gpt_bigcode", GPT | {"multi_query": False}),
    (
        "gpt_neo",
        {
            "vocab_size": 96,
            "hidden_size": 48,
            "num_layers": 4,
            "num_heads": 6,
            "attention_types": [[["global", "local"], 2]],
            "window_size": 8,
            "max_position_embeddings": 64,
        },
    ),
    ("opt", {**MHA, "ffn_dim": 40, "word_embed_proj_dim": 48}),
    ("opt", {**MHA, "ffn_dim": 40, "word_embed_proj_dim": 32, "do_layer_norm_before": False}),
    ("opt", {**MHA, "ffn_dim": 40, "word_embed_proj_dim": 48, "enable_bias": False}),
    ("bloom", {"vocab_size": 96, "hidden_size": 48, "n_layer": 3, "n_head": 6}),
    ("falcon", MHA),
    ("falcon", MHA | {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True}),
    ("falcon", MHA | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    (
        "falcon",
        MHA | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    ("mpt", {"vocab_size": 96, "d_model": 48, "n_layers": 3, "n_heads": 6, "max_seq_len": 64}),
    ("stablelm", SMALL),
    ("stablelm", SMALL | {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True}),
    ("starcoder2", SMALL),
    ("starcoder2", SMALL | {"use_bias": False, "tie_word_embeddings": False}),
    ("persimmon", MHA),
    ("persimmon", MHA | {"qk_layernorm": False}),
    ("olmo", SMALL),
    ("olmo2", SMALL),
    ("olmo3", SMALL | {"num_hidden_layers": 5, "sliding_window": 8}),
    ("olmoe", SMALL | EXPERTS),
    ("flex_olmo", SMALL | EXPERTS),
    (
        "granite",
        SMALL
        | BIASES
        | {
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 4.0,
        },
    ),
    ("granitemoe", SMALL | EXPERTS),
    ("granitemoeshared", SMALL | EXPERTS | {"shared_intermediate_size": 32}),
    ("cohere", SMALL),
    ("cohere", SMALL | {"use_qk_norm": True}),
    ("cohere2", SMALL | {"num_hidden_layers": 5, "sliding_window": 8}),
    ("mixtral", SMALL | EXPERTS),
    ("minimax_m2", WIDE_HEADS | EXPERTS | {"rotary_dim": 8}),
    ("dots1", SMALL | ROUTED | GROUPS | {"head_dim": 8, "first_k_dense_replace": 1}),
    ("solar_open", WIDE_HEADS | ROUTED | GROUPS),
    (
        "ernie4_5_moe",
        SMALL
        | {
            "moe_num_experts": 5,
            "moe_k": 2,
            "moe_num_shared_experts": 2,
            "moe_intermediate_size": 24,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 1,
        },
    ),
    ("hunyuan_v1_dense", WIDE_HEADS),
    ("hunyuan_v1_moe", WIDE_HEADS | {"num_experts": 5, "moe_topk": 2}),
    ("glm", WIDE_HEADS),
    ("glm4", WIDE_HEADS),
    ("glm4_moe", WIDE_HEADS | ROUTED | GROUPS | {"use_qk_norm": True, "attention_bias": True}),
    ("exaone", WIDE_HEADS),
    ("exaone4", SMALL | {"head_dim": 8, "num_hidden_layers": 5, "sliding_window": 8}),
    (
        "exaone_moe",
        SMALL | GROUPS | EXPERTS | {"head_dim": 8, "num_shared_experts": 1, "first_k_dense_replace": 1},
    ),
    ("smollm3", SMALL),
    ("smollm3", SMALL | BIASES | {"tie_word_embeddings": False}),
    ("seed_oss", WIDE_HEADS | {"attention_out_bias": True, "mlp_bias": True}),
    ("helium", SMALL | {"head_dim": 8}),
    ("arcee", SMALL | BIASES),
    ("ernie4_5", WIDE_HEADS | {"use_bias": True}),
    ("cwm", WIDE_HEADS | PLAIN_ROPE | {"num_hidden_layers": 5, "sliding_window": 8}),
    ("nemotron", WIDE_HEADS | BIASES),
    ("jais2", WIDE_HEADS),
    ("apertus", SMALL),
    ("bitnet", SMALL),
    ("vaultgemma", SMALL | {"head_dim": 16, "sliding_window": 8}),
    ("hyperclovax", SMALL | BIASES | {"attention_multiplier": 0.2, "logits_scaling": 0.5}),
    ("hyperclovax", SMALL | {"use_post_norm": False}),
]


def saved(model: Any, folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the checkpoint that transformers writes."""
    from safetensors import safe_open

    model.save_pretrained(folder)
    found: dict[str, tuple[int, ...]] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                found[name] = tuple(file.get_slice(name).get_shape())
    return found


@pytest.mark.parametrize(
    ("model_type", "sizes"), CASES, ids=[f"{name}-{index}" for index, (name, _) in enumerate(CASES)]
)
def test_the_checkpoint_of_a_small_model(model_type: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    fields = json.loads(json.dumps(config.to_dict(), default=str))
    spec = read_spec(fields, name=model_type)
    assert dict(checkpoint_tensors(spec)) == saved(model, tmp_path)
    assert count_parameters(spec).total == sum(x.numel() for x in model.parameters())


# Left out: experts (routing is not described), xIELU (an activation with trained numbers of its own) and
# Falcon's ALiBi (scaled and rounded to bf16 in its code).
DENSE = [
    (index, name, sizes)
    for index, (name, sizes) in enumerate(CASES)
    if "experts" not in str(sizes) and name != "apertus" and "alibi" not in sizes
]


@pytest.mark.parametrize(("index", "model_type", "sizes"), DENSE, ids=[f"{x[1]}-{x[0]}" for x in DENSE])
def test_the_description_computes_what_the_model_computes(
    index: int, model_type: str, sizes: dict[str, Any], tmp_path: Path
) -> None:
    from interpreter import Interpreter
    from safetensors.torch import load_file

    torch.manual_seed(index)
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(tmp_path)
    spec = read_spec(json.loads(json.dumps(config.to_dict(), default=str)), name=model_type)
    tokens = torch.randint(0, spec.vocab_size, (24,))
    with torch.no_grad():
        expected = model(tokens[None]).logits[0]
        got = Interpreter(spec, load_file(tmp_path / "model.safetensors")).logits(tokens)
    torch.testing.assert_close(got, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "gemma", "gpt2", "gpt_neox"])
def test_a_classifier_has_a_score_in_place_of_the_head(model_type: str, tmp_path: Path) -> None:
    sizes = GPT if model_type == "gpt2" else MHA
    config = transformers.AutoConfig.for_model(model_type, **sizes, num_labels=4)
    model = transformers.AutoModelForSequenceClassification.from_config(config).to(torch.bfloat16)
    config.architectures = [type(model).__name__]
    spec = read_spec(json.loads(json.dumps(config.to_dict(), default=str)), name=model_type)
    assert not spec.generates
    assert dict(checkpoint_tensors(spec)) == saved(model, tmp_path)
    assert count_parameters(spec).total == sum(x.numel() for x in model.parameters())
