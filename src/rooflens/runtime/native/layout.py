"""The structs of ``rooflens_native.h`` and its numbers; ``STRUCTS`` is compared with the library at load."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum

TILE = 16
GROUP = 32
SUPER_GROUP = 256
MAX_SEGMENTS = 4
BLOCK_TOKENS = 16
MAX_HEAD = 512
HEAD_FEATURES = 32
MAX_GROUP = 64


class Format(IntEnum):
    """How a segment's weights are held; see ``tiles.h``."""

    F32 = 0
    BF16 = 1
    Q8_CHANNEL = 2
    Q8_0 = 3
    Q4_0 = 4
    Q4_1 = 5
    Q5_0 = 6
    Q5_1 = 7
    Q4_K = 8
    Q5_K = 9
    Q6_K = 10


class Kind(IntEnum):
    """Operators of a step."""

    EMBED = 0
    ROTATION = 1
    NORM = 2
    LINEAR = 3
    HEAD_NORM = 4
    STORE = 5
    ATTEND = 6
    ACTIVATE = 7


X_F32, X_BF16 = 0, 1
KV_TYPES = {"fp32": 0, "bf16": 1, "int8": 2}
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "relu2": 4}
PROBLEMS = {
    1: "its number of rows, samples or threads",
    2: "a token outside the vocabulary",
    3: "a slot outside the cache",
    4: "a block table outside the cache, or too short",
    5: "a row to sample that is not there",
}


class Segment(Structure):
    """rl_segment."""

    _fields_ = [
        ("data", c_void_p),
        ("tile_bytes", c_int64),
        ("format", c_int32),
        ("first", c_int32),
        ("rows", c_int32),
        ("tiles", c_int32),
    ]


class Linear(Structure):
    """rl_linear."""

    _fields_ = [
        ("bias", c_void_p),
        ("in_features", c_int32),
        ("padded", c_int32),
        ("out_features", c_int32),
        ("segments", c_int32),
        ("segment", Segment * MAX_SEGMENTS),
    ]


class Buffer(Structure):
    """rl_buffer."""

    _fields_ = [("data", c_void_p), ("stride", c_int64), ("is_private", c_int32), ("unused", c_int32)]


class Op(Structure):
    """rl_op."""

    _fields_ = [
        ("kind", c_int32),
        ("in_", c_int32),
        ("out", c_int32),
        ("residual", c_int32),
        ("sampled", c_int32),
        ("scale", c_float),
        ("cap", c_float),
        ("linear", POINTER(Linear)),
        ("table", c_void_p),
        ("table_type", c_int32),
        ("size", c_int32),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("eps", c_float),
        ("layer_norm", c_int32),
        ("first_head", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rotary_dim", c_int32),
        ("interleaved", c_int32),
        ("rotation", c_int32),
        ("plan", c_int32),
        ("softmax_scale", c_float),
        ("softcap", c_float),
        ("frequencies", c_void_p),
        ("rotation_factor", c_float),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("key_scales", c_void_p),
        ("value_scales", c_void_p),
        ("kv_type", c_int32),
        ("activation", c_int32),
        ("gated", c_int32),
        ("all_heads", c_int32),
    ]


class AttentionClass(Structure):
    """rl_attention_class."""

    _fields_ = [("window", c_int32), ("kv_heads", c_int32), ("group", c_int32)]


class Program(Structure):
    """rl_program."""

    _fields_ = [
        ("ops", POINTER(Op)),
        ("buffers", POINTER(Buffer)),
        ("classes", POINTER(AttentionClass)),
        ("workspace", c_void_p),
        ("workspace_bytes", c_int64),
        ("cache_blocks", c_int64),
        ("vocabulary", c_int64),
        ("op_count", c_int32),
        ("buffer_count", c_int32),
        ("class_count", c_int32),
        ("rotations", c_int32),
        ("rotation_stride", c_int32),
        ("max_rows", c_int32),
        ("max_threads", c_int32),
        ("max_features", c_int32),
        ("max_partial", c_int32),
        ("max_samples", c_int32),
    ]


class Step(Structure):
    """rl_step."""

    _fields_ = [
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("block_tables", c_void_p),
        ("row_sequence", c_void_p),
        ("sample_rows", c_void_p),
        ("times", POINTER(c_double)),
        ("table_stride", c_int64),
        ("rows", c_int32),
        ("samples", c_int32),
        ("sequences", c_int32),
        ("threads", c_int32),
    ]


#: In the order of ``rl_layout``.
STRUCTS = (Segment, Linear, Buffer, Op, AttentionClass, Program, Step)
