"""What went wrong with the Hub, in one sentence with the next step.

huggingface_hub's own messages are several lines with request ids; its exception classes are stable, and so
are the codes that the Hub puts in the X-Error-Code header of an answer.
"""

from __future__ import annotations

from rooflens.errors import InputError, NotFoundError, RooflensError
from rooflens.models.file_input import quoted

_TRANSPORTS = frozenset({"requests", "urllib3", "httpx", "httpx2", "httpcore", "httpcore2"})
_LOG_IN = "log in with `hf auth login` or set HF_TOKEN"

#: The library's exception for each of the Hub's codes; GatedRepoError derives from RepositoryNotFoundError.
_CODES = {
    "GatedRepoError": "GatedRepo",
    "RevisionNotFoundError": "RevisionNotFound",
    "EntryNotFoundError": "EntryNotFound",
    "RepositoryNotFoundError": "RepoNotFound",
}


def is_offline(error: Exception) -> bool:
    """Was the request not sent because HF_HUB_OFFLINE is set?"""
    from huggingface_hub.errors import OfflineModeIsEnabled

    return isinstance(error, OfflineModeIsEnabled)


def is_transient(error: Exception) -> bool:
    """Did the connection fail, rather than the server say no?"""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, (HfHubHTTPError, ValueError)) or is_offline(error):
        return False  # a ValueError is an answer that is not JSON, though requests calls it an IOError
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _TRANSPORTS


def explain(
    error: Exception, *, repo: str, revision: str | None = None, file: str | None = None
) -> RooflensError:
    """The error to raise instead of one that huggingface_hub or its HTTP client raised."""
    from huggingface_hub import errors

    what = f"{file} of {repo}" if file else repo
    if is_offline(error):
        return NotFoundError(
            f"{what} is not in the local cache, and HF_HUB_OFFLINE forbids asking the Hub",
            next="unset HF_HUB_OFFLINE, or give a local path",
        )
    if isinstance(error, errors.HFValidationError):
        return InputError(f"{quoted(repo)} is not the name of a Hub repository", allowed="OWNER/NAME")
    if isinstance(error, errors.HfHubHTTPError):
        code = next((code for name, code in _CODES.items() if isinstance(error, getattr(errors, name))), None)
        status = error.response.status_code if error.response is not None else 0
        return refused(status, code, repo=repo, revision=revision, file=file)
    if is_transient(error):
        return InputError(
            f"the Hub could not be reached for {what} ({type(error).__name__})",
            next="check the network, or give a local path",
        )
    if isinstance(error, ValueError):  # an answer that is not the API's JSON
        return InputError(
            f"the answer about {what} does not come from the Hub",
            next="check HF_ENDPOINT and the network's proxy",
        )
    return InputError(f"{what} could not be read from the Hub ({type(error).__name__}: {error})")


def refused(
    status: int, code: str | None, *, repo: str, revision: str | None = None, file: str | None = None
) -> RooflensError:
    """The error for an answer of this HTTP status and X-Error-Code."""
    what = f"{file} of {repo}" if file else repo
    if code == "GatedRepo":
        return InputError(
            f"access to {what} has to be granted first: the repository is gated",
            next=f"accept its terms at https://huggingface.co/{repo} and {_LOG_IN}",
        )
    if code == "RevisionNotFound":
        return NotFoundError(f"{repo} has no revision {quoted(revision or 'main')}", next="check its name")
    if code == "EntryNotFound" or (status == 404 and file):
        return NotFoundError(f"{what} does not exist on the Hub", next="check the name of the file")
    if code == "RepoNotFound" or status == 404:
        return NotFoundError(
            f"the Hub has no model {repo}, or it is private",
            next=f"check the name; if it is private, {_LOG_IN}",
        )
    if status in (401, 403):
        return InputError(
            f"the Hub refused access to {what} (status {status})",
            next=f"{_LOG_IN}, with a token that may read it",
        )
    if status == 429:
        return InputError(f"the Hub limits the rate of requests and refused {what}", next="try again later")
    return InputError(f"the Hub answered with status {status} for {what}", next="try again later")
