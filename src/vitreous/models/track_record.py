"""What is known about a model's answers to images that it had not seen: how many are right, and which to trust."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vitreous.errors import ConfigError
from vitreous.words import confidence, percent, percent_range

SURE_SHARE = 0.9  # share of right answers among those to trust


@dataclass(frozen=True, kw_only=True)
class TrackRecord:
    """Measured when the model was made.

    sure_from: of answers with at least this confidence, SURE_SHARE or more are right, by the lower end of the 95 %
    interval; 1 if none can be trusted, None if unknown.
    has_chosen: the images also chose the model, so `right` is a bit too high.
    """

    right: float  # share of images
    low: float  # 95 % interval
    high: float
    images: int
    sure_from: float | None = None
    has_chosen: bool = False

    def __post_init__(self) -> None:
        shares = [self.right, self.low, self.high, *([] if self.sure_from is None else [self.sure_from])]
        are_shares = all(type(share) in (int, float) and 0 <= share <= 1 for share in shares)
        if not are_shares or type(self.images) is not int or self.images < 1 or type(self.has_chosen) is not bool:
            raise ConfigError("track_record does not hold shares of right answers")

    def is_unsure(self, confidence: float) -> bool:
        """True if an answer with this confidence is not one to trust."""
        return self.sure_from is not None and confidence < self.sure_from

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def about_right(self) -> str:
        """How often the model is right, for people."""
        of = "images set aside, which also chose it" if self.has_chosen else "images that it had not seen"
        return f"right on {percent(self.right)} of {of} ({percent_range((self.low, self.high))}, 95 % interval)"

    @property
    def about_unsure(self) -> str:
        """When an answer is unsure, for people; empty if none is."""
        if not self.sure_from:
            return ""
        if self.sure_from == 1:
            return f"unsure: even the surest answers of this model are not known to be {percent(SURE_SHARE, 0)} right"
        return (
            f"unsure: below {confidence(self.sure_from)}; of surer answers {percent(SURE_SHARE, 0)} or more are right"
        )


def from_json(record: Any) -> TrackRecord:
    """What `to_json` wrote; an error says what is wrong with it."""
    try:
        assert isinstance(record, Mapping)
        return TrackRecord(**record)
    except (AssertionError, TypeError):
        raise ConfigError("track_record does not hold shares of right answers") from None
