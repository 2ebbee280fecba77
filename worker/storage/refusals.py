"""What an S3 API's refusals mean, and who can mend them. Pure.

Only the refusal's code is told on: the rest of an answer may name keys and requests.
"""

from __future__ import annotations

import re
from typing import Final

from trainmaster.errors import UnavailableError

_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")
_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})")
_CREDENTIALS_CODES: Final = frozenset(
    [
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidToken",
        "TokenRefreshRequired",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
    ]
)
_REGION_CODES: Final = frozenset(
    ["AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"]
)
_NO_ROLE: Final = re.compile(
    r"169\.254\.169\.254|169\.254\.170\.2|/latest/api/token|credential", re.I
)


def bucket_is_missing(text: str) -> bool:
    """Return whether an error of obstore says that there is no such bucket."""
    return "<Code>NoSuchBucket</Code>" in text


def is_beyond_the_end(text: str) -> bool:
    """Return whether an error of obstore says that a range begins at or after the object's end."""
    return "<Code>InvalidRange</Code>" in text or "status code: 416" in text


def refusal(text: str, url: str) -> UnavailableError:
    """Return an error of obstore, by its `text`, as one that says what to mend.

    All are `UnavailableError`: what is wrong with a store can be mended while a run goes on, and
    says nothing about the checkpoints in it.
    """
    found, status = _CODE.search(text), _STATUS.search(text)
    code = found[1] if found else ""
    seen = code or (f"HTTP {status[1]}" if status else "no answer")
    if bucket_is_missing(text):
        kind, because = (
            "store_bucket_missing",
            "there is no such bucket: create it, or mend the URL",
        )
    elif code == "RequestTimeTooSkewed":
        kind, because = "store_clock", "this machine's clock is wrong by minutes: set it"
    elif code in _CREDENTIALS_CODES:
        kind = "store_credentials"
        because = (
            f"the credentials are refused ({code}): mend AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY "
            "or AWS_SESSION_TOKEN in the agent's environment"
        )
    elif code in _REGION_CODES or "redirect without LOCATION" in text:
        kind, because = "store_region", f"the bucket is in another region ({seen}): set AWS_REGION"
    elif not code and _NO_ROLE.search(text):
        kind = "store_credentials"
        because = (
            "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the "
            "agent's environment, or give its machine a role"
        )
    elif code == "AccessDenied" or (status is not None and status[1] in {"401", "403"}):
        kind = "store_denied"
        because = f"these credentials may not do that ({seen}): allow reading, writing, listing"
    elif code or status is not None:
        kind, because = "store_refused", f"the store answers {seen}"
    else:
        kind = "store_unreachable"
        because = "the store does not answer: is AWS_ENDPOINT_URL right, and the network up?"
    return UnavailableError(f"{url}: {because}", code=kind)
