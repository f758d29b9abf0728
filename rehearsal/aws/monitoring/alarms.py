"""Alarm actions: a state change is published to the alarm's SNS topics, or the alarm history records why not.

Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Notify_Users_Alarm_Changes.html
"""

import json
from typing import Any

from moto.cloudwatch.models import CloudWatchBackend
from moto.cloudwatch.responses import CloudWatchResponse
from moto.core.responses import ActionResult
from moto.sns.models import sns_backends

from rehearsal.aws.clock import CLOCK
from rehearsal.aws.monitoring.sns import publish_denial_reason
from rehearsal.aws.moto_extension import extend

_SERVICE = "cloudwatch.amazonaws.com"
_ACTIONS = {"ALARM": "alarm_actions", "OK": "ok_actions", "INSUFFICIENT_DATA": "insufficient_data_actions"}


def install() -> None:
    """Extend moto, whose alarms have no actions, lose their state on an update, and keep their tags after deletion."""
    moto_put, moto_set_state, moto_delete = (
        CloudWatchBackend.put_metric_alarm,
        CloudWatchBackend.set_alarm_state,
        CloudWatchBackend.delete_alarms,
    )

    def put_metric_alarm(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        existing: Any = self.alarms.get(name)
        if existing is not None:
            kwargs.pop("tags", None)  # PutMetricAlarm ignores the tags of an existing alarm
        alarm: Any = moto_put(self, name, *args, **kwargs)
        alarm.action_history = existing.action_history if existing is not None else []
        if existing is not None:
            alarm.state_value, alarm.state_reason = existing.state_value, existing.state_reason
            alarm.state_updated_timestamp = existing.state_updated_timestamp
        return alarm

    def set_alarm_state(self: Any, alarm_name: str, reason: str, reason_data: str, state_value: str) -> None:
        previous_state = self.alarms[alarm_name].state_value if alarm_name in self.alarms else None
        moto_set_state(self, alarm_name, reason, reason_data, state_value)
        alarm = self.alarms[alarm_name]
        if previous_state != state_value and alarm.actions_enabled:
            for action in getattr(alarm, _ACTIONS[state_value]):
                alarm.action_history.append({"Timestamp": CLOCK.utc(), **_execute_action(alarm, action, reason)})

    def delete_alarms(self: Any, alarm_names: list[str]) -> None:
        for name in alarm_names:
            if name in self.alarms:
                self.tagger.delete_all_tags_for_resource(self.alarms[name].alarm_arn)
        moto_delete(self, alarm_names)

    extend(CloudWatchBackend, put_metric_alarm, set_alarm_state, delete_alarms)
    extend(CloudWatchResponse, describe_alarm_history)


def _execute_action(alarm: Any, action: str, reason: str) -> dict[str, str]:
    if not action.startswith("arn:aws:sns:"):
        raise NotImplementedError(f"the alarm action {action}")
    topics = sns_backends[action.split(":")[4]][action.split(":")[3]]
    denial_reason = publish_denial_reason(topics, action, _SERVICE, alarm.alarm_arn)
    if denial_reason:
        error = f"CloudWatch Alarms {denial_reason}."
        return {"HistorySummary": f"Failed to execute action {action}. Received error: {error}"}
    message = {"AlarmName": alarm.name, "NewStateValue": alarm.state_value, "NewStateReason": reason}
    topics.topics[action].publish(json.dumps(message), subject=f'{alarm.state_value}: "{alarm.name}"')
    return {"HistorySummary": f"Successfully executed action {action}"}


def describe_alarm_history(self: Any) -> ActionResult:
    """Return the history of actions; other history is not recorded."""
    if self._get_param("HistoryItemType") not in (None, "Action"):
        raise NotImplementedError(f"DescribeAlarmHistory with HistoryItemType {self._get_param('HistoryItemType')}")
    alarm_name = self._get_param("AlarmName")
    items = [
        {"AlarmName": alarm.name, "AlarmType": "MetricAlarm", "HistoryItemType": "Action", **item}
        for alarm in self.cloudwatch_backend.alarms.values()
        if alarm_name in (None, alarm.name)
        for item in reversed(alarm.action_history)
    ]
    return ActionResult({"AlarmHistoryItems": items})
