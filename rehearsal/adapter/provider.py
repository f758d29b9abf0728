"""The front on the real engine: a resource provider that the Pulumi CLI attaches in place of its own plugin.

PULUMI_DEBUG_PROVIDERS=aws:PORT names it. State, difference of graphs and order are the engine's; here stands what a
provider must answer (proto/pulumi/provider.proto of github.com/pulumi/pulumi).
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2  # type: ignore[import-untyped]
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, plugin_pb2, provider_pb2, provider_pb2_grpc

from rehearsal.adapter import wire
from rehearsal.adapter.account import Adapter, Subject
from rehearsal.adapter.changes import Kind, changes, shown
from rehearsal.adapter.errors import AdapterError, UnknownKey
from rehearsal.adapter.handler import autoname

VERSION = "7.51.1"  # of the pulumi-aws whose place it takes
DEFAULTS = "__defaults"  # among inputs: names of those that the provider filled in, as pulumi-aws keeps it
_THREADS = 32
_KINDS = provider_pb2.PropertyDiff.Kind
_KIND_NAMES: dict[Kind, str] = {"add": "ADD", "delete": "DELETE", "update": "UPDATE"}


class Provider(provider_pb2_grpc.ResourceProviderServicer):
    """Serves one run of the engine after another; each begins with Configure, which names the region.

    `root` is the tree whose program runs. What a preview does not know yet stays unknown; nothing is made then.
    Secrets are not told apart here: the engine itself keeps an output secret whose input was.
    """

    def __init__(self, root: Path, region: str) -> None:
        self._root = root
        self._region = region
        self._account = Adapter(region)
        self._engine: Any = None

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        return plugin_pb2.PluginInfo(version=VERSION)

    def GetSchema(self, request: Any, context: Any) -> Any:
        return provider_pb2.GetSchemaResponse(schema="{}")  # the program's own SDK knows the types

    def Handshake(self, request: Any, context: Any) -> Any:
        return provider_pb2.ProviderHandshakeResponse()

    def Attach(self, request: Any, context: Any) -> Any:
        self._engine = engine_pb2_grpc.EngineStub(grpc.insecure_channel(request.address))
        return empty_pb2.Empty()

    def CheckConfig(self, request: Any, context: Any) -> Any:
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Any) -> Any:
        """Another region is another provider, and all that it made is made anew there."""
        olds, news = wire.read(request.olds), wire.read(request.news)
        if olds.get("region") == news.get("region"):
            return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_SOME, replaces=["region"])

    def Configure(self, request: Any, context: Any) -> Any:
        self._account = Adapter(str(wire.read(request.args).get("region", self._region)))
        return provider_pb2.ConfigureResponse(supportsPreview=True)

    def Check(self, request: Any, context: Any) -> Any:
        """Refuses an unknown input, and fills in the name: that of before, if it was filled in, else a new one."""
        with _answering(context):
            olds, news = wire.read(request.olds), wire.read(request.news)
            news.pop(DEFAULTS, None)
            subject = _subject(request, news)
            try:
                named = self._account.handler(subject).named
            except UnknownKey as error:
                failure = provider_pb2.CheckFailure(reason=str(error))
                return provider_pb2.CheckResponse(inputs=request.news, failures=[failure])
            filled = {}
            if named and named not in news:
                kept = olds.get(named) if named in olds.get(DEFAULTS, []) else None
                filled = {named: kept or autoname(subject.name)}
            return provider_pb2.CheckResponse(inputs=wire.write({**news, **filled, DEFAULTS: sorted(filled)}))

    def Diff(self, request: Any, context: Any) -> Any:
        """Another resource goes up before this one goes, unless a name of the user's own would be taken twice."""
        with _answering(context):
            olds, news = wire.read(request.old_inputs), wire.read(request.news)
            olds.pop(DEFAULTS, None)
            filled = news.pop(DEFAULTS, [])
            subject = _subject(request, news)
            handler = self._account.handler(subject)
            found = changes(olds, news)
            forcing = {path for path in found if handler.forces(path, olds, news)}
            name = news.get(handler.named)
            fixed = name is not None and name == olds.get(handler.named) and handler.named not in filled
            return provider_pb2.DiffResponse(
                changes=provider_pb2.DiffResponse.DIFF_SOME if found else provider_pb2.DiffResponse.DIFF_NONE,
                diffs=sorted({str(path[0]) for path in found}),
                replaces=sorted({shown(path) for path in forcing}),
                deleteBeforeReplace=bool(forcing) and fixed,
                detailedDiff={
                    shown(path): provider_pb2.PropertyDiff(
                        kind=_KINDS.Value(_KIND_NAMES[kind] + ("_REPLACE" if path in forcing else "")), inputDiff=True
                    )
                    for path, kind in found.items()
                },
                hasDetailedDiff=True,
            )

    def Create(self, request: Any, context: Any) -> Any:
        with _answering(context):
            subject = _subject(request, wire.read(request.properties))
            if request.preview:
                self._account.handler(subject)
                return provider_pb2.CreateResponse(properties=wire.write(subject.inputs))
            made, outputs = self._account.create(subject, self._root, self._say(subject))
            return provider_pb2.CreateResponse(id=made, properties=wire.write({**subject.inputs, **outputs}))

    def Read(self, request: Any, context: Any) -> Any:
        """For an import, and for a refresh of the types that can be adopted."""
        with _answering(context):
            found = self._account.read(_subject(request, {}, id=request.id), self._root)
            if found is None:
                return provider_pb2.ReadResponse()
            return provider_pb2.ReadResponse(
                id=request.id,
                properties=wire.write({**found.inputs, **found.outputs}),
                inputs=wire.write({**found.inputs, DEFAULTS: wire.read(request.inputs).get(DEFAULTS, [])}),
            )

    def Update(self, request: Any, context: Any) -> Any:
        with _answering(context):
            before, olds = wire.read(request.olds), wire.read(request.old_inputs)
            news = wire.read(request.news)
            subject = _subject(request, news, id=request.id, outputs=before, olds=_own(olds))
            computed = {key: value for key, value in before.items() if key not in olds}
            if request.preview:
                changed_keys = {str(path[0]) for path in changes(_own(olds), subject.inputs)}
                anew = self._account.handler(subject).anew(changed_keys)
                known = {key: value for key, value in computed.items() if key not in anew}
                return provider_pb2.UpdateResponse(properties=wire.write({**known, **subject.inputs}))
            changed = self._account.update(subject, self._root, self._say(subject))
            return provider_pb2.UpdateResponse(properties=wire.write({**computed, **subject.inputs, **changed}))

    def Delete(self, request: Any, context: Any) -> Any:
        with _answering(context):
            outputs = wire.read(request.properties)
            subject = _subject(request, wire.read(request.old_inputs), id=request.id, outputs=outputs)
            self._account.delete(subject, self._root, self._say(subject))
            return empty_pb2.Empty()

    def Invoke(self, request: Any, context: Any) -> Any:
        with _answering(context):
            answer = self._account.look_up(request.tok, wire.read(request.args))
            return provider_pb2.InvokeResponse(**{"return": wire.write(answer)})

    def Cancel(self, request: Any, context: Any) -> Any:
        self._account.stop()
        return empty_pb2.Empty()

    def _say(self, subject: Subject) -> Callable[[str], None]:
        """Lines that the engine shows beside the resource while it is being made."""

        def say(line: str) -> None:
            if self._engine is not None:
                self._engine.Log(
                    engine_pb2.LogRequest(severity=engine_pb2.INFO, message=line, urn=subject.urn, ephemeral=True)
                )

        return say


def _subject(request: Any, inputs: Mapping[str, Any], **more: Any) -> Subject:
    types, _, name = request.urn.split("::", 2)[2].partition("::")
    return Subject(urn=request.urn, type=types.rpartition("$")[2], name=name, inputs=_own(inputs), **more)


def _own(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in inputs.items() if key != DEFAULTS}


@contextmanager
def _answering(context: Any) -> Iterator[None]:
    """Whatever breaks is the engine's to tell, in one message; ours name the resource already."""
    try:
        yield
    except AdapterError as error:
        context.abort(grpc.StatusCode.UNKNOWN, str(error))
    except Exception as error:
        context.abort(grpc.StatusCode.UNKNOWN, f"the adapter broke: {type(error).__name__}: {error}")


@contextmanager
def serving(provider: Provider) -> Iterator[int]:
    """Serve it on a free port of the loopback, which is given; left, it ends once what is under way is done."""
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="provider")
    server = grpc.server(pool, options=[("grpc.max_receive_message_length", -1)])
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server)
    port: int = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(grace=None).wait()
        pool.shutdown()
