"""The model types whose random small models are compared with transformers, and their shapes."""

from __future__ import annotations

import exotic_multimodal as multimodal
import exotic_text as text
from exotic_multimodal import Shapes

# model_type, shapes, whether the checkpoint's tensors are compared too
CASES: list[tuple[str, Shapes, bool]] = [
    ("deepseek_v2", text.latent, True),
    ("deepseek_v2", text.plain_query, True),
    ("deepseek_v3", text.latent, True),
    ("deepseek_v32", text.latent, True),
    ("deepseek_v4", text.compressed, False),
    ("qwen3_next", text.delta_net, True),
    ("qwen3_5_text", text.delta_net, True),
    ("qwen3_5", multimodal.qwen_hybrid_image, True),
    ("qwen3_5_moe", multimodal.qwen_hybrid_image, False),  # published with all experts in one tensor
    ("qwen2_vl", multimodal.qwen2_image, True),
    ("qwen2_5_vl", multimodal.qwen2_image, True),
    ("qwen3_vl", multimodal.qwen_image, True),
    ("qwen3_vl_moe", multimodal.qwen_image, False),  # as above
    ("gpt_oss", text.sink_experts, True),
    ("llama4", multimodal.chunks, True),
    ("gemma3", multimodal.gemma3_image, True),
    ("gemma3n_text", text.gemma3n, True),
    ("gemma4", multimodal.gemma4, True),
    ("gemma4_unified", multimodal.gemma4_unified, True),
    ("glm_moe_dsa", text.shared_indexers, True),
    ("glm4_moe_lite", text.latent, True),
    ("kimi_k25", multimodal.kimi_image, False),  # transformers writes other names than are published
    ("kimi_linear", text.kimi_linear, False),
    ("nemotron_h", text.one_thing_a_layer, True),
    ("mamba", text.state_space, True),
    ("falcon_mamba", text.state_space, True),
    ("mamba2", text.state_space, True),
    ("granitemoehybrid", text.granite_hybrid, True),
    ("bamba", text.bamba, True),
    ("falcon_h1", text.mamba_hybrid, True),
    ("jamba", text.jamba, True),
    ("zamba2", text.shared_blocks, False),  # written once, under its first layer
    ("mimo_v2_flash", text.mimo, True),
    ("step3p7", multimodal.step, False),  # the projector's name differs
    ("minimax", text.lightning, False),  # transformers also writes its decay tables
    ("minimax_m3_vl", multimodal.block_sparse, False),
    ("lfm2", text.convolutions, True),
    ("lfm2_moe", text.convolutions, True),
    ("lfm2_vl", multimodal.convolutions_image, True),
    ("mllama", multimodal.crossing, True),
    ("llava", multimodal.wrapper("llama", "clip_vision_model"), True),
    ("llava_next", multimodal.wrapper("mistral", "clip_vision_model"), False),
    ("llava_onevision", multimodal.wrapper("qwen2", "siglip_vision_model"), False),
    ("mistral3", multimodal.wrapper("ministral3", "pixtral"), True),
    ("paligemma", multimodal.wrapper("gemma2", "siglip_vision_model", projection_dim=64), True),
    ("aya_vision", multimodal.wrapper("cohere2", "siglip_vision_model"), True),
    (
        "cohere2_vision",
        multimodal.wrapper("cohere2", "siglip_vision_model", alignment_intermediate_size=48),
        True,
    ),
    ("idefics3", multimodal.wrapper("llama", "idefics3_vision"), True),
    ("smolvlm", multimodal.wrapper("llama", "smolvlm_vision"), True),
    ("internvl", multimodal.wrapper("qwen2", "internvl_vision"), True),
    ("qwen2_5_omni_thinker", multimodal.omni_dense, True),
    ("qwen3_omni_moe_thinker", multimodal.omni, True),
    ("qwen2_audio", multimodal.audio, True),
    ("glm4v", multimodal.glm_image, True),
    ("glm4v_moe", multimodal.glm_image, True),
    ("glm46v", multimodal.glm_image_dense, True),
    ("glm_ocr", multimodal.glm_image_small, True),
    ("voxtral", multimodal.voice, True),
    ("phi4_multimodal", multimodal.sight_and_sound, False),
    ("deepseek_vl", multimodal.wrapper("llama", "siglip_vision_model"), True),
    ("bert", text.encoder, False),  # heads are components under names of their own
    ("roberta", text.encoder, False),
    ("xlm-roberta", text.encoder, False),
    ("camembert", text.encoder, False),
    ("distilbert", text.encoder, False),
    ("modernbert", text.encoder, False),
    ("nomic_bert", text.encoder, False),
    ("longcat_flash", text.shortcut_experts, True),
    ("recurrent_gemma", text.griffin, True),
    ("minicpm3", text.dense_latent, True),
    ("mistral4", text.latent, True),
    ("youtu", text.dense_latent, True),
    ("sarvam_mla", text.plain_query, True),
    ("axk1", text.latent, True),
    ("sarvam_moe", text.routed_experts, True),
    ("afmoe", text.shared_experts, True),
    ("hy_v3", text.shared_experts, True),
    ("olmo_hybrid", text.delta_net_apart, False),  # transformers splits the convolutions unevenly
    ("whisper", text.sound_to_text, True),
    ("t5", text.text_to_text, True),
    ("mt5", text.text_to_text, True),
    ("umt5", text.text_to_text, True),
]
