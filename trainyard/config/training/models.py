"""What the built-in trainer can train: its own decoder, a Hugging Face language model, an image classifier."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, JsonValue, Tag, field_validator, model_validator

from trainyard.base import Contract
from trainyard.config.numbers import Number, Whole
from trainyard.config.training.presets import DECODERS, HUGGING_FACE, DecoderPreset, HuggingFacePreset

Task = Literal["causal", "masked", "images"]
IGNORED = -100  # target of a token that is not to be predicted: what torch's losses leave out where nothing is said


class DecoderConfig(Contract):
    """A Llama-style decoder: RMSNorm, rotary positions, SwiGLU, grouped-query attention."""

    kind: Literal["decoder"] = Field("decoder", description="The built-in decoder, where nothing else is said.")
    preset: DecoderPreset | None = Field(None, description="Shape to start from; keys beside it override its own.")
    dim: Whole = Field(128, gt=0, description="Width of the residual stream.")
    layers: Whole = Field(4, gt=0, description="Number of decoder blocks.")
    heads: Whole = Field(4, gt=0, description="Number of query heads; divides dim.")
    kv_heads: Whole = Field(2, gt=0, description="Number of key and value heads; divides heads.")
    hidden: Whole = Field(384, gt=0, description="Width of the SwiGLU feed-forward layer.")
    vocabulary: Whole = Field(256, gt=1, description="Number of token ids; 256 for bytes.")
    sequence_length: Whole = Field(128, gt=1, description="Tokens per training sequence.")
    rope_theta: Number = Field(10_000.0, gt=0, description="Base of the rotary position embedding.")
    tie_embeddings: bool = Field(False, description="Whether the output layer is the embedding, transposed.")

    @model_validator(mode="before")
    @classmethod
    def _of_preset(cls, given: Any) -> Any:
        preset = given.get("preset") if isinstance(given, dict) else None
        shape = DECODERS.get(preset, {}) if isinstance(preset, str) else {}  # another value is told by its field
        return {**shape, **given} if shape else given

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.dim % self.heads or (self.dim // self.heads) % 2:
            raise ValueError(f"dim {self.dim} must be an even multiple of heads {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        return self

    @property
    def task(self) -> Task:
        return "causal"

    @property
    def parameters(self) -> int:
        """Trainable parameters."""
        width = self.dim // self.heads
        attention = 2 * self.dim * self.dim + 2 * self.dim * self.kv_heads * width
        block = attention + 3 * self.dim * self.hidden + 2 * self.dim
        ends = (1 if self.tie_embeddings else 2) * self.vocabulary * self.dim
        return self.layers * block + ends + self.dim


class HuggingFaceConfig(Contract):
    """A causal or masked language model of the library transformers."""

    kind: Literal["hugging_face"] = Field(description="A Hugging Face language model.")
    task: Literal["causal", "masked"] = Field("causal", description="Predict the next token, or masked ones.")
    preset: HuggingFacePreset | None = Field(None, description="Configuration to start from; `config` overrides it.")
    path: str | None = Field(
        None,
        description="Folder with config.json and, to start from its weights, safetensors; on the node, such as on FSx.",
    )
    weights: bool = Field(False, description="Start from the weights in `path`; else from fresh ones.")
    config: dict[str, JsonValue] = Field(
        default_factory=dict, description="Keys of the model's config.json, model_type among them; over `path`'s own."
    )
    sequence_length: Whole = Field(128, gt=1, description="Tokens per training sequence.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.preset is not None and self.path is not None:
            raise ValueError("has both preset and path: name one")
        if self.preset is None and self.path is None and not isinstance(self.config.get("model_type"), str):
            raise ValueError("names no model: give preset, path, or config with a model_type")
        if self.weights and self.path is None:
            raise ValueError("weights: true, and no path that holds any")
        if self.preset is not None and self.task != HUGGING_FACE[self.preset]["task"]:
            raise ValueError(f"preset {self.preset} is for the task {HUGGING_FACE[self.preset]['task']}")
        return self

    @field_validator("config")
    @classmethod
    def _no_code(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if "auto_map" in value:
            raise ValueError("auto_map asks for code of the model's own, which is not run")
        return value


class ImageModelConfig(Contract):
    """An image classifier of torchvision."""

    kind: Literal["images"] = Field(description="An image classifier.")
    architecture: Literal["resnet18", "resnet50", "resnet101", "resnet152"] = Field(
        "resnet50", description="torchvision's model."
    )
    classes: Whole = Field(1000, gt=1, description="Number of classes.")
    image_size: Whole = Field(224, ge=32, description="Height and width of the images that it sees, pixels.")
    synchronize_batch_norm: bool = Field(
        True,
        description="Whether statistics are over the micro-batches of all ranks, the same on any number of them, and "
        "slower. On CPUs each rank has its own.",
    )

    @property
    def task(self) -> Task:
        return "images"


def kind_of(value: Any) -> str:
    """Which of the models a user means. The tags are in brackets: no key of a user's."""
    kind = value.get("kind", "decoder") if isinstance(value, dict) else getattr(value, "kind", "decoder")
    return f"[{kind}]"


ModelConfig = Annotated[
    Annotated[DecoderConfig, Tag("[decoder]")]
    | Annotated[HuggingFaceConfig, Tag("[hugging_face]")]
    | Annotated[ImageModelConfig, Tag("[images]")],
    Discriminator(kind_of),
]
