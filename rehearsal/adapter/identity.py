"""IAM roles, inline role policies and instance profiles."""

import json
from typing import Any

from rehearsal.adapter.handler import CreateResult, Handler, HandlerCall, ReadResult, input_keys
from rehearsal.adapter.refresh import select, tag_dict
from rehearsal.adapter.tagging import update_tags


class Role(Handler):
    """An IAM role."""

    type = "aws:iam/role:Role"
    keys = input_keys("name", "path", "assumeRolePolicy", "description", "permissionsBoundary", "tags")
    name_input = "name"
    replace_on_changes = frozenset({"name", "path"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the role."""
        arguments = call.api_arguments(
            path="Path",
            assumeRolePolicy="AssumeRolePolicyDocument",
            description="Description",
            permissionsBoundary="PermissionsBoundary",
        )
        role = call.aws.client("iam").create_role(RoleName=self.physical_name(call), Tags=call.tags, **arguments)[
            "Role"
        ]
        return role["RoleName"], {"name": role["RoleName"], "arn": role["Arn"]}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the role."""
        iam = call.aws.client("iam")
        if call.has_changed("assumeRolePolicy"):
            iam.update_assume_role_policy(RoleName=call.id, PolicyDocument=call.inputs["assumeRolePolicy"])
        if call.has_changed("description"):
            iam.update_role(RoleName=call.id, Description=call.inputs.get("description", ""))
        if call.has_changed("permissionsBoundary"):
            self._update_boundary(call)
        update_tags(call, iam.tag_role, iam.untag_role, RoleName=call.id)
        return {}

    def _update_boundary(self, call: HandlerCall) -> None:
        iam, boundary = call.aws.client("iam"), call.inputs.get("permissionsBoundary")
        if boundary:
            iam.put_role_permissions_boundary(RoleName=call.id, PermissionsBoundary=boundary)
        else:
            iam.delete_role_permissions_boundary(RoleName=call.id)

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        role = call.aws.client("iam").get_role(RoleName=call.id)["Role"]
        boundary = role.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn", "")
        inputs = select(role, name="RoleName", path="Path", description="Description") | {
            "assumeRolePolicy": json.dumps(role["AssumeRolePolicyDocument"]),
            "permissionsBoundary": boundary,
            "tags": tag_dict(role.get("Tags")),
        }
        return ReadResult(inputs=inputs)

    def delete(self, call: HandlerCall) -> None:
        """Delete the role."""
        call.aws.client("iam").delete_role(RoleName=call.id)


class RolePolicy(Handler):
    """An inline policy of an IAM role."""

    type = "aws:iam/rolePolicy:RolePolicy"
    keys = input_keys("role", "name", "policy")
    name_input = "name"
    replace_on_changes = frozenset({"role", "name"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Put the policy."""
        name, role = self.physical_name(call), call.inputs["role"]
        call.aws.client("iam").put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=call.inputs["policy"])
        return f"{role}:{name}", {"name": name}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Put the policy again."""
        role, _, name = call.id.partition(":")
        call.aws.client("iam").put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=call.inputs["policy"])
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        role, _, name = call.id.partition(":")
        policy = call.aws.client("iam").get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
        return ReadResult(inputs={"role": role, "name": name, "policy": json.dumps(policy)})

    def delete(self, call: HandlerCall) -> None:
        """Delete the policy."""
        role, _, name = call.id.partition(":")
        call.aws.client("iam").delete_role_policy(RoleName=role, PolicyName=name)


class InstanceProfile(Handler):
    """An IAM instance profile with one role."""

    type = "aws:iam/instanceProfile:InstanceProfile"
    keys = input_keys("name", "path", "role", "tags")
    name_input = "name"
    replace_on_changes = frozenset({"name", "path"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the profile and add the role."""
        iam = call.aws.client("iam")
        response = iam.create_instance_profile(
            InstanceProfileName=self.physical_name(call), Tags=call.tags, **call.api_arguments(path="Path")
        )
        profile = response["InstanceProfile"]
        name = profile["InstanceProfileName"]
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=call.inputs["role"])
        return name, {"name": name, "arn": profile["Arn"]}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the instance profile."""
        iam = call.aws.client("iam")
        if call.has_changed("role"):  # a profile has one role
            iam.remove_role_from_instance_profile(InstanceProfileName=call.id, RoleName=call.old_inputs["role"])
            iam.add_role_to_instance_profile(InstanceProfileName=call.id, RoleName=call.inputs["role"])
        update_tags(call, iam.tag_instance_profile, iam.untag_instance_profile, InstanceProfileName=call.id)
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        profile = call.aws.client("iam").get_instance_profile(InstanceProfileName=call.id)["InstanceProfile"]
        roles = [role["RoleName"] for role in profile["Roles"]]
        inputs = {
            "name": call.id,
            "path": profile["Path"],
            "role": roles[0] if roles else "",
            "tags": tag_dict(profile.get("Tags")),
        }
        return ReadResult(inputs=inputs)

    def delete(self, call: HandlerCall) -> None:
        """Remove the role and delete the profile."""
        iam = call.aws.client("iam")
        for role in iam.get_instance_profile(InstanceProfileName=call.id)["InstanceProfile"]["Roles"]:
            iam.remove_role_from_instance_profile(InstanceProfileName=call.id, RoleName=role["RoleName"])
        iam.delete_instance_profile(InstanceProfileName=call.id)


class Policy(Handler):
    """A customer managed policy."""

    type = "aws:iam/policy:Policy"
    keys = input_keys("name", "path", "description", "policy", "tags")
    name_input = "name"
    replace_on_changes = frozenset({"name", "path", "description"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the policy."""
        arguments = call.api_arguments(path="Path", description="Description", policy="PolicyDocument")
        name = self.physical_name(call)
        policy = call.aws.client("iam").create_policy(PolicyName=name, Tags=call.tags, **arguments)["Policy"]
        return policy["Arn"], {"name": name, "arn": policy["Arn"]}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Create a new default version of the policy in place of the earlier one, as the provider does."""
        iam = call.aws.client("iam")
        if call.has_changed("policy"):
            version = iam.get_policy(PolicyArn=call.id)["Policy"]["DefaultVersionId"]
            iam.create_policy_version(PolicyArn=call.id, PolicyDocument=call.inputs["policy"], SetAsDefault=True)
            iam.delete_policy_version(PolicyArn=call.id, VersionId=version)
        update_tags(call, iam.tag_policy, iam.untag_policy, PolicyArn=call.id)
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        iam = call.aws.client("iam")
        policy = iam.get_policy(PolicyArn=call.id)["Policy"]
        version = iam.get_policy_version(PolicyArn=call.id, VersionId=policy["DefaultVersionId"])["PolicyVersion"]
        inputs = select(policy, name="PolicyName", path="Path", description="Description")
        document = {"policy": json.dumps(version["Document"]), "tags": tag_dict(policy.get("Tags"))}
        return ReadResult(inputs={**inputs, **document})

    def delete(self, call: HandlerCall) -> None:
        """Delete the policy."""
        call.aws.client("iam").delete_policy(PolicyArn=call.id)


HANDLERS = (Role(), RolePolicy(), InstanceProfile(), Policy())
