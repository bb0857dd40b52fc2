"""The errors a user can meet. Each text is one line: WHAT is wrong with WHICH thing; DO this."""

__all__ = [
    "BusyError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "ExistsError",
    "FormatError",
    "HubError",
    "ImageSizeError",
    "Interrupted",
    "MissingExtraError",
    "ModelNameError",
    "NotFiniteError",
    "RoomError",
    "RunError",
    "TapError",
    "TooLargeError",
    "VitreousError",
]


class VitreousError(Exception):
    """Something the user can mend; a command that meets it ends with `exit_code`."""

    exit_code = 2


class ModelNameError(VitreousError):
    """No model of the catalog has this name."""


class ConfigError(VitreousError):
    """A model option, or a pair of options, has no meaning."""


class DataError(VitreousError):
    """Images or labels are missing, unreadable or contradictory."""


class TooLargeError(DataError):
    """An image has more pixels or bytes than are read here, or than fit into memory."""


class RoomError(DataError):
    """The disk is full. What was saved before is whole."""


class ImageSizeError(VitreousError):
    """An image, or a grid of patches, has another size than the model was built for."""


class TapError(VitreousError):
    """A tap does not exist, never fired, or got the wrong thing back from an edit."""


class FormatError(VitreousError):
    """A weight format is unknown, or cannot hold this model."""


class CheckpointError(VitreousError):
    """A checkpoint is damaged, incomplete or hostile."""


class HubError(VitreousError):
    """A hub, or a thing on it, cannot be reached."""


class ExistsError(VitreousError):
    """Writing would destroy something that is there."""


class BusyError(VitreousError):
    """Another process holds the thing."""


class RunError(VitreousError):
    """A training run cannot go on, or cannot be resumed."""


class NotFiniteError(RunError):
    """A loss or gradient was no number; the state before it is saved."""


class MissingExtraError(VitreousError):
    """An optional part of vitreous is not installed."""

    def __init__(self, extra: str, purpose: str):
        super().__init__(extra, purpose)  # both, so that it survives pickling
        self.extra, self.purpose = extra, purpose

    def __str__(self) -> str:
        return f"{self.purpose} needs the extra {self.extra!r}; pip install 'vitreous[{self.extra}]'"


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM came during a run, which is saved. No Exception, as KeyboardInterrupt is none."""

    def __init__(self, number: int, step: int):
        super().__init__(number, step)
        self.number, self.step = number, step
