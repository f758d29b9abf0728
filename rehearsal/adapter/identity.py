"""IAM: roles, their policies, instance profiles."""

from rehearsal.adapter.handler import Call, Handler, Made, known


class Role(Handler):
    type = "aws:iam/role:Role"
    keys = known("assumeRolePolicy", "description", "permissionsBoundary", "tags")

    def create(self, call: Call) -> Made:
        wanted = call.only(
            assumeRolePolicy="AssumeRolePolicyDocument",
            description="Description",
            permissionsBoundary="PermissionsBoundary",
        )
        made = call.aws.client("iam").create_role(RoleName=call.autoname(), Tags=call.tags, **wanted)["Role"]
        return made["RoleName"], {"name": made["RoleName"], "arn": made["Arn"]}

    def delete(self, call: Call) -> None:
        call.aws.client("iam").delete_role(RoleName=call.id)


class RolePolicy(Handler):
    type = "aws:iam/rolePolicy:RolePolicy"
    keys = known("role", "policy")

    def create(self, call: Call) -> Made:
        name, role = call.autoname(), call.inputs["role"]
        call.aws.client("iam").put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=call.inputs["policy"])
        return f"{role}:{name}", {"name": name}

    def delete(self, call: Call) -> None:
        role, _, name = call.id.partition(":")
        call.aws.client("iam").delete_role_policy(RoleName=role, PolicyName=name)


class InstanceProfile(Handler):
    type = "aws:iam/instanceProfile:InstanceProfile"
    keys = known("role", "tags")

    def create(self, call: Call) -> Made:
        iam = call.aws.client("iam")
        answer = iam.create_instance_profile(InstanceProfileName=call.autoname(), Tags=call.tags)
        made = answer["InstanceProfile"]
        name = made["InstanceProfileName"]
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=call.inputs["role"])
        return name, {"name": name, "arn": made["Arn"]}

    def delete(self, call: Call) -> None:
        iam = call.aws.client("iam")
        for role in iam.get_instance_profile(InstanceProfileName=call.id)["InstanceProfile"]["Roles"]:
            iam.remove_role_from_instance_profile(InstanceProfileName=call.id, RoleName=role["RoleName"])
        iam.delete_instance_profile(InstanceProfileName=call.id)


HANDLERS = (Role(), RolePolicy(), InstanceProfile())
