"""A whole checkpoint in a few hundred kilobytes: random weights, a byte-level tokenizer, a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # whoever imports this is skipped without the runtime
pytest.importorskip("tokenizers")

from safetensors.torch import save_file  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

from rooflens.models.families.registry import read_spec  # noqa: E402
from rooflens.models.tensors import checkpoint_tensors  # noqa: E402

END, TURN = "<|endoftext|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """One token for each byte, and three special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={sign: index for index, sign in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END, "<|im_start|>", TURN])
    return tokenizer


def write_checkpoint(directory: Path, *, context: int = 512, layers: int = 2, **changes: Any) -> Path:
    """Write the checkpoint; ``changes`` replace config entries."""
    tokenizer = byte_tokenizer()
    config = {
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    } | changes
    directory.mkdir(parents=True, exist_ok=True)
    spec = read_spec(config, name="tiny")
    torch.manual_seed(0)
    tensors = {name: 0.1 * torch.randn(shape) for name, shape in checkpoint_tensors(spec)}
    tensors["lm_head.weight"][-3:] = 0  # never the likeliest: greedy answers go on to their length
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": END, "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory
