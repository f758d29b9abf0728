"""Schedule groups of EventBridge Scheduler."""

from typing import Any

from rehearsal.adapter.handler import CreateResult, Handler, HandlerCall, ReadResult, input_keys
from rehearsal.adapter.refresh import tag_dict
from rehearsal.adapter.tagging import update_tags


class ScheduleGroup(Handler):
    """A schedule group. Its deletion deletes its schedules."""

    type = "aws:scheduler/scheduleGroup:ScheduleGroup"
    keys = input_keys("name", "tags")
    name_input = "name"
    replace_on_changes = frozenset(["name"])

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the schedule group."""
        name = self.physical_name(call)
        arn = call.aws.client("scheduler").create_schedule_group(Name=name, Tags=call.tags)["ScheduleGroupArn"]
        return name, {"name": name, "arn": arn}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the tags."""
        scheduler, arn = call.aws.client("scheduler"), self._arn(call)
        update_tags(call, scheduler.tag_resource, scheduler.untag_resource, ResourceArn=arn)
        return {"name": call.id, "arn": arn}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        tags = call.aws.client("scheduler").list_tags_for_resource(ResourceArn=self._arn(call))["Tags"]
        return ReadResult(inputs={"name": call.id, "tags": tag_dict(tags)})

    def delete(self, call: HandlerCall) -> None:
        """Delete the schedule group."""
        call.aws.client("scheduler").delete_schedule_group(Name=call.id)

    def _arn(self, call: HandlerCall) -> str:
        return str(call.aws.client("scheduler").get_schedule_group(Name=call.id)["Arn"])


HANDLERS = (ScheduleGroup(),)
