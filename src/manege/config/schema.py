"""The run configuration: a frozen tree of typed values with units in their names.

Everything that decides a run's result is here, and nothing else is: where the run directory
lies is the command's business.
"""

from __future__ import annotations

import hashlib
import json
import re
from enum import StrEnum
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from manege.config.cellular import CellularConfig
from manege.config.section import (
    OWN,
    ConfigSection,
    OwnPart,
    PartName,
    Positive,
    SourceName,
    references_in,
)
from manege.errors import field
from manege.labels import LABEL, is_label
from manege.plugins import is_reference, reference_named

SMALLEST_CLASS = 8
"""Fewer pictures of a label than this cannot be trained on."""

SIZES = tuple(
    size
    for size in range(8, 257)
    if size % (4 if size <= 32 else 8 if size <= 64 else 16 if size <= 128 else 32) == 0
)
"""Picture sides: the convolutional generator's start resolution must be a whole number."""

TOY_NAMES = ("ring8", "grid25")
"""The datasets of points in the plane: pictures of one pixel whose two channels are x and y."""

_DEVICE = r"(auto|cpu|cuda|cuda:[0-9]{1,4})"


class MethodName(StrEnum):
    """How cells share data and centres."""

    PER_CLASS = "per-class"
    """A pair for each label."""
    SINGLE = "single"
    """One pair for all the data, labels unseen."""
    CONDITIONAL = "conditional"
    """One pair for all the data, told the labels."""
    CELLULAR = "cellular"
    """A grid of pairs that coevolve, each with all the data or a part of it."""


class LossName(StrEnum):
    """The losses that are built in: what generator and discriminator minimise."""

    BCE = "bce"
    """Non-saturating."""
    MINIMAX = "minimax"
    """The saturating generator loss of the first GAN."""
    LEAST_SQUARES = "least-squares"
    HINGE = "hinge"
    RELATIVISTIC = "relativistic"
    """Each fake against one real picture."""
    WASSERSTEIN = "wasserstein"


class ScoreMetric(StrEnum):
    """What training judges a generator by."""

    NONE = "none"
    KID = "kid"
    FD = "fd"


class Activation(StrEnum):
    """The non-linearity between layers."""

    LEAKY_RELU = "leaky_relu"
    """Of slope 0.2."""
    RELU = "relu"
    SILU = "silu"
    TANH = "tanh"


_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", re.I)


def parse_duration(value: Any) -> Any:
    """Seconds from ``90``, ``90s``, ``10m`` or ``1h30m``; ValueError for other texts."""
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if not match or not any(match.groups()):
        try:
            return float(value)
        except ValueError:
            raise ValueError("a duration such as 90s, 10m or 1h30m") from None
    hours, minutes, seconds = (float(group or 0) for group in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def _side(value: int, info: ValidationInfo) -> int:
    if info.data.get("source") in TOY_NAMES:
        if value != 1:
            raise ValueError(f"1, for {info.data['source']} are points; leave {field('size')} out")
    elif value not in SIZES:
        near = sorted(sorted(SIZES, key=lambda side: abs(side - value))[:2])
        raise ValueError(f"a side the networks can make; nearest are {near[0]} and {near[1]}")
    return value


def _label(value: Any) -> Any:
    if isinstance(value, bool):
        spelled = "true/yes/on" if value else "false/no/off"
        raise ValueError(f"a label, but YAML reads an unquoted {spelled} as a boolean: quote it")
    return str(value) if isinstance(value, int) else value


def _checked(label: str) -> str:
    if not is_label(label):
        raise ValueError(LABEL)
    return label


Seconds = Annotated[float, BeforeValidator(parse_duration), Field(gt=0, allow_inf_nan=False)]
Label = Annotated[str, BeforeValidator(_label), AfterValidator(_checked)]
Side = Annotated[int, AfterValidator(_side)]
Rate = Annotated[float, Field(gt=0, le=1)]
EvenWidth = Annotated[int, Field(ge=2, le=4096, multiple_of=2)]


class DataConfig(ConfigSection):
    """Which pictures, and in what form."""

    source: Annotated[str, SourceName()] = Field(min_length=1)
    """A dataset's name, an image folder, an .npz file, or the ``module:name`` of a dataset."""
    root: str | None = None
    """Where named datasets lie; else MANEGE_DATA, else the download cache."""
    classes: tuple[Label, ...] | None = None
    """The labels to train, all when null."""
    size: Side | None = None
    """Side of the square pictures; the data's own when null."""
    channels: Literal[1, 2, 3] | None = None
    """1 grey, 3 colour, 2 the coordinates of points; the data's own when null."""
    limit_per_class: int | None = Field(default=None, ge=SMALLEST_CLASS)
    """Train on at most this many pictures of a label; p(y) does not change."""
    limits: dict[Label, Annotated[int, Field(ge=SMALLEST_CLASS)]] | None = None
    """Labels cut to this many training pictures, as if the data had no more: p(y) follows."""

    @field_validator("channels", mode="before")
    @classmethod
    def _check_channels(cls, value: Any, info: ValidationInfo) -> Any:
        source = info.data.get("source")
        if source in TOY_NAMES and isinstance(value, int) and value != 2:
            raise ValueError(f"2, for {source} are points; leave {field('channels')} out")
        if source not in TOY_NAMES and isinstance(value, int) and value not in (1, 3):
            raise ValueError("one of 1, 3")
        return value

    @model_validator(mode="after")
    def _check(self) -> DataConfig:
        if self.classes == ():
            raise ValueError("data.classes: found no label, expected at least one, or null for all")
        labels = list(self.classes or ())
        repeated = [label for label in labels if labels.count(label) > 1]
        if repeated:
            raise ValueError(f"data.classes: {repeated[0]!r} is named twice; name each once")
        return self


class DcganNetworks(ConfigSection):
    """The convolutional pair of Tables 1 and 2 of the W-CGAN papers."""

    kind: Literal["dcgan"] = "dcgan"
    latent: int = Field(default=100, ge=1, le=4096)
    batchnorm_eps: float = Field(default=0.8, gt=0)
    """Of every BatchNorm but the generator's first, which has 1e-5 as in Table 1."""
    dropout: float = Field(default=0.25, ge=0, lt=1)
    """Of the discriminator."""
    # Keys that earlier versions lack stand in a configuration only where they are set.
    dropout_by: Literal["channel", "element"] = Field(
        default="channel", exclude_if=lambda unit: unit == "channel"
    )
    """What is dropped: whole channels of a picture's maps, or each of their values by itself."""
    generator_width: EvenWidth = 128
    """Channels of its maps; half as many before the last layer."""
    discriminator_width: EvenWidth = 16
    """Channels of its first block, doubled in each further one."""
    discriminator_batchnorm: bool = True
    last_stride: Literal[1, 2] = Field(default=2, exclude_if=lambda stride: stride == 2)
    """Of the discriminator's last convolution; with 1 its last layer has 2048 inputs at side 32,
    as Table 2 prints."""
    activation: Activation = Activation.LEAKY_RELU


class ResnetNetworks(ConfigSection):
    """A small residual pair; its discriminator has neither BatchNorm nor dropout."""

    kind: Literal["resnet"] = "resnet"
    latent: int = Field(default=128, ge=1, le=4096)
    generator_width: EvenWidth = 64
    """Channels of its maps."""
    discriminator_width: EvenWidth = 32
    """Channels of its first block, doubled in each further one."""
    activation: Activation = Activation.LEAKY_RELU


class PyramidNetworks(ConfigSection):
    """A generator from 4×4 up that halves its channels at each doubling; its mirror image judges.

    The discriminator has neither BatchNorm nor dropout, and is not used where features judge.
    """

    kind: Literal["pyramid"] = "pyramid"
    latent: int = Field(default=100, ge=1, le=4096)
    generator_width: EvenWidth = 128
    """Channels of its first map; never fewer than `least_width` later on."""
    least_width: EvenWidth = 16
    discriminator_width: EvenWidth = 32
    """Channels of its first block, doubled in each further one."""
    activation: Activation = Activation.RELU


class MlpNetworks(ConfigSection):
    """The multilayer perceptrons of Table I of the cellular paper."""

    kind: Literal["mlp"] = "mlp"
    latent: int = Field(default=64, ge=1, le=4096)
    hidden: int = Field(default=256, ge=1, le=8192)
    activation: Activation = Activation.TANH


class OwnNetworks(OwnPart):
    """A pair from outside the package; every other key is a parameter of its factory."""

    where = "networks"


def _networks_kind(value: Any) -> str | None:
    """Return the tag of the networks that a section means."""
    kind = value.get("kind", "") if isinstance(value, dict) else getattr(value, "kind", None)
    if kind is None and not isinstance(value, dict):
        return None
    if not isinstance(kind, str) or kind in BUILT_IN_NETWORKS:
        return str(kind)
    return kind if reference_named(kind) is None else OWN


Networks = Annotated[
    Annotated[DcganNetworks, Tag("dcgan")]
    | Annotated[ResnetNetworks, Tag("resnet")]
    | Annotated[PyramidNetworks, Tag("pyramid")]
    | Annotated[MlpNetworks, Tag("mlp")]
    | Annotated[OwnNetworks, Tag(OWN)],
    Discriminator(_networks_kind),
]

BUILT_IN_NETWORKS = ("dcgan", "resnet", "pyramid", "mlp")
"""The kinds of networks that are no ``module:name``."""


class PixelCritic(ConfigSection):
    """The discriminator is the networks' own and sees pixels."""

    kind: Literal["pixels"] = "pixels"


class FeatureCritic(ConfigSection):
    """The discriminator sees what a frozen pretrained network makes of pictures.

    It is a small head on each of some stages of EfficientNet-Lite0, which was trained on ImageNet
    (Projected GAN, Sauer et al. 2021); only the heads learn.
    """

    kind: Literal["features"] = "features"
    stages: tuple[Literal[16, 24, 40, 80, 112, 192, 320], ...] = (24, 40)
    """The stages whose maps have heads, by their channels."""
    width: EvenWidth = 64
    """Channels of a head's maps."""
    colour: float = Field(default=0.0, ge=0, le=1000)
    """How strongly the pictures' own colours count beside the first map, averaged to its side; 0
    leaves them out."""
    colour_head: float = Field(default=0.0, ge=0, le=1000)
    """How strongly a head of its own sees the pictures' colours, averaged to 4×4; 0: no such head.
    Stages' maps have a magnitude of about 10, colours one of a half."""
    weights: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    """SHA-256 of the frozen network's weights; set when the run begins."""

    @model_validator(mode="after")
    def _check(self) -> FeatureCritic:
        if not self.stages or list(self.stages) != sorted(set(self.stages)):
            raise ValueError("critic.stages: expected some, each once, from the first to the last")
        return self


Critic = Annotated[PixelCritic | FeatureCritic, Field(discriminator="kind")]


class NoConstraint(ConfigSection):
    """The discriminator is left alone, as in the papers."""

    kind: Literal["none"] = "none"


class ClipConstraint(ConfigSection):
    """The discriminator's weights, BatchNorm's exempted, are cut to ±bound after each update."""

    kind: Literal["clip"] = "clip"
    bound: Positive = 0.01


class PenaltyConstraint(ConfigSection):
    """WGAN-GP: gradients at pictures between real and fake are drawn to norm 1."""

    kind: Literal["gp"] = "gp"
    weight: Positive = 10.0


class SpectralConstraint(ConfigSection):
    """Every layer of the discriminator is divided by its spectral norm."""

    kind: Literal["spectral"] = "spectral"


class R1Constraint(ConfigSection):
    """Gradients at real pictures are drawn to 0."""

    kind: Literal["r1"] = "r1"
    gamma: Positive = 0.1


class R1R2Constraint(ConfigSection):
    """Gradients at real and at fake pictures are drawn to 0."""

    kind: Literal["r1r2"] = "r1r2"
    gamma: Positive = 0.1


Constraint = Annotated[
    NoConstraint
    | ClipConstraint
    | PenaltyConstraint
    | SpectralConstraint
    | R1Constraint
    | R1R2Constraint,
    Field(discriminator="kind"),
]


class NoAugment(ConfigSection):
    """Pictures are shown as they are."""

    kind: Literal["none"] = "none"


class AdaptiveAugment(ConfigSection):
    """Both kinds of pictures are changed at random, the more the discriminator overfits."""

    kind: Literal["adaptive"] = "adaptive"
    target: float = Field(default=0.6, gt=0, lt=1)
    """Overfitting that is let be: 0 none, 1 training pictures known by heart."""
    every_steps: int = Field(default=16, ge=1)
    step: float = Field(default=0.02, gt=0, le=1)
    """By how much the chance of a change rises or falls each time."""
    most: float = Field(default=0.8, gt=0, le=1)


class FewAugment(ConfigSection):
    """Where a cell has few pictures, both kinds are changed at random from the start."""

    kind: Literal["few"] = "few"
    below: int = Field(default=500, ge=1)
    """Pictures; a cell with as many or more shows them as they are."""
    chance: float = Field(default=1.0, gt=0, le=1)
    """Of each kind of change to a picture: its brightness, saturation, contrast, place."""
    versions: int = Field(default=8, ge=1, le=1024)
    """Changed versions of each real picture; a feature critic keeps what it sees of them."""


Augment = Annotated[NoAugment | AdaptiveAugment | FewAugment, Field(discriminator="kind")]


class Optimiser(ConfigSection):
    """Adam, a rate for each network."""

    generator_lr: Rate = 2e-4
    discriminator_lr: Rate = 2e-4
    beta1: float = Field(default=0.5, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)


class Training(ConfigSection):
    """What one step does."""

    loss: Annotated[LossName | str, PartName(LossName)] = LossName.WASSERSTEIN
    """A built-in one, or the ``module:name`` of a `manege.Loss`."""
    constraint: Constraint = NoConstraint()
    optimiser: Optimiser = Optimiser()
    batch: int = Field(default=100, ge=2, le=65536)
    n_critic: int = Field(default=1, ge=1, le=100)
    """Discriminator updates before each generator update."""
    batches_per_round: int | None = Field(default=None, ge=1)
    """Length of a round; one pass over the cell's data when null."""
    ema: float = Field(default=0.0, ge=0, lt=1)
    """Decay of the running average of the generator's weights; 0 keeps none."""
    flip: bool | None = False
    """Real pictures are mirrored at random; null lets the data decide."""
    augment: Augment = NoAugment()
    attempts: int = Field(default=1, ge=1, le=100)
    """How often a round that breaks down is tried before the class is given up."""


class Checkpoints(ConfigSection):
    """When a cell's state is committed, besides at its end and when stopped; whichever is first."""

    every_s: Seconds = 30.0
    every_rounds: int | None = Field(default=None, ge=1)


class Sheets(ConfigSection):
    """Sample sheets at fixed latents while training."""

    every_rounds: int = Field(default=20, ge=1)
    pictures: int = Field(default=64, ge=1, le=1024)


class ScoreConfig(ConfigSection):
    """How training judges a class's generator, to keep the best; the last one when none."""

    metric: Annotated[ScoreMetric | str, PartName(ScoreMetric)] = ScoreMetric.NONE
    """A built-in one, or the ``module:name`` of a function."""
    every_rounds: int = Field(default=5, ge=1)
    samples: int = Field(default=512, ge=SMALLEST_CLASS, le=100_000)
    """Pictures drawn for each score, at latents that never change over a run."""


class Stability(ConfigSection):
    """How collapse and cycling are measured while training; they steer nothing."""

    every_rounds: int | None = Field(default=1, ge=1)
    """Every so many rounds; null never does."""
    samples: int | None = Field(default=None, ge=SMALLEST_CLASS, le=100_000)
    """Pictures drawn for them, at latents that never change over a run; null is an eighth of what
    a round trains on, from 64 to 512."""
    window: int = Field(default=10, ge=2, le=1000)
    """Measured rounds that a generator is compared with: the longest cycle that is seen."""


ALL = "all"
"""The key of the one cell that sees all the data."""


def partition(config: RunConfig, labels: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The cells of a built-in method, or of one's own as it is at first, and each one's labels."""
    grid = config.cellular
    whole = config.method in (MethodName.SINGLE, MethodName.CONDITIONAL)
    if grid is None and not whole:
        return {label: (label,) for label in labels}
    if grid is None or grid.rows * grid.columns == 1:
        return {ALL: labels}  # A grid of one cell is one GAN.
    places = product(range(grid.rows), range(grid.columns))
    return {f"{row}-{column}": labels for row, column in places}


class RunConfig(ConfigSection):
    """The whole of it."""

    method: Annotated[MethodName | str, PartName(MethodName)] = MethodName.PER_CLASS
    """A built-in one, or the ``module:name`` of a class."""
    preset: str
    seed: int = Field(default=0, ge=0, lt=2**63)
    rounds: int | None = Field(default=None, ge=1, le=10_000_000)
    """Total rounds of every cell."""
    budget_s: Seconds | None = None
    """Time of training, shared out over the classes; with rounds, whichever ends first."""
    budget_clock: Literal["wall", "cpu"] = "wall"
    """What the budget counts: time that passes, or this process's computing time."""
    device: str = Field(default="auto", pattern=rf"^{_DEVICE}(\+{_DEVICE})?$")
    """One for both networks of a cell, or the generator's and the discriminator's: cuda+cuda."""
    threads_per_cell: int = Field(default=1, ge=1, le=256)
    """Two threads change a convolution's bits, so this belongs to the run, not the machine."""
    data: DataConfig
    networks: Networks = DcganNetworks()
    critic: Critic = PixelCritic()
    feature_weights: str | None = Field(default=None, min_length=1)
    """A file with EfficientNet-Lite0's weights; else MANEGE_FEATURE_WEIGHTS, else the package."""
    training: Training = Training()
    checkpoints: Checkpoints = Checkpoints()
    sheets: Sheets = Sheets()
    score: ScoreConfig = ScoreConfig()
    stability: Stability = Stability()
    cellular: CellularConfig | None = None
    """The grid; of the cellular method alone."""
    plugins: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] = Field(
        default_factory=dict, exclude_if=lambda value: not value
    )
    """SHA-256 of the source of each module that a part comes from; set when the run begins."""

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        if self.rounds is None and self.budget_s is None:
            raise ValueError("rounds and budget_s are both null; set one, or the run has no end")
        own = isinstance(self.networks, OwnNetworks)
        if self.data.source in TOY_NAMES and self.networks.kind != "mlp" and not own:
            raise ValueError(
                f"networks: found {self.networks.kind} for {self.data.source}, but points need "
                f"{field('networks')} mlp"
            )
        if (problem := self._nonsense()) is not None:
            raise ValueError(problem)
        return self

    def _nonsense(self) -> str | None:
        """Why loss, constraint and networks make no sense together, or None."""
        on_features = isinstance(self.critic, FeatureCritic)
        if on_features and self.data.source in TOY_NAMES:
            return "critic: points are no pictures, and features are of pictures; set critic pixels"
        if self.data.source in TOY_NAMES and (
            self.training.augment.kind != "none" or self.training.flip
        ):
            return (
                "training: points have no pixels to move or to mirror; leave augment and flip out"
            )
        if (problem := self._not_cellular()) is not None:
            return problem
        if isinstance(self.networks, OwnNetworks) and self.method is MethodName.CONDITIONAL:
            return (
                f"networks: {self.networks.kind} is not told labels, and the method is "
                f"conditional; use {field('method')} per-class or single"
            )
        if on_features:
            return self._not_on_features()
        kind, loss = self.training.constraint.kind, self.training.loss
        if kind == "clip" and loss is not LossName.WASSERSTEIN and not is_reference(loss):
            return (
                f"training.constraint: clip bounds a Wasserstein critic, and the loss is {loss}, "
                "whose logits must be free to grow; use r1, gp or spectral"
            )
        if kind == "spectral" and isinstance(self.networks, OwnNetworks):
            return (
                "training.constraint: spectral norms are put on the layers of built-in "
                f"discriminators, found {self.networks.kind}; put them on its layers yourself "
                "(torch.nn.utils.parametrizations.spectral_norm), and set constraint none"
            )
        mixed = isinstance(self.networks, DcganNetworks) and self.networks.discriminator_batchnorm
        if mixed and kind in ("gp", "r1", "r1r2"):
            return (
                f"training.constraint: {kind} penalises each picture's own gradient, which "
                "BatchNorm mixes with its batch's; set networks.discriminator_batchnorm=false"
            )
        if mixed and kind == "spectral":
            return (
                "training.constraint: BatchNorm scales the discriminator up again after spectral "
                "norms have bounded it; set networks.discriminator_batchnorm=false"
            )
        return None

    def _not_on_features(self) -> str | None:
        """Why the settings make no sense for a critic that sees features, or None."""
        kind = self.training.constraint.kind
        if kind in ("gp", "r1", "r1r2"):
            return (
                f"training.constraint: {kind} penalises gradients at pixels, and a feature critic "
                "sees none; use spectral, or a critic on pixels"
            )
        loss = self.training.loss
        if kind == "clip" and loss is not LossName.WASSERSTEIN and not is_reference(loss):
            return (
                "training.constraint: clip bounds a Wasserstein critic, and the loss is "
                f"{loss}, whose logits must be free to grow; use spectral"
            )
        return None

    def _not_cellular(self) -> str | None:
        """Why the settings make no sense on a grid, or a grid none with them; or None."""
        training, grid = self.training, self.cellular
        if grid is None:
            if self.method is MethodName.CELLULAR:
                return (
                    "cellular: null, and the method is cellular; use "
                    f"{field('preset')} cellular-paper"
                )
            return None
        if self.method is not MethodName.CELLULAR and not is_reference(self.method):
            return (
                f"cellular: only {field('method')} cellular has a grid, and the method is "
                f"{self.method}"
            )
        if training.n_critic > 1:
            return "training.n_critic: a grid's discriminators skip batches: use cellular.skip"
        if training.ema or training.augment.kind != "none":
            return (
                "training: ema and augment belong to one pair's history, and on a grid pairs move "
                "from cell to cell; set ema=0 and augment none"
            )
        if self.score.metric is not ScoreMetric.NONE:
            return "score.metric: on a grid mixtures are scored, by cellular.mixture.metric"
        if grid.objectives and training.loss is not LossName.BCE:
            return (
                f"cellular.objectives: discriminators then train under bce, and the loss is "
                f"{training.loss}; set training.loss=bce"
            )
        return None

    @property
    def scored(self) -> bool:
        """Whether training looks at pictures through a feature network."""
        return self.score.metric is not ScoreMetric.NONE or self.cellular is not None

    def references(self) -> dict[str, str]:
        """Return the dotted name and the reference of every part from outside the package."""
        return dict(references_in(self))

    def identity(self) -> str:
        """Digest of what decides the arithmetic: two runs that share it compute the same bits.

        Left out is what may change on resume (length, device, when to save) and where the data
        lie: the pictures themselves are in the checkpoint's ``data`` digest.
        """
        kept = self.model_dump(
            mode="json",
            include={
                "method": True,
                "seed": True,
                "threads_per_cell": True,
                "networks": True,
                "training": True,
                "score": True,
                "data": {"size", "channels"},
                **({} if self.cellular is None else {"cellular": self.cellular.identifying()}),
                **({} if isinstance(self.critic, PixelCritic) else {"critic": self._critic_keys()}),
                **({"plugins": True} if self.plugins else {}),
            },
        )
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]

    def _critic_keys(self) -> set[str]:
        """Return the critic's keys; one that earlier versions lack counts only where it is set."""
        keys = set(type(self.critic).model_fields)
        if isinstance(self.critic, FeatureCritic) and not self.critic.colour_head:
            keys.remove("colour_head")
        return keys
