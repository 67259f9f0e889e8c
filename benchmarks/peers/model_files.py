"""The random model, written once from one seed, in the forms that engines read.

The shape is a bundled config's (Qwen2 family). Values do not matter for speed; they are drawn so that
activations stay in range and outputs can be compared: normal with the config's deviation, norms near 1.
Written: a safetensors directory with a tokenizer of bytes, and a bf16 GGUF file. Other forms are made from
these two by the engines' own converters.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from rooflens.models.bundled import CONFIG, match_bundled

DEFAULT_SHAPE = "Qwen/Qwen2.5-0.5B"
SEED = 20240917
_NORM_DEVIATION, _BIAS_DEVIATION = 0.1, 0.1
_DONE = ".complete"


def read_config(shape: str) -> dict[str, Any]:
    """The bundled config of ``shape``. Raises SystemExit for an unknown name or another family."""
    match = match_bundled(shape)
    if match is None:
        raise SystemExit(f"{shape} is not bundled: `rooflens inspect` lists the names")
    config: dict[str, Any] = json.loads((match.model.directory / CONFIG).read_text(encoding="utf-8"))
    if config.get("model_type") != "qwen2":
        raise SystemExit(f"{shape} is of family {config.get('model_type')}; the random model is a qwen2")
    return config


def shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor, as checkpoints of the family have them."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield f"{at}input_layernorm.weight", (hidden,)
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{at}self_attn.{name}_proj.weight", (rows, hidden)
            yield f"{at}self_attn.{name}_proj.bias", (rows,)
        yield f"{at}self_attn.o_proj.weight", (hidden, queries)
        yield f"{at}post_attention_layernorm.weight", (hidden,)
        yield f"{at}mlp.gate_proj.weight", (ffn, hidden)
        yield f"{at}mlp.up_proj.weight", (ffn, hidden)
        yield f"{at}mlp.down_proj.weight", (hidden, ffn)
    yield "model.norm.weight", (hidden,)
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", (config["vocab_size"], hidden)


def random_tensors(config: dict[str, Any], *, seed: int = SEED) -> dict[str, Tensor]:
    """The weights in bf16: the same for the same seed and config, whatever the machine's threads."""
    generator = torch.Generator().manual_seed(seed)
    deviation = float(config.get("initializer_range", 0.02))
    made = {}
    for name, shape in shapes(config):
        noise = torch.empty(shape, dtype=torch.float32).normal_(generator=generator)
        if name.endswith("norm.weight"):
            tensor = 1 + _NORM_DEVIATION * noise
        else:
            tensor = (_BIAS_DEVIATION if name.endswith(".bias") else deviation) * noise
        made[name] = tensor.to(torch.bfloat16)
    return made


def write_directory(folder: Path, config: dict[str, Any], *, seed: int = SEED) -> Path:
    """A checkpoint directory as the Hub has them; written once."""
    if (folder / _DONE).exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    document = {**config, "torch_dtype": "bfloat16", "architectures": ["Qwen2ForCausalLM"]}
    (folder / CONFIG).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    save_file(random_tensors(config, seed=seed), folder / "model.safetensors", {"format": "pt"})
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": None, "bos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings) + "\n", encoding="utf-8")
    (folder / "generation_config.json").write_text('{"do_sample": false}\n', encoding="utf-8")
    (folder / _DONE).touch()
    return folder


def byte_tokenizer() -> Tokenizer:
    """One token a byte, no merges, for engines that insist on a tokenizer; the benchmark speaks in ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_gguf(path: Path, directory: Path) -> Path:
    """The directory's weights as a GGUF file of bf16 (vectors fp32), as llama.cpp's converter writes them.

    It has no tokenizer: llama.cpp then takes the vocabulary's size from the metadata.
    """
    if path.exists():
        return path
    from safetensors.torch import load_file

    config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    layers = config["num_hidden_layers"]
    scratch = path.with_suffix(".part")
    writer = gguf.GGUFWriter(scratch, "qwen2")
    writer.add_name(f"random weights, seed {SEED}")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, layers)
    for name, tensor in load_file(directory / "model.safetensors").items():
        base, _, suffix = name.rpartition(".")
        target = f"{names.get_name(base)}.{suffix}"
        if tensor.ndim == 1:
            writer.add_tensor(target, tensor.float().numpy())
        else:
            data = tensor.view(torch.uint8).numpy()
            writer.add_tensor(target, data, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    scratch.rename(path)
    return path
