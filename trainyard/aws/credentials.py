"""Expired credentials: how AWS's services and boto3 report them."""

from botocore.exceptions import ClientError, CredentialRetrievalError, SSOError, TokenRetrievalError

# Query and REST protocols, JSON protocols, EC2.
_EXPIRATION_CODES = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
# boto3 raises them when a credential provider cannot renew expired credentials.
_PROVIDER_ERRORS = (CredentialRetrievalError, SSOError, TokenRetrievalError)


def describe_expiration(error: BaseException) -> str | None:
    """Return the reason if the error reports expired credentials, else None."""
    if isinstance(error, ClientError):
        details = error.response["Error"]
        if details["Code"] in _EXPIRATION_CODES:
            return f"{details['Code']}: {details.get('Message', '').rstrip('.')}"
    return str(error) if isinstance(error, _PROVIDER_ERRORS) else None
