"""A single resource under test, created through its handler in the tests' account."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rehearsal.adapter.account import EmulatedAccount, ResourceRequest
from rehearsal.adapter.handler import Handler, HandlerCall


class ManagedResource:
    """A resource that is created or imported on construction. `update` changes its inputs."""

    def __init__(self, account: EmulatedAccount, type_: str, *, import_id: str = "", **inputs: Any) -> None:
        self._account, self._type, self.inputs = account, type_, inputs
        handler = self._handler()
        created = handler.import_resource(self._call(import_id)) if import_id else handler.create(self._call(""))
        self.id, self.outputs = created

    def update(self, **inputs: Any) -> dict[str, Any]:
        """Replace the inputs and return the changed outputs. No changed input may require a replacement."""
        handler, old_inputs = self._handler(), self.inputs
        changed = {key for key in {*old_inputs, *inputs} if old_inputs.get(key) != inputs.get(key)}
        assert not changed & handler.replace_on_changes, f"{changed & handler.replace_on_changes} replaces {self._type}"
        self.inputs = inputs
        self._handler()
        outputs = handler.update(self._call(self.id, old_inputs))
        self.outputs = {**self.outputs, **outputs}
        return outputs

    def delete(self) -> None:
        self._account.delete(self._request(self.id), Path(), lambda line: None)

    def _request(self, id_: str) -> ResourceRequest:
        urn = f"urn:pulumi:s::trainyard::{self._type}::example"
        return ResourceRequest(urn=urn, type=self._type, name="example", inputs=self.inputs, id=id_)

    def _handler(self) -> Handler:
        return self._account.handler(self._request(""))

    def _call(self, id_: str, old_inputs: Mapping[str, Any] | None = None) -> HandlerCall:
        request = self._request(id_)
        return HandlerCall(
            aws=self._account.aws,
            urn=request.urn,
            type=request.type,
            name=request.name,
            inputs=request.inputs,
            folder=Path(),
            id=id_,
            old_inputs=old_inputs or {},
        )
