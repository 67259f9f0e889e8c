"""The bodies that the API takes, as OpenAPI documents them: the names of the Python API and the CLI."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from rooflens.analysis.workload import DEFAULT_OUTPUT, DEFAULT_PROMPT
from rooflens.report.words import Language
from rooflens.units import GIGA, TERA

# Far beyond any workload, and small enough that no sum of products leaves the floating-point range.
_MOST = 1000 * GIGA
_MOST_DEVICES = 100_000
_MOST_TECHNIQUES = 12
_MOST_RATE = float(TERA) * TERA

Count = Annotated[StrictInt, Field(ge=1, le=_MOST)]
Tokens = Annotated[StrictInt, Field(ge=0, le=_MOST)]
Ways = Annotated[StrictInt, Field(ge=1, le=_MOST_DEVICES)]
Name = Annotated[StrictStr, Field(min_length=1, max_length=400)]
Number = Annotated[StrictFloat | StrictInt, Field(gt=0, le=_MOST_RATE)]
Text = Annotated[StrictStr, Field(max_length=60)]
Quantity = Number | Text
Share = Annotated[StrictFloat | StrictInt, Field(ge=0, le=1)]
Axis = Annotated[list[Tokens], Field(min_length=1)]


class Body(BaseModel):
    """A request: unknown fields are refused, so that a misspelt one is not silently dropped."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class ModelPart(Body):
    """The model: a bundled name, the fields of a config.json, its text, or free-form sizes."""

    model: Name | dict[str, Any] | None = Field(
        None,
        description="A bundled name (GET /api/models), or the fields of a config.json. A Hub id where the "
        "server allows it. Never a path.",
        examples=["Qwen/Qwen2.5-7B-Instruct"],
    )
    config_text: StrictStr | None = Field(
        None, description="Instead of model: the text of a config.json, as pasted."
    )
    params: Quantity | None = Field(None, description="Instead of model: parameters, 8e9 or '8B'.")
    active_params: Quantity | None = Field(None, description="With params: parameters used per token.")
    kv_bytes_per_token: Quantity | None = Field(None, description="With params: bytes, or '128KiB'.")
    weights_bytes: Quantity | None = Field(None, description="With params: bytes of all weights.")
    kv_dtype: Name | None = Field(None, description="KV cache type; default the model's.")


class ByHandPart(Body):
    """A device given by its figures, or figures that replace a named device's."""

    peak: Quantity | None = Field(None, description="Dense FLOP/s, or '165TFLOP/s'.")
    bandwidth: Quantity | None = Field(None, description="Bytes/s, or '1TB/s'.")
    memory: Quantity | None = Field(None, description="Bytes, or '24GB'.")


class DevicePart(ByHandPart):
    """The device: a name of the catalogue, or its figures by hand."""

    device: Name | None = Field(None, description="A name of GET /api/devices.", examples=["rtx-4090"])


class LayoutPart(Body):
    """How many devices, and how the work is cut over them."""

    count: Ways | None = Field(None, description="Devices; default tp x pp x dp.")
    tp: Ways | None = None
    pp: Ways = 1
    ep: Ways = 1
    dp: Ways = 1


class EnginePart(Body):
    """Lengths, and the engine whose memory rules apply."""

    prompt: Count = DEFAULT_PROMPT
    output: Count = DEFAULT_OUTPUT
    engine: Name = "none"
    engine_version: Name | None = None
    max_model_len: Count | None = None
    max_batched_tokens: Count | None = None
    max_sequences: Count | None = None
    memory_utilization: Annotated[StrictFloat | StrictInt, Field(gt=0, le=1)] | None = None
    swa_full: StrictBool = False


class CaseBody(ModelPart, DevicePart, LayoutPart, EnginePart):
    """POST /api/operators: the operators of one case, on one device."""

    weights: Name | None = Field(None, description="Weight format; default the checkpoint's.")
    batch: Count = 1
    context: Tokens | None = Field(None, description="Tokens held per sequence; default prompt + output.")


class PlanBody(CaseBody):
    """POST /api/plan: what ``rooflens plan`` takes."""

    rate: Number | None = Field(None, description="Also the steady state at so many requests a second.")
    concurrency: Ways | None = Field(None, description="Also the steady state with so many clients.")
    prompt_std: Annotated[StrictFloat | StrictInt, Field(ge=0, le=1e9)] = Field(
        0.0, description="Served: standard deviation of prompt lengths in tokens."
    )
    output_std: Annotated[StrictFloat | StrictInt, Field(ge=0, le=1e9)] = Field(
        0.0, description="Served: standard deviation of output lengths in tokens."
    )
    ttft: Number | None = Field(None, description="Served: limit of the first token for goodput, seconds.")
    tpot: Number | None = Field(None, description="Served: limit of time per token for goodput, seconds.")
    shared_prefix: Share = Field(0.0, description="Served: share of prompts that is cached already.")
    devices_per_node: Ways | None = Field(None, description="Devices that share a machine.")
    network: Quantity | None = Field(None, description="Between nodes, each device: bytes/s, or '50GB/s'.")
    prefill_device: Name | None = Field(None, description="Prompts on a pool of their own: its device.")
    prefill_count: Ways | None = Field(None, description="Devices of that pool.")
    prefill_tp: Ways | None = Field(None, description="Tensor parallel in that pool.")
    techniques: Annotated[list[Name], Field(max_length=_MOST_TECHNIQUES)] = Field(
        [], description="Added one after the other, as 'weights=fp8' or 'draft=4:0.7'."
    )


class InspectBody(ModelPart):
    """POST /api/inspect: what ``rooflens inspect`` takes."""

    weights: Name | None = None
    context: Tokens | None = None


class SweepBody(ModelPart, DevicePart, LayoutPart, EnginePart):
    """POST /api/sweep: what ``rooflens sweep`` takes; axes as numbers or lists of numbers."""

    weights: Name | None = None
    batch: Count | Annotated[list[Count], Field(min_length=1)] = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    context: Tokens | Axis | None = None


class CompareBody(ModelPart, LayoutPart, EnginePart):
    """POST /api/compare: what ``rooflens compare`` takes."""

    devices: Annotated[list[Name], Field(min_length=1, max_length=24)]
    weights: Annotated[list[Name | None], Field(min_length=1, max_length=24)] = [None]
    batch: Count = 1
    context: Tokens | None = None


class RooflineBody(ModelPart, DevicePart, LayoutPart, EnginePart):
    """POST /api/roofline: what ``rooflens roofline`` takes; the model and its settings may be left out."""

    weights: Name | None = None
    batch: Count | Annotated[list[Count], Field(min_length=1, max_length=64)] = [1, 8, 32, 128]
    context: Tokens | None = None
    intensities: Annotated[list[Number], Field(max_length=1000)] = []
    dtype: Name | None = None


class ViewBody(CaseBody):
    """POST /api/view: everything that the planner page shows for one case, in one answer."""

    compare_devices: Annotated[list[Name], Field(max_length=3)] = Field(
        [], description="Further devices for the roofline."
    )
    sweep_axis: Literal["batch", "context"] = "batch"
    sweep_values: Annotated[list[Count], Field(min_length=1, max_length=200)] = [1, 4, 16, 64, 256]
    lang: Language = "en"


class AdviceBody(CaseBody):
    """POST /api/advice: what would help in one case, in words."""

    lang: Language = "en"


class ErrorDetail(BaseModel):
    """What is wrong, the value, what is allowed and what to do next."""

    what: str
    value: bool | int | str | None
    allowed: str | None
    next: str | None


class ErrorAnswer(BaseModel):
    """Every answer that is not 200."""

    error: ErrorDetail
