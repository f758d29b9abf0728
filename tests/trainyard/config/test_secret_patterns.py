"""Variables that are not secret are accepted."""

import pytest

from trainyard.config.secret_patterns import find_credential, is_secret_variable


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_TOKENS", "4096"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("FLOPS_PER_TOKEN", "6e9"),
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"),
        ("PAD_TOKEN", "pad"),
        ("CHAT_TOKEN", "<|im_end|>"),
        ("MASK_TOKEN", "[MASK]"),
        ("LABEL_KEY", "label"),
        ("KEYS", "a,b"),
        ("HOTKEY", "x"),
        ("KMS_KEY", "arn:aws:kms:us-east-1:123456789012:key/0f1e2d3c"),
        ("SSH_KEY", "/run/keys/deploy"),
        ("DB_PASSWORD", "/run/secrets/db"),
        ("DB_PASSWORD", ""),
        ("NCCL_DEBUG", "INFO"),
    ],
)
def test_variable_that_is_not_secret_is_accepted(name: str, value: str) -> None:
    assert not is_secret_variable(name, value)


@pytest.mark.parametrize("name", ["IMAGE_REGISTRY_TOKEN", "DATA_API_KEY", "GITHUB_PAT", "OPENAI_APIKEY", "HFTOKEN"])
def test_name_is_secret_by_its_end(name: str) -> None:
    assert is_secret_variable(name, "abc")


def test_number_is_a_password() -> None:
    assert is_secret_variable("DB_PASSWORD", "123456")


@pytest.mark.parametrize(
    "text", ["https://host:8080/a@b", "user@host", "0123456789abcdef" * 2, "hf_hub", "task-" + "a" * 30]
)
def test_text_without_credential(text: str) -> None:
    assert find_credential(text) is None
