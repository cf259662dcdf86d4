"""Every error the runtime raises on purpose. Messages name the mend."""

from __future__ import annotations


class LayaAppleError(Exception):
    """Base of every error raised by ``laya_apple``."""


class UnsupportedModelError(LayaAppleError):
    """The model id is neither registered nor a checkpoint directory this runtime can read."""


class InvalidRequestError(LayaAppleError, ValueError):
    """The context or a question is malformed; the message names the question id and the mend."""


class UnsupportedShapeError(LayaAppleError):
    """The request is longer, or has more options, than the named device's largest compiled shape."""


class BackendUnavailableError(LayaAppleError):
    """The named device, runtime or checkpoint is not available here; nothing else ran instead."""


class ArtifactError(LayaAppleError):
    """A Core ML artifact cannot be used."""


class ArtifactMissingError(ArtifactError):
    """The artifact has not been built on this machine; the message names the build command."""


class ArtifactRevisionError(ArtifactError):
    """The artifact is of another model, revision, graph, shape, precision or platform."""


class ArtifactIntegrityError(ArtifactError):
    """The artifact's files or manifest are corrupt; it has been quarantined."""


class ArtifactParityError(ArtifactError):
    """The artifact did not pass the parity gate."""


class ComputeUnitMismatchError(ArtifactError):
    """The artifact would run, or runs, on compute units other than the Neural Engine."""
