"""KMS customer managed keys."""

import json
from typing import Any

from rehearsal.adapter.errors import RequestFailedError
from rehearsal.adapter.handler import CreateResult, Handler, HandlerCall, ReadResult, input_keys

_DELETION_WINDOW_DAYS = 30  # the provider's default, and the maximum of KMS


class Key(Handler):
    """A symmetric KMS key. No change of its inputs replaces it."""

    type = "aws:kms/key:Key"
    unreported = frozenset({"deletionWindowInDays"})
    keys = input_keys("description", "enableKeyRotation", "deletionWindowInDays", "policy", "tags")

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the key, with rotation when it is enabled."""
        kms = call.aws.client("kms")
        arguments = call.api_arguments(description="Description", policy="Policy")
        key = kms.create_key(Tags=_tags(call.inputs.get("tags")), **arguments)["KeyMetadata"]
        if call.inputs.get("enableKeyRotation"):
            kms.enable_key_rotation(KeyId=key["KeyId"])
        return key["KeyId"], _outputs(key)

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state of the key, or None when it does not exist.

        Raises RequestFailedError for the import of a key that is disabled or pending deletion: data encrypted with it
        cannot be read. In a refresh, a key that is pending deletion counts as deleted. Source: terraform-provider-aws,
        kms/key.go.
        """
        kms = call.aws.client("kms")
        key = kms.describe_key(KeyId=call.id)["KeyMetadata"]
        is_import = not call.outputs
        if key["KeyState"] == "PendingDeletion" and not is_import:
            return None
        if key["KeyState"] != "Enabled" and is_import:
            raise RequestFailedError(
                f"{key['Arn']} is in state {key['KeyState']}: cancel its deletion or enable it first"
            )
        inputs = {
            "description": key["Description"],
            "enableKeyRotation": kms.get_key_rotation_status(KeyId=call.id)["KeyRotationEnabled"],
            "policy": kms.get_key_policy(KeyId=call.id, PolicyName="default")["Policy"],
            "tags": _current_tags(call),
        }
        return ReadResult(inputs=inputs, outputs=_outputs(key))

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the settings that differ."""
        key = call.aws.client("kms").describe_key(KeyId=call.id)["KeyMetadata"]
        self._update_differences(call, key)
        return _outputs(key)

    def delete(self, call: HandlerCall) -> None:
        """Schedule the deletion: KMS deletes the key, and with it access to its data, after the waiting period."""
        kms = call.aws.client("kms")
        if kms.describe_key(KeyId=call.id)["KeyMetadata"]["KeyState"] != "PendingDeletion":
            days = call.inputs.get("deletionWindowInDays", _DELETION_WINDOW_DAYS)
            kms.schedule_key_deletion(KeyId=call.id, PendingWindowInDays=days)

    def _update_differences(self, call: HandlerCall, key: dict[str, Any]) -> None:
        """Update only the settings that differ from the inputs."""
        kms, inputs = call.aws.client("kms"), call.inputs
        if key["Description"] != inputs.get("description", key["Description"]):
            kms.update_key_description(KeyId=call.id, Description=inputs["description"])
        if "policy" in inputs:
            current = kms.get_key_policy(KeyId=call.id, PolicyName="default")["Policy"]
            if json.loads(current) != json.loads(inputs["policy"]):
                kms.put_key_policy(KeyId=call.id, PolicyName="default", Policy=inputs["policy"])
        rotation = bool(inputs.get("enableKeyRotation"))
        if kms.get_key_rotation_status(KeyId=call.id)["KeyRotationEnabled"] != rotation:
            (kms.enable_key_rotation if rotation else kms.disable_key_rotation)(KeyId=call.id)
        current_tags = _current_tags(call)
        tags = dict(inputs.get("tags", {}))
        if removed := sorted(current_tags.keys() - tags.keys()):
            kms.untag_resource(KeyId=call.id, TagKeys=removed)
        if changed := {key: value for key, value in tags.items() if current_tags.get(key) != value}:
            kms.tag_resource(KeyId=call.id, Tags=_tags(changed))


def _tags(tags: dict[str, str] | None) -> list[dict[str, str]]:
    return [{"TagKey": key, "TagValue": value} for key, value in sorted((tags or {}).items())]


def _current_tags(call: HandlerCall) -> dict[str, str]:
    tags = call.aws.client("kms").list_resource_tags(KeyId=call.id)["Tags"]
    return {tag["TagKey"]: tag["TagValue"] for tag in tags}


def _outputs(key: dict[str, Any]) -> dict[str, Any]:
    return {"arn": key["Arn"], "keyId": key["KeyId"]}


HANDLERS = (Key(),)
