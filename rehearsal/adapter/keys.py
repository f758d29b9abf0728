"""KMS: customer managed keys and their aliases."""

import json
from typing import Any

from botocore.exceptions import ClientError

from rehearsal.adapter.errors import Refused
from rehearsal.adapter.handler import Call, Found, Handler, Made, known

_WINDOW_DAYS = 30  # the provider's default, and KMS's longest


class Key(Handler):
    """A symmetric key. None of its inputs forces a new one."""

    type = "aws:kms/key:Key"
    keys = known("description", "enableKeyRotation", "deletionWindowInDays", "policy", "tags")

    def create(self, call: Call) -> Made:
        kms = call.aws.client("kms")
        asked = call.only(description="Description", policy="Policy")
        made = kms.create_key(Tags=_tags(call.inputs.get("tags")), **asked)["KeyMetadata"]
        if call.inputs.get("enableKeyRotation"):
            kms.enable_key_rotation(KeyId=made["KeyId"])
        return made["KeyId"], _outputs(made)

    def read(self, call: Call) -> Found | None:
        """A key that is disabled or to be deleted is refused: what it encrypted can't be read through it."""
        kms = call.aws.client("kms")
        try:
            found = kms.describe_key(KeyId=call.id)["KeyMetadata"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "NotFoundException":
                return None
            raise
        if found["KeyState"] != "Enabled":
            raise Refused(f"{found['Arn']} is {found['KeyState']}: cancel its deletion or enable it first")
        inputs = {
            "description": found["Description"],
            "enableKeyRotation": kms.get_key_rotation_status(KeyId=call.id)["KeyRotationEnabled"],
            "policy": kms.get_key_policy(KeyId=call.id, PolicyName="default")["Policy"],
            "tags": _borne(call),
        }
        return Found(inputs=inputs, outputs=_outputs(found))

    def update(self, call: Call) -> dict[str, Any]:
        found = call.aws.client("kms").describe_key(KeyId=call.id)["KeyMetadata"]
        self._settle(call, found)
        return _outputs(found)

    def delete(self, call: Call) -> None:
        """KMS deletes no key at once: after the window the key is gone, and what it encrypted with it."""
        kms = call.aws.client("kms")
        if kms.describe_key(KeyId=call.id)["KeyMetadata"]["KeyState"] != "PendingDeletion":
            days = call.inputs.get("deletionWindowInDays", _WINDOW_DAYS)
            kms.schedule_key_deletion(KeyId=call.id, PendingWindowInDays=days)

    def _settle(self, call: Call, found: dict[str, Any]) -> None:
        """Bring what differs from the inputs in line with them, and touch nothing else."""
        kms, given = call.aws.client("kms"), call.inputs
        if found["Description"] != given.get("description", found["Description"]):
            kms.update_key_description(KeyId=call.id, Description=given["description"])
        if "policy" in given:
            held = kms.get_key_policy(KeyId=call.id, PolicyName="default")["Policy"]
            if json.loads(held) != json.loads(given["policy"]):
                kms.put_key_policy(KeyId=call.id, PolicyName="default", Policy=given["policy"])
        wanted = bool(given.get("enableKeyRotation"))
        if kms.get_key_rotation_status(KeyId=call.id)["KeyRotationEnabled"] != wanted:
            (kms.enable_key_rotation if wanted else kms.disable_key_rotation)(KeyId=call.id)
        borne = _borne(call)
        tags = dict(given.get("tags", {}))
        if gone := sorted(borne.keys() - tags.keys()):
            kms.untag_resource(KeyId=call.id, TagKeys=gone)
        if changed := {key: value for key, value in tags.items() if borne.get(key) != value}:
            kms.tag_resource(KeyId=call.id, Tags=_tags(changed))


class Alias(Handler):
    """A name of a key. `targetKeyId`: the key's id or ARN."""

    type = "aws:kms/alias:Alias"
    keys = known("name", "targetKeyId")
    replaces = frozenset(["name"])

    def create(self, call: Call) -> Made:
        name = call.inputs["name"]
        call.aws.client("kms").create_alias(AliasName=name, TargetKeyId=call.inputs["targetKeyId"])
        return name, self._outputs(call, name)

    def update(self, call: Call) -> dict[str, Any]:
        call.aws.client("kms").update_alias(AliasName=call.id, TargetKeyId=call.inputs["targetKeyId"])
        return self._outputs(call, call.id)

    def read(self, call: Call) -> Found | None:
        try:
            outputs = self._outputs(call, call.id)
        except ClientError as error:
            if error.response["Error"]["Code"] == "NotFoundException":
                return None
            raise
        return Found(inputs={"name": call.id, "targetKeyId": outputs["targetKeyArn"]}, outputs=outputs)

    def delete(self, call: Call) -> None:
        call.aws.client("kms").delete_alias(AliasName=call.id)

    def _outputs(self, call: Call, name: str) -> dict[str, Any]:
        key = call.aws.client("kms").describe_key(KeyId=name)["KeyMetadata"]["Arn"]
        return {"name": name, "arn": f"{key.rpartition(':')[0]}:{name}", "targetKeyArn": key}


def _tags(tags: dict[str, str] | None) -> list[dict[str, str]]:
    return [{"TagKey": key, "TagValue": value} for key, value in sorted((tags or {}).items())]


def _borne(call: Call) -> dict[str, str]:
    tags = call.aws.client("kms").list_resource_tags(KeyId=call.id)["Tags"]
    return {tag["TagKey"]: tag["TagValue"] for tag in tags}


def _outputs(found: dict[str, Any]) -> dict[str, Any]:
    return {"arn": found["Arn"], "keyId": found["KeyId"]}


HANDLERS = (Key(), Alias())
