"""IAM: roles, their policies, instance profiles."""

from typing import Any

from rehearsal.adapter.handler import Call, Handler, Made, known
from rehearsal.adapter.tagging import retag_by


class Role(Handler):
    type = "aws:iam/role:Role"
    keys = known("name", "assumeRolePolicy", "description", "permissionsBoundary", "tags")
    named = "name"
    replaces = frozenset({"name"})

    def create(self, call: Call) -> Made:
        wanted = call.only(
            assumeRolePolicy="AssumeRolePolicyDocument",
            description="Description",
            permissionsBoundary="PermissionsBoundary",
        )
        made = call.aws.client("iam").create_role(RoleName=self.name_of(call), Tags=call.tags, **wanted)["Role"]
        return made["RoleName"], {"name": made["RoleName"], "arn": made["Arn"]}

    def update(self, call: Call) -> dict[str, Any]:
        iam = call.aws.client("iam")
        if call.changed("assumeRolePolicy"):
            iam.update_assume_role_policy(RoleName=call.id, PolicyDocument=call.inputs["assumeRolePolicy"])
        if call.changed("description"):
            iam.update_role(RoleName=call.id, Description=call.inputs.get("description", ""))
        if call.changed("permissionsBoundary"):
            self._bound(call)
        retag_by(call, iam.tag_role, iam.untag_role, RoleName=call.id)
        return {}

    def _bound(self, call: Call) -> None:
        iam, boundary = call.aws.client("iam"), call.inputs.get("permissionsBoundary")
        if boundary:
            iam.put_role_permissions_boundary(RoleName=call.id, PermissionsBoundary=boundary)
        else:
            iam.delete_role_permissions_boundary(RoleName=call.id)

    def delete(self, call: Call) -> None:
        call.aws.client("iam").delete_role(RoleName=call.id)


class RolePolicy(Handler):
    type = "aws:iam/rolePolicy:RolePolicy"
    keys = known("role", "name", "policy")
    named = "name"
    replaces = frozenset({"role", "name"})

    def create(self, call: Call) -> Made:
        name, role = self.name_of(call), call.inputs["role"]
        call.aws.client("iam").put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=call.inputs["policy"])
        return f"{role}:{name}", {"name": name}

    def update(self, call: Call) -> dict[str, Any]:
        role, _, name = call.id.partition(":")
        call.aws.client("iam").put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=call.inputs["policy"])
        return {}

    def delete(self, call: Call) -> None:
        role, _, name = call.id.partition(":")
        call.aws.client("iam").delete_role_policy(RoleName=role, PolicyName=name)


class InstanceProfile(Handler):
    type = "aws:iam/instanceProfile:InstanceProfile"
    keys = known("name", "role", "tags")
    named = "name"
    replaces = frozenset({"name"})

    def create(self, call: Call) -> Made:
        iam = call.aws.client("iam")
        answer = iam.create_instance_profile(InstanceProfileName=self.name_of(call), Tags=call.tags)
        made = answer["InstanceProfile"]
        name = made["InstanceProfileName"]
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=call.inputs["role"])
        return name, {"name": name, "arn": made["Arn"]}

    def update(self, call: Call) -> dict[str, Any]:
        iam = call.aws.client("iam")
        if call.changed("role"):  # a profile bears one
            iam.remove_role_from_instance_profile(InstanceProfileName=call.id, RoleName=call.olds["role"])
            iam.add_role_to_instance_profile(InstanceProfileName=call.id, RoleName=call.inputs["role"])
        retag_by(call, iam.tag_instance_profile, iam.untag_instance_profile, InstanceProfileName=call.id)
        return {}

    def delete(self, call: Call) -> None:
        iam = call.aws.client("iam")
        for role in iam.get_instance_profile(InstanceProfileName=call.id)["InstanceProfile"]["Roles"]:
            iam.remove_role_from_instance_profile(InstanceProfileName=call.id, RoleName=role["RoleName"])
        iam.delete_instance_profile(InstanceProfileName=call.id)


HANDLERS = (Role(), RolePolicy(), InstanceProfile())
