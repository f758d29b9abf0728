"""The policy pack: `pulumi preview --policy-pack infra/policy`."""
# ruff: noqa: E402

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from pulumi_policy import (
    EnforcementLevel,
    PolicyPack,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
)

from infra.policy.rules import RULES, PolicyRule


def policy_of(rule: PolicyRule) -> ResourceValidationPolicy:
    """Convert a rule into a policy of the engine."""

    def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
        for message in rule.check(args.resource_type, args.props):
            report(f"{args.name}: {message}", None)

    return ResourceValidationPolicy(name=rule.name, description=rule.description, validate=validate)


if __name__ == "__main__":
    PolicyPack(
        name="trainyard",
        enforcement_level=EnforcementLevel.MANDATORY,
        policies=[policy_of(rule) for rule in RULES],
    )
