"""One resource at a time, through its handler, in the account of this room's tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rehearsal.adapter.account import Adapter, Subject
from rehearsal.adapter.handler import Call, Handler


class Made:
    """A resource that `create` or `adopt` made; `update` changes its inputs."""

    def __init__(self, account: Adapter, type_: str, *, adopt: str = "", **inputs: Any) -> None:
        self._account, self._type, self.inputs = account, type_, inputs
        handler = self._handler()
        made = handler.adopt(self._call(adopt)) if adopt else handler.create(self._call(""))
        self.id, self.outputs = made

    def update(self, **inputs: Any) -> dict[str, Any]:
        """The inputs from now on are these. None of those that changed would replace it."""
        handler, olds = self._handler(), self.inputs
        changed = {key for key in {*olds, *inputs} if olds.get(key) != inputs.get(key)}
        assert not changed & handler.replaces, f"{changed & handler.replaces} replaces {self._type}"
        self.inputs = inputs
        self._handler()
        found = handler.update(self._call(self.id, olds))
        self.outputs = {**self.outputs, **found}
        return found

    def delete(self) -> None:
        self._account.delete(self._subject(self.id), Path(), lambda line: None)

    def _subject(self, id_: str) -> Subject:
        urn = f"urn:pulumi:s::trainyard::{self._type}::mine"
        return Subject(urn=urn, type=self._type, name="mine", inputs=self.inputs, id=id_)

    def _handler(self) -> Handler:
        return self._account.handler(self._subject(""))

    def _call(self, id_: str, olds: Mapping[str, Any] | None = None) -> Call:
        subject = self._subject(id_)
        return Call(
            aws=self._account.aws,
            urn=subject.urn,
            type=subject.type,
            name=subject.name,
            inputs=subject.inputs,
            root=Path(),
            id=id_,
            olds=olds or {},
        )
