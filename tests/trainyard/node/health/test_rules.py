"""The table of faults: every row is documented, reachable and valid."""

import re

from trainyard.models.node_health import ACTIONS
from trainyard.node.health.rules import KERNEL_RULES, RULES, VALUE_RULES, XID_OTHER, XID_RULES


def test_every_rule_names_a_document() -> None:
    for rule in RULES.values():
        assert re.fullmatch(
            r"https://(docs\.nvidia\.com|docs\.aws\.amazon\.com|docs\.kernel\.org|man7\.org)/\S+", rule.source
        )


def test_names_are_unique() -> None:
    assert len(RULES) == len((*XID_RULES, XID_OTHER, *KERNEL_RULES, *VALUE_RULES))


def test_every_action_is_of_some_rule() -> None:
    assert {rule.action for rule in RULES.values()} == set(ACTIONS)


def test_an_xid_has_several_rules_only_if_their_patterns_differ() -> None:
    rules: dict[int, list[str]] = {}
    for rule in XID_RULES:
        for xid in rule.xids:
            rules.setdefault(xid, []).append(rule.pattern)
    for xid, patterns in rules.items():
        assert len(set(patterns)) == len(patterns), xid
        assert "" not in patterns[:-1], xid  # it would hide the rows below it


def test_xids_that_end_a_process_without_a_hardware_fault_call_for_nothing() -> None:
    (application,) = [rule for rule in XID_RULES if rule.action == "none"]
    assert {13, 31, 43, 45, 68} <= set(application.xids)
