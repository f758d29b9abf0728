"""Errors of boto3 that the user can correct: how AWS's services and boto3 report them."""

import botocore.session
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    LoginError,
    NoAuthTokenError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    SSLError,
    SSOError,
    TokenRetrievalError,
)

from trainyard.aws import access_problems as problems
from trainyard.errors import Problem

# Query and REST protocols, JSON protocols, EC2.
_EXPIRATION_CODES = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
# boto3 raises them when a credential provider cannot renew expired credentials.
_PROVIDER_ERRORS = (CredentialRetrievalError, LoginError, SSOError, TokenRetrievalError)
# Codes for an unknown access key or a wrong secret key: "Common error types" of the API references of STS (Query
# protocol) and Secrets Manager (JSON protocol), "Error codes for the Amazon EC2 API", S3 "Error responses".
_INVALID_CODES = {"InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
_INVALID_EC2_CREDENTIALS = "validate the provided access credentials"  # AuthFailure of EC2 has other causes too
_CONNECTION_ERRORS = (ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError)


def describe_expiration(error: BaseException) -> str | None:
    """Return the reason if the error reports expired credentials, else None."""
    if isinstance(error, ClientError) and error.response["Error"]["Code"] in _EXPIRATION_CODES:
        return _describe(error)
    return str(error) if isinstance(error, _PROVIDER_ERRORS) else None


def access_problem(error: BaseException | None) -> Problem | None:
    """Return the user error for an error of boto3 about credentials, profile, region or network, else None.

    It may be the cause of another error (`raise ... from`).
    """
    while error is not None:
        if problem := _access_problem(error):
            return problem
        error = error.__cause__
    return None


def _access_problem(error: BaseException) -> Problem | None:
    profile = problems.selected_profile()
    if isinstance(error, ClientError | PartialCredentialsError) and _is_invalid(error):
        return problems.credentials_invalid(profile, _describe(error))
    if (reason := describe_expiration(error)) is not None:
        command = "aws login" if isinstance(error, LoginError) else "aws sso login"
        return problems.credentials_expired(profile, reason.rstrip("."), command)
    if isinstance(error, NoCredentialsError | NoAuthTokenError):
        return problems.credentials_missing(profile)
    if isinstance(error, ProfileNotFound):
        return problems.profile_missing(error.kwargs["profile"], botocore.session.Session().available_profiles)
    if isinstance(error, NoRegionError):
        return problems.region_missing()
    if isinstance(error, SSLError):
        return problems.certificate_untrusted(str(error.kwargs.get("endpoint_url")), str(error.kwargs.get("error")))
    if isinstance(error, _CONNECTION_ERRORS):
        endpoint = error.kwargs.get("endpoint_url") or error.kwargs.get("proxy_url")
        return problems.endpoint_unreachable(str(endpoint), type(error).__name__)
    return None


def _is_invalid(error: BotoCoreError | ClientError) -> bool:
    """Whether AWS does not know the credentials, or they are incomplete."""
    if not isinstance(error, ClientError):
        return True
    return error.response["Error"]["Code"] in _INVALID_CODES or _INVALID_EC2_CREDENTIALS in str(error)


def _describe(error: BotoCoreError | ClientError) -> str:
    """Return the error's code and message without a full stop."""
    if not isinstance(error, ClientError):
        return str(error).rstrip(".")
    details = error.response["Error"]
    return f"{details['Code']}: {details.get('Message', '').rstrip('.')}"
