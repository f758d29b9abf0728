"""Models of the built-in trainer: its decoder, Hugging Face language models, torchvision classifiers."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, JsonValue, Tag, field_validator, model_validator

from trainyard.base import StrictModel
from trainyard.config.field_types import Integer, Number, validation_error
from trainyard.config.training.presets import DECODERS, HUGGING_FACE, DecoderPreset, HuggingFacePreset

Task = Literal["causal", "masked", "images"]
MODEL_PATH = "$MODEL_PATH"  # as a path: the environment variable, the folder of job.model
IGNORED = -100  # target of a token without a loss: the default ignore_index of torch's losses


class DecoderConfig(StrictModel):
    """A Llama-style decoder: RMSNorm, rotary positions, SwiGLU, grouped-query attention."""

    kind: Literal["decoder"] = Field("decoder", description="The built-in decoder, the default.")
    preset: DecoderPreset | None = Field(None, description="Preset of the shape; other keys override it.")
    dim: Integer = Field(128, gt=0, description="Width of the residual stream.")
    layers: Integer = Field(4, gt=0, description="Number of decoder blocks.")
    heads: Integer = Field(4, gt=0, description="Number of query heads; divides dim.")
    kv_heads: Integer = Field(2, gt=0, description="Number of key and value heads; divides heads.")
    intermediate_size: Integer = Field(384, gt=0, description="Width of the SwiGLU feed-forward layer.")
    vocabulary: Integer = Field(256, gt=1, description="Number of token ids; 256 for bytes.")
    sequence_length: Integer = Field(128, gt=1, description="Tokens per training sequence.")
    rope_theta: Number = Field(10_000.0, gt=0, description="Base of the rotary position embedding.")
    tie_embeddings: bool = Field(False, description="Whether the output layer shares the embedding's matrix.")

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, value: Any) -> Any:
        preset = value.get("preset") if isinstance(value, dict) else None
        shape = DECODERS.get(preset, {}) if isinstance(preset, str) else {}  # the field reports an invalid preset
        return {**shape, **value} if shape else value

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.dim % self.heads or (self.dim // self.heads) % 2:
            raise validation_error("uneven_head_size", f"dim {self.dim} must be an even multiple of heads {self.heads}")
        if self.heads % self.kv_heads:
            raise validation_error(
                "uneven_key_value_heads", f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}"
            )
        return self

    @property
    def task(self) -> Task:
        """The training task of the model."""
        return "causal"

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        width = self.dim // self.heads
        attention = 2 * self.dim * self.dim + 2 * self.dim * self.kv_heads * width
        block = attention + 3 * self.dim * self.intermediate_size + 2 * self.dim
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
        "$MODEL_PATH: that of job.model.",
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

    @field_validator("config")
    @classmethod
    def _no_remote_code(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if "auto_map" in value:
            raise validation_error("custom_model_code", "auto_map needs custom model code, which is not run")
        return value


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
        description="Compute batch statistics over all ranks: independent of their number, but slower. On CPUs each "
        "rank computes its own.",
    )

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
    | Annotated[ImageModelConfig, Tag("[images]")],
    Discriminator(model_tag),
]
