"""Alarms act: a new state is published to the alarm's topics, or its history says why not.

Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Notify_Users_Alarm_Changes.html
"""

import json
from typing import Any

from moto.cloudwatch.models import CloudWatchBackend
from moto.cloudwatch.responses import CloudWatchResponse
from moto.core.responses import ActionResult
from moto.sns.models import sns_backends

from rehearsal.aws.clock import CLOCK
from rehearsal.aws.extension import extend
from rehearsal.aws.monitoring.sns import why_unheard

_SERVICE = "cloudwatch.amazonaws.com"
_ACTIONS = {"ALARM": "alarm_actions", "OK": "ok_actions", "INSUFFICIENT_DATA": "insufficient_data_actions"}


def install() -> None:
    """moto's alarms tell nobody of their state; a changed one loses it, and a deleted one's tags stay."""
    put, turn, drop = (
        CloudWatchBackend.put_metric_alarm,
        CloudWatchBackend.set_alarm_state,
        CloudWatchBackend.delete_alarms,
    )

    def put_metric_alarm(self: Any, name: str, *args: Any, **given: Any) -> Any:
        before: Any = self.alarms.get(name)
        if before is not None:
            given.pop("tags", None)  # of an alarm that is there they are ignored
        made: Any = put(self, name, *args, **given)
        made.acted = before.acted if before is not None else []
        if before is not None:
            made.state_value, made.state_reason = before.state_value, before.state_reason
            made.state_updated_timestamp = before.state_updated_timestamp
        return made

    def set_alarm_state(self: Any, alarm_name: str, reason: str, reason_data: str, state_value: str) -> None:
        before = self.alarms[alarm_name].state_value if alarm_name in self.alarms else None
        turn(self, alarm_name, reason, reason_data, state_value)
        alarm = self.alarms[alarm_name]
        if before != state_value and alarm.actions_enabled:
            for action in getattr(alarm, _ACTIONS[state_value]):
                alarm.acted.append({"Timestamp": CLOCK.utc(), **_act(alarm, action, reason)})

    def delete_alarms(self: Any, alarm_names: list[str]) -> None:
        for name in alarm_names:
            if name in self.alarms:
                self.tagger.delete_all_tags_for_resource(self.alarms[name].alarm_arn)
        drop(self, alarm_names)

    extend(CloudWatchBackend, put_metric_alarm, set_alarm_state, delete_alarms)
    extend(CloudWatchResponse, describe_alarm_history)


def _act(alarm: Any, action: str, reason: str) -> dict[str, str]:
    if not action.startswith("arn:aws:sns:"):
        raise NotImplementedError(f"the alarm action {action}")
    topics = sns_backends[action.split(":")[4]][action.split(":")[3]]
    why = why_unheard(topics, action, _SERVICE, alarm.alarm_arn)
    if why:
        return {"HistorySummary": f"Failed to execute action {action}. Received error: CloudWatch Alarms {why}."}
    told = {"AlarmName": alarm.name, "NewStateValue": alarm.state_value, "NewStateReason": reason}
    topics.topics[action].publish(json.dumps(told), subject=f'{alarm.state_value}: "{alarm.name}"')
    return {"HistorySummary": f"Successfully executed action {action}"}


def describe_alarm_history(self: Any) -> ActionResult:
    """Of actions only: nothing else is kept."""
    if self._get_param("HistoryItemType") not in (None, "Action"):
        raise NotImplementedError(f"an alarm's history of {self._get_param('HistoryItemType')}")
    wanted = self._get_param("AlarmName")
    items = [
        {"AlarmName": alarm.name, "AlarmType": "MetricAlarm", "HistoryItemType": "Action", **item}
        for alarm in self.cloudwatch_backend.alarms.values()
        if wanted in (None, alarm.name)
        for item in reversed(alarm.acted)
    ]
    return ActionResult({"AlarmHistoryItems": items})
