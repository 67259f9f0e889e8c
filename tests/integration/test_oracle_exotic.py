"""Small random models of the less common architectures, built with transformers on the meta device.

The total of their parameters must be ours; where ``names`` is set so must every tensor of the checkpoint
that transformers writes. A new family is added to ``exotic_models.CASES``.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from exotic_models import CASES
from exotic_multimodal import Shapes

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.24")

from rooflens.models.accounting import count_parameters  # noqa: E402
from rooflens.models.families.registry import read_spec  # noqa: E402
from rooflens.models.tensors import checkpoint_tensors  # noqa: E402


def build(config: Any, *, device: str) -> Any:
    """The model of ``config`` as whichever kind of model transformers knows it."""
    kinds = (
        transformers.AutoModelForSpeechSeq2Seq,
        transformers.AutoModelForSeq2SeqLM,
        transformers.AutoModelForImageTextToText,
        transformers.AutoModelForMultimodalLM,
        transformers.AutoModelForCausalLM,
        transformers.AutoModelForMaskedLM,
        transformers.AutoModel,
    )
    for kind in kinds:
        if type(config) in kind._model_mapping:
            with torch.device(device):
                return kind.from_config(config)
    raise AssertionError(f"transformers builds no model of {config.model_type}")


def saved_tensors(model: Any, folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the checkpoint that transformers writes, in the hub's own names."""
    from safetensors import safe_open

    model.save_pretrained(folder)
    found: dict[str, tuple[int, ...]] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                found[name] = tuple(file.get_slice(name).get_shape())
    return found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("model_type", "shapes", "names"), CASES, ids=lambda x: getattr(x, "__name__", None))
def test_a_random_model_counts_equal(
    model_type: str, shapes: Shapes, names: bool, seed: int, tmp_path: Path
) -> None:
    config = transformers.AutoConfig.for_model(model_type, **shapes(random.Random(seed)))
    model = build(config, device="meta")
    fields = json.loads(json.dumps(config.to_dict(), default=str))
    fields["architectures"] = [type(model).__name__]
    spec = read_spec(fields, name=model_type)
    assert count_parameters(spec).total == sum(x.numel() for x in model.parameters())
    if names and seed == 0:
        saved = saved_tensors(build(config, device="cpu").to(torch.bfloat16), tmp_path)
        own = dict(checkpoint_tensors(spec))
        assert {name: saved.get(name) for name in own} == own
        towers = [component.name for component in spec.components]
        assert [x for x in saved if x not in own and not any(tower in x for tower in towers)] == []
