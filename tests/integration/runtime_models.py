"""Small random models by Hugging Face transformers, and what they compute: the runtime's oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

SMALL: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    # Larger than usual, so that the layers matter and greedy choices are clear.
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def make_reference(config_class: str, fields: dict[str, Any], directory: Path) -> Any:
    """A random model by transformers, saved in ``directory``; biases and norms are random too."""
    torch.manual_seed(1)
    config = getattr(transformers, config_class)(**{**SMALL, **fields})
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias") or "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    return model


def random_prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, SMALL["vocab_size"], (length,), generator=generator).tolist()


def reference_logits(model: Any, tokens: list[int]) -> Any:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].float()


def reference_greedy(model: Any, tokens: list[int], count: int) -> list[int]:
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([tokens]),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.int64),
            max_new_tokens=count,
            do_sample=False,
        )
    return output[0, len(tokens) :].tolist()


def assert_close(ours: Any, reference: Any, share: float = 2e-4) -> None:
    assert (ours - reference).abs().max() <= share * reference.abs().max()
