"""EventBridge Scheduler: one-time schedules that call an operation of an AWS API with the role of the schedule.

Sources: https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html and
https://docs.aws.amazon.com/scheduler/latest/UserGuide/setting-up.html#setting-up-execution-role. A failed call is not
repeated; AWS repeats it by the retry policy of the target.
"""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from moto.iam.models import iam_backends
from moto.scheduler.exceptions import ScheduleGroupNotFound, ValidationException
from moto.scheduler.models import EventBridgeSchedulerBackend, scheduler_backends
from moto.sts.models import sts_backends
from werkzeug.test import EnvironBuilder

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.iam.policies import AccessRequest, Principal, evaluate_policies
from rehearsal.aws.moto_extension import extend
from rehearsal.aws.process import ACCOUNT

Send = Callable[[dict[str, Any]], None]
"""Calls an API with the WSGI environment of a request."""

_SERVICE = "scheduler.amazonaws.com"
_VERSIONS = {"autoscaling": "2011-01-01", "ec2": "2016-11-15"}  # of the query protocol
_DATE = "20260101"  # of the credential scope, which is not verified


def _due_schedules(send: Send) -> Iterator[Due]:
    backends: Any = scheduler_backends
    for _, region, backend in backends.iter_backends():
        for group in backend.schedule_groups.values():
            for schedule in group.schedules.values():
                when = datetime.strptime(schedule.schedule_expression, "at(%Y-%m-%dT%H:%M:%S)").replace(tzinfo=UTC)
                yield when.timestamp(), partial(_run, region, group, schedule, send)


def _run(region: str, group: Any, schedule: Any, send: Send) -> None:
    """Delete the schedule, as its ActionAfterCompletion requires, and call the API."""
    del group.schedules[schedule.name]
    service, operation = schedule.target["Arn"].rpartition(":aws-sdk:")[2].split(":")
    action = operation[0].upper() + operation[1:]
    sessions: Any = sts_backends[ACCOUNT]["aws"]
    session = sessions.assume_role(region, schedule.name, schedule.target["RoleArn"], "", 3600, "")
    scope = f"{session.access_key_id}/{_DATE}/{region}/{service}/aws4_request"
    form = {"Action": action, "Version": _VERSIONS[service], **json.loads(schedule.target["Input"])}
    headers = {
        "Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0",
        "Content-Type": "application/x-www-form-urlencoded",
        "Host": f"{service}.{region}.amazonaws.com",
    }
    send(
        EnvironBuilder(
            path="/", method="POST", headers=list(headers.items()), data=urlencode(form).encode()
        ).get_environ()
    )


def _require_supported(request: dict[str, Any]) -> None:
    """Refuse other schedules than those that are emulated, and a role that the service cannot assume."""
    target = request["target"]
    service = target["Arn"].rpartition(":aws-sdk:")[2].partition(":")[0]
    if not (
        request["schedule_expression"].startswith("at(")
        and request["schedule_expression_timezone"] in (None, "UTC")
        and request["flexible_time_window"]["Mode"] == "OFF"
        and service in _VERSIONS
    ):
        raise NotImplementedError("a schedule other than one call of Auto Scaling or EC2 at a time in UTC")
    roles: Any = iam_backends[ACCOUNT]["aws"].roles.values()
    role = next((each for each in roles if each.arn == target["RoleArn"]), None)
    principal = Principal(frozenset([_SERVICE]), kind="Service")
    trust = AccessRequest("sts:AssumeRole", target["RoleArn"], {"aws:sourceaccount": ACCOUNT})
    if role is None or evaluate_policies([role.assume_role_policy_document], trust, principal) != "Allow":
        message = "The execution role you provide must allow AWS EventBridge Scheduler to assume the role."
        raise ValidationException(message)


def install(send: Send) -> None:
    """Add checks to moto's operations, and due schedules to the clock."""
    moto_create, moto_update = EventBridgeSchedulerBackend.create_schedule, EventBridgeSchedulerBackend.update_schedule
    moto_delete_group = EventBridgeSchedulerBackend.delete_schedule_group

    def create_schedule(self: Any, **request: Any) -> Any:
        _require_supported(request)
        self.get_schedule_group(request["group_name"])  # moto fails without a group
        if request["action_after_completion"] != "DELETE":
            raise NotImplementedError("a schedule that remains after its completion")
        return moto_create(self, **request)

    def update_schedule(self: Any, **request: Any) -> Any:
        _require_supported(request)
        return moto_update(self, **request)

    def delete_schedule_group(self: Any, name: str | None) -> None:
        if name not in self.schedule_groups:
            raise ScheduleGroupNotFound(name or "default")
        moto_delete_group(self, name)

    extend(EventBridgeSchedulerBackend, create_schedule, update_schedule, delete_schedule_group)
    CLOCK.add_source(lambda: _due_schedules(send))
