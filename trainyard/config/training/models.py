"""Models of the built-in trainer: its decoder, Hugging Face and custom language models, torchvision classifiers."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    Discriminator,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from trainyard.base import StrictModel
from trainyard.config.field_types import Integer, Number, validation_error
from trainyard.config.training.presets import DECODERS, HUGGING_FACE, DecoderPreset, HuggingFacePreset

Task = Literal["causal", "masked", "images"]
MODEL_PATH = "$MODEL_PATH"  # as a path: the environment variable, the folder of job.model
IGNORED = -100  # target of a token without a loss: the default ignore_index of torch's losses


Architecture = Literal["llama", "mistral", "qwen2", "qwen3", "qwen3_moe"]
EXPERT_ALIGNMENT = 8  # 16 bytes of 16-bit numbers: torch's grouped matrix product needs rows that start at multiples


class RopeScaling(StrictModel):
    """Scaling of rotary positions for sequences that are longer than those of the pretraining."""

    rope_type: Literal["linear", "llama3"] = Field(
        description="linear divides all frequencies by factor; llama3 (Llama 3.1) only the low ones."
    )
    factor: Number = Field(gt=0, description="Divisor of the frequencies.")
    low_freq_factor: Number = Field(
        1.0, gt=0, description="llama3: frequencies with fewer periods in the original length are divided."
    )
    high_freq_factor: Number = Field(
        4.0, gt=0, description="llama3: frequencies with more periods in the original length are unchanged."
    )
    original_max_position_embeddings: Integer = Field(
        8192, gt=0, description="llama3: sequence length of the pretraining, tokens."
    )

    @model_validator(mode="after")
    def _limits_differ(self) -> Self:
        if self.low_freq_factor >= self.high_freq_factor:
            raise validation_error(
                "rope_limits_reversed",
                f"low_freq_factor {self.low_freq_factor:g} must be below high_freq_factor {self.high_freq_factor:g}",
            )
        return self


class DecoderConfig(StrictModel):
    """A decoder of the Llama family: RMSNorm, rotary positions, SwiGLU, grouped-query attention.

    It reads and writes checkpoints of Llama, Mistral, Qwen 2, Qwen 3 and Qwen3-MoE in the format of Hugging Face.
    """

    kind: Literal["decoder"] = Field("decoder", description="The built-in decoder, the default.")
    path: str | None = Field(
        None,
        description="Model in the Hugging Face format. Its config.json sets the shape. In a stack: an absolute path on "
        "the nodes, such as /fsx/models/NAME, or $MODEL_PATH (the model in job.model). Standalone also "
        "s3://bucket/prefix/ or ORG/NAME (the Hugging Face hub). A key that is also set here must have the value in "
        "config.json, except router_aux_loss_coef.",
    )
    weights: bool = Field(False, description="Load the weights in `path`; false: random weights.")
    architecture: Architecture = Field(
        "llama",
        description="Architecture of the model. qwen2 (also Qwen 2.5) adds biases to the query, key and value "
        "projections; qwen3 adds RMSNorm to queries and keys; qwen3_moe also has experts in place of each feed-forward "
        "layer.",
    )
    preset: DecoderPreset | None = Field(None, description="Preset of the shape; other keys override it.")
    dim: Integer = Field(128, gt=0, description="Width of the residual stream.")
    layers: Integer = Field(4, gt=0, description="Number of decoder blocks.")
    heads: Integer = Field(4, gt=0, description="Number of query heads.")
    kv_heads: Integer = Field(2, gt=0, description="Number of key and value heads; divides heads.")
    head_dim: Integer | None = Field(None, gt=0, description="Width of a head, even; null: dim / heads.")
    intermediate_size: Integer = Field(
        384, gt=0, description="Width of the SwiGLU feed-forward layer; not used by qwen3_moe."
    )
    experts: Integer | None = Field(None, gt=1, description="qwen3_moe: number of experts of a layer.")
    experts_per_token: Integer | None = Field(
        None, gt=0, description="qwen3_moe: experts that compute a token, those with the highest probabilities."
    )
    expert_intermediate_size: Integer | None = Field(
        None, gt=0, description="qwen3_moe: width of an expert, a multiple of 8; `dim` must be one, too."
    )
    router_aux_loss_coef: Number = Field(
        1e-3,
        ge=0,
        description="qwen3_moe: coefficient of the auxiliary load-balancing loss (Switch Transformer, arXiv "
        "2101.03961, equation 4), which has the scale of transformers: experts_per_token if all experts have the same "
        "load. It has a gradient, and is no part of the reported loss.",
    )
    vocabulary: Integer = Field(256, gt=1, description="Number of token ids; 256 for bytes.")
    sequence_length: Integer = Field(128, gt=1, description="Tokens per training sequence.")
    rope_theta: Number = Field(10_000.0, gt=0, description="Base of the rotary position embedding.")
    rope_scaling: RopeScaling | None = Field(None, description="Scaling of rotary positions, as Llama 3.1.")
    norm_eps: Number = Field(1e-5, gt=0, description="Epsilon of RMSNorm.")
    tie_embeddings: bool = Field(False, description="Whether the output layer shares the embedding's matrix.")

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, value: Any) -> Any:
        preset = value.get("preset") if isinstance(value, dict) else None
        shape = DECODERS.get(preset, {}) if isinstance(preset, str) else {}  # the field reports an invalid preset
        return {**shape, **value} if shape else value

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.head_dim is None and self.dim % self.heads:
            raise validation_error(
                "uneven_head_size", f"dim {self.dim} must be a multiple of heads {self.heads}, or set head_dim"
            )
        if self.head_size % 2:
            raise validation_error("odd_head_size", f"the width of a head, {self.head_size}, must be even")
        if self.heads % self.kv_heads:
            raise validation_error(
                "uneven_key_value_heads", f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}"
            )
        if self.weights and self.path is None:
            raise validation_error("weights_without_path", "weights is true, and path is not set")
        return self

    @model_validator(mode="after")
    def _experts_are_complete(self) -> Self:
        keys = ("experts", "experts_per_token", "expert_intermediate_size")
        missing = [key for key in keys if getattr(self, key) is None]
        if self.architecture != "qwen3_moe" and len(missing) < len(keys):
            key = next(key for key in keys if key not in missing)
            raise validation_error(
                "experts_without_architecture", f"{key} is for the architecture qwen3_moe, not {self.architecture}"
            )
        if self.architecture != "qwen3_moe" or not self.has_shape:
            return self
        if self.experts is None or self.experts_per_token is None or self.expert_intermediate_size is None:
            raise validation_error("experts_missing", f"the architecture qwen3_moe needs {' and '.join(missing)}")
        if self.experts_per_token > self.experts:
            raise validation_error(
                "too_many_experts_per_token",
                f"experts_per_token {self.experts_per_token} must be at most experts {self.experts}",
            )
        for key, size in (("dim", self.dim), ("expert_intermediate_size", self.expert_intermediate_size)):
            if size % EXPERT_ALIGNMENT:
                raise validation_error(
                    "unaligned_experts", f"{key} {size} must be a multiple of {EXPERT_ALIGNMENT} for qwen3_moe"
                )
        return self

    @property
    def task(self) -> Task:
        """The training task of the model."""
        return "causal"

    @model_serializer(mode="wrap")
    def _without_unknown_shape(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit defaults of a model in `path`, whose shape is not read yet: they are not the user's settings."""
        values: dict[str, Any] = serialize(self)
        if self.path is None:
            return values
        return {key: value for key, value in values.items() if key in {*self.model_fields_set, "kind"}}

    @property
    def shape(self) -> dict[str, Any]:
        """Settings that determine names, sizes and use of the weights, as JSON values."""
        return self.model_copy(update={"path": None, "weights": False}).model_dump(
            mode="json", exclude={"path", "weights", "router_aux_loss_coef"}
        )

    @property
    def has_shape(self) -> bool:
        """Whether the shape is known: not if it is that of a model in `path` which has not been read."""
        return self.path is None or "dim" in self.model_fields_set

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.head_dim or self.dim // self.heads

    @property
    def normalizes_heads(self) -> bool:
        """Whether queries and keys have an RMSNorm."""
        return self.architecture in ("qwen3", "qwen3_moe")

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        if self.experts is None or self.expert_intermediate_size is None:
            return self._parameters_with(3 * self.dim * self.intermediate_size)
        return self._parameters_with(self.experts * (self.dim + 3 * self.dim * self.expert_intermediate_size))

    @property
    def active_parameters(self) -> int:
        """Number of parameters that compute one token: all, except those of the experts that it is not routed to."""
        if self.experts is None or self.expert_intermediate_size is None or self.experts_per_token is None:
            return self.parameters
        return self._parameters_with(
            self.dim * (self.experts + 3 * self.experts_per_token * self.expert_intermediate_size)
        )

    def _parameters_with(self, feed_forward: int) -> int:
        """Return the number of parameters. `feed_forward`: those of one block that are neither attention nor norm."""
        width = self.head_size
        attention = 2 * self.dim * (self.heads + self.kv_heads) * width
        if self.architecture == "qwen2":
            attention += (self.heads + 2 * self.kv_heads) * width
        elif self.normalizes_heads:
            attention += 2 * width
        block = attention + feed_forward + 2 * self.dim
        embeddings = (1 if self.tie_embeddings else 2) * self.vocabulary * self.dim
        return self.layers * block + embeddings + self.dim


class HuggingFaceConfig(StrictModel):
    """A causal or masked language model of the transformers library."""

    kind: Literal["hugging_face"] = Field(description="A Hugging Face language model.")
    task: Literal["causal", "masked"] = Field("causal", description="Predict the next token (causal) or masked tokens.")
    preset: HuggingFacePreset | None = Field(None, description="Preset of the configuration; `config` overrides it.")
    path: str | None = Field(
        None,
        description="Folder on the nodes, such as on FSx, with config.json and, for its weights, safetensors files; "
        "$MODEL_PATH: that of job.model. Standalone also ORG/NAME (the Hugging Face hub).",
    )
    weights: bool = Field(False, description="Load the weights in `path`; false: random weights.")
    config: dict[str, JsonValue] = Field(
        default_factory=dict, description="Keys of config.json, including model_type. They override the file in `path`."
    )
    sequence_length: Integer = Field(128, gt=1, description="Tokens per training sequence.")

    @model_validator(mode="after")
    def _exactly_one_source(self) -> Self:
        if self.preset is not None and self.path is not None:
            raise validation_error("conflicting_model_sources", "has both preset and path: keep one")
        if self.preset is None and self.path is None and not isinstance(self.config.get("model_type"), str):
            raise validation_error(
                "model_source_missing", "has no model: set preset, path, or config with a model_type"
            )
        if self.weights and self.path is None:
            raise validation_error("weights_without_path", "weights is true, and path is not set")
        if self.preset is not None and self.task != HUGGING_FACE[self.preset]["task"]:
            raise validation_error(
                "preset_of_another_task", f"preset {self.preset} is for the task {HUGGING_FACE[self.preset]['task']}"
            )
        return self

    @property
    def shape(self) -> dict[str, Any]:
        """Settings that determine names, sizes and use of the weights, as JSON values."""
        return self.model_dump(mode="json")

    @field_validator("config")
    @classmethod
    def _no_remote_code(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if "auto_map" in value:
            raise validation_error("custom_model_code", "auto_map needs custom model code, which is not run")
        return value


class CustomModelConfig(StrictModel):
    """A causal language model of the user: a class in trainer/models that trainer/models/registry.py names."""

    kind: Literal["custom"] = Field(description="A model of the user, see trainer/models/registry.py.")
    name: str = Field(min_length=1, description="Name in the registry.")
    vocabulary: Integer = Field(gt=0, description="Number of token ids.")
    sequence_length: Integer = Field(gt=1, description="Tokens per training sequence.")
    settings: dict[str, JsonValue] = Field(default_factory=dict, description="Keyword arguments of its class.")
    small_settings: dict[str, JsonValue] | None = Field(
        None,
        description="Keyword arguments that replace some of `settings` in a rehearsal of a GPU stack, so that two "
        "cores can train it; null: it trains a small decoder.",
    )

    @property
    def shape(self) -> dict[str, Any]:
        """Settings that determine names, sizes and use of the weights, as JSON values."""
        return self.model_dump(mode="json", exclude={"small_settings"})

    @property
    def task(self) -> Task:
        """The training task of the model."""
        return "causal"


LanguageModelConfig = DecoderConfig | HuggingFaceConfig


class ImageModelConfig(StrictModel):
    """A torchvision image classifier."""

    kind: Literal["images"] = Field(description="An image classifier.")
    architecture: Literal["resnet18", "resnet50", "resnet101", "resnet152"] = Field(
        "resnet50", description="torchvision model."
    )
    classes: Integer = Field(1000, gt=1, description="Number of classes.")
    image_size: Integer = Field(224, ge=32, description="Height and width of the input images, pixels.")
    synchronize_batch_norm: bool = Field(
        True,
        description="Compute batch statistics over the samples of all ranks (SyncBatchNorm), slower; false: each rank "
        "over its micro-batch. On CPUs each rank computes its own.",
    )

    @property
    def shape(self) -> dict[str, Any]:
        """Settings that determine names, sizes and use of the weights, as JSON values."""
        return self.model_dump(mode="json")

    @property
    def task(self) -> Task:
        """The training task of the model."""
        return "images"


def model_tag(value: Any) -> str:
    """Return the union tag of a model's `kind`. Brackets distinguish tags from keys in pydantic's error locations."""
    kind = value.get("kind", "decoder") if isinstance(value, dict) else getattr(value, "kind", "decoder")
    return f"[{kind}]"


ModelConfig = Annotated[
    Annotated[DecoderConfig, Tag("[decoder]")]
    | Annotated[HuggingFaceConfig, Tag("[hugging_face]")]
    | Annotated[CustomModelConfig, Tag("[custom]")]
    | Annotated[ImageModelConfig, Tag("[images]")],
    Discriminator(model_tag),
]
