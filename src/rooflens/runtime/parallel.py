"""Tensor parallelism: one model over several processes, each with its part of every layer.

All ranks run the same program: they open the same checkpoint and call ``generate`` (or ``step``)
together. Matrices are cut as ``analysis.parallelism`` counts them; a layer sums its outputs over the ranks
twice, the head gathers the logits. So every rank holds the same logits, bit by bit, and samples the same
tokens. Processes talk through torch.distributed: NCCL between CUDA devices, gloo elsewhere.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rooflens.analysis.parallelism import Layout, rank_specs
from rooflens.errors import DependencyError, InputError, RooflensError
from rooflens.models.formats.base import WeightFormat
from rooflens.models.spec import ModelSpec
from rooflens.runtime.blocks.basic import Embedding, Linear
from rooflens.runtime.kernels.base import PackedLinear
from rooflens.runtime.model import DecoderModel
from rooflens.runtime.rank_source import RankSource, share
from rooflens.runtime.sampling import SamplingParams
from rooflens.runtime.support import check_supported
from rooflens.runtime.tensor_source import TensorSource

#: How long a rank waits for the others before it gives up.
DEFAULT_TIMEOUT_S = 300.0
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class TensorParallel:
    """This process's place in a group of ``size`` ranks that run one model; ``device`` is where it runs."""

    def __init__(self, group: dist.ProcessGroup | None = None, *, device: torch.device | str = "cpu") -> None:
        """``group``: a process group of torch.distributed; None: all processes of the one set up.

        Raises InputError where none is set up and DependencyError where torch cannot do it at all.
        """
        if not dist.is_available():
            raise DependencyError("this build of torch has no torch.distributed")
        if not dist.is_initialized():
            raise InputError(
                "no process group is set up",
                next="use TensorParallel.from_environment() under torchrun, or init_process_group first",
            )
        whole = dist.group.WORLD if group is None else group
        assert whole is not None
        self.group: dist.ProcessGroup = whole
        self.rank: int = dist.get_rank(self.group)
        self.size: int = dist.get_world_size(self.group)
        if self.rank < 0:
            raise InputError("this process is not in the process group", value=dist.get_rank())
        self.device = torch.device(device)
        self._owned = False

    @classmethod
    def from_environment(
        cls, device: str | None = None, *, size: int | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> TensorParallel:
        """Set the group up from the variables that torchrun sets: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_*.

        ``device``: cuda takes the CUDA device of LOCAL_RANK (default: where there is CUDA, else cpu).
        ``size``: the number of ranks wanted. Raises InputError for a variable that is missing or wrong and
        another number of ranks, DependencyError without gloo or NCCL, RooflensError after ``timeout_s``.
        """
        if not dist.is_available():
            raise DependencyError("this build of torch has no torch.distributed")
        missing = [name for name in _VARIABLES if not os.environ.get(name)]
        if missing:
            raise InputError(
                f"tensor parallelism needs {', '.join(missing)} in the environment",
                next="start with: torchrun --nproc-per-node N program.py",
            )
        rank, world = _variable("RANK"), _variable("WORLD_SIZE")
        if size is not None and size != world:
            raise InputError(
                f"tensor parallelism over {size} ranks was asked for, WORLD_SIZE is another number",
                value=world,
                allowed=str(size),
                next=f"start with: torchrun --nproc-per-node {size} program.py",
            )
        if not 0 <= rank < world:
            raise InputError("RANK is not one of the group", value=rank, allowed=f"0 to {world - 1}")
        place = _place(device)
        backend = "nccl" if place.type == "cuda" else "gloo"
        if not (dist.is_nccl_available() if backend == "nccl" else dist.is_gloo_available()):
            raise DependencyError(f"this build of torch has no {backend}, which {place.type} devices need")
        owned = not dist.is_initialized()
        if owned:
            with _answered("the ranks did not all start"):
                dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        self = cls(device=place)
        self._owned = owned
        return self

    def close(self) -> None:
        """Leave the process group, if this object set it up."""
        if self._owned and dist.is_initialized():
            dist.destroy_process_group()
        self._owned = False

    def __enter__(self) -> TensorParallel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What the backend calls while it loads.

    def resolve_device(self, name: str | None) -> str:
        """The rank's device; raises InputError where ``name`` is of another kind."""
        if name is not None and torch.device(name).type != self.device.type:
            raise InputError(
                "the device is not of the kind that the process group is for",
                value=name,
                allowed=self.device.type,
            )
        return str(self.device)

    def rank_spec(self, spec: ModelSpec) -> ModelSpec:
        """What one rank holds. Raises InputError where heads, features or vocabulary do not divide, and
        UnsupportedError for a model that the runtime cannot run at all."""
        check_supported(spec)
        return rank_specs(spec, Layout(tp=self.size))[0]

    def rank_source(self, spec: ModelSpec, source: TensorSource) -> TensorSource:
        """``source`` of the whole model ``spec``, cut for this rank."""
        return source if self.size == 1 else RankSource(source, spec, rank=self.rank, size=self.size)

    def connect(self, model: DecoderModel, spec: ModelSpec) -> None:
        """Let the loaded ``model`` of this rank of ``spec`` sum and gather over the ranks."""
        if self.size == 1:
            return
        for module in model.modules():
            if isinstance(module, Linear) and module.spec.shard == "row":
                module.packed = _Joined(module.packed, module.packed.out_features, self.sum)
        model.lm_head.packed = _Joined(
            model.lm_head.packed, spec.vocab_size, lambda y: self.gather(y)[:, : spec.vocab_size]
        )
        own = share(spec.vocab_size, rank=self.rank, size=self.size)
        model.embedding = _EmbeddingPart(model.embedding, own, self.sum)

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Run a block that talks to nobody on every rank; where one fails, all raise, and none is left
        waiting for it."""
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        told = self.exchange(None if failure is None else str(failure))
        if failure is not None:
            raise failure
        for rank, reason in enumerate(told):
            if reason is not None:
                raise RooflensError(f"rank {rank} failed while {what}: {reason}")

    def check_same(self, facts: Mapping[str, object]) -> None:
        """Raise InputError, on all ranks, naming the first of ``facts`` that is not the same on all."""
        told = self.exchange(dict(facts))
        for name in facts:
            values = [str(other.get(name)) for other in told]
            if len(set(values)) > 1:
                raise InputError(
                    f"the ranks were not given the same {name}", value=", ".join(values), allowed="one value"
                )

    # What runs in every step.

    def sum(self, x: Tensor) -> Tensor:
        """The sum of ``x`` over the ranks, in its own type."""
        x = x.contiguous()
        with _answered("a sum over the ranks failed"):
            dist.all_reduce(x, group=self.group)
        return x

    def gather(self, x: Tensor) -> Tensor:
        """[rows, n] of every rank to [rows, size * n], in the order of the ranks."""
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)]
        with _answered("gathering from the ranks failed"):
            dist.all_gather(parts, x, group=self.group)
        return torch.cat(parts, dim=-1)

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's ``value``, in the order of the ranks."""
        told: list[Any] = [None] * self.size
        with _answered("the ranks could not be compared"):
            dist.all_gather_object(told, value, group=self.group)
        return told

    def agree(
        self, prompts: Sequence[str | Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> tuple[list[str | list[int]], SamplingParams | list[SamplingParams]]:
        """The first rank's prompts and parameters, on every rank, with a seed where it had none."""
        plain = [prompt if isinstance(prompt, str) else list(prompt) for prompt in prompts]
        wanted = [params] * len(plain) if isinstance(params, SamplingParams) else list(params)
        seeded = [_seeded(own) for own in wanted]
        shared = [(plain, seeded)]
        with _answered("the request could not be handed to the ranks"):
            source = dist.get_global_rank(self.group, 0)
            dist.broadcast_object_list(shared, src=source, group=self.group, device=self.device)
        return shared[0]


def all_ranks(parallel: TensorParallel | None, what: str) -> AbstractContextManager[None]:
    """``parallel.together``, or nothing where there is one process."""
    return nullcontext() if parallel is None else parallel.together(what)


class _Joined(PackedLinear):
    """A rank's part of a linear, its outputs joined with those of the other ranks."""

    def __init__(self, part: PackedLinear, out_features: int, join: Callable[[Tensor], Tensor]) -> None:
        self.part = part
        self.join = join
        self.in_features, self.out_features = part.in_features, out_features
        self.holding, self.nbytes = part.holding, part.nbytes

    def apply(self, x: Tensor) -> Tensor:
        """See ``PackedLinear.apply``."""
        return self.join(self.part.apply(x))

    def formats(self) -> tuple[tuple[int, WeightFormat], ...]:
        """See ``PackedLinear.formats``: of this rank's part."""
        return self.part.formats()


class _EmbeddingPart(Embedding):
    """A rank's rows of the token table: other tokens are zeros here, and the sum over ranks is exact."""

    def __init__(self, part: Embedding, rows: range, join: Callable[[Tensor], Tensor]) -> None:
        nn.Module.__init__(self)
        self.spec = part.spec
        self.dtype, self.packed = part.dtype, part.packed
        if part.packed is None:
            self.weight = part.weight
        self.rows = rows
        self.join = join

    def forward(self, token_ids: Tensor) -> Tensor:
        """See ``Embedding.forward``."""
        elsewhere = (token_ids < self.rows.start) | (token_ids >= self.rows.stop)
        found = super().forward((token_ids - self.rows.start).masked_fill(elsewhere, 0))
        return self.join(found.masked_fill(elsewhere[:, None], 0))


def _seeded(params: SamplingParams) -> SamplingParams:
    return params if params.greedy or params.seed is not None else replace(params, seed=secrets.randbits(63))


def _variable(name: str, default: str | None = None) -> int:
    text = os.environ.get(name, default)
    try:
        return int(text or "")
    except ValueError:
        raise InputError(f"{name} in the environment is not a whole number", value=text) from None


def _place(device: str | None) -> torch.device:
    """The device of this process: with cuda, the one of its LOCAL_RANK."""
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cpu":
        return torch.device("cpu")
    if kind != "cuda":
        raise InputError("tensor parallelism runs on other devices", value=kind, allowed="cpu, cuda")
    local, count = _variable("LOCAL_RANK", os.environ.get("RANK")), torch.cuda.device_count()
    if not 0 <= local < count:
        raise InputError(
            "LOCAL_RANK has no CUDA device",
            value=local,
            allowed=f"below {count}, the CUDA devices here",
            next="start fewer processes on this machine",
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


@contextmanager
def _answered(what: str) -> Iterator[None]:
    """Turn the ways in which a group of processes fails into one error."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RooflensError(
            f"{what}: {reason}", next="look at the other processes: one has stopped or never came"
        ) from error
