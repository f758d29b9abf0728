# ruff: noqa: N802 - the method names are those of the gRPC protocol
"""A Pulumi resource provider (gRPC) on an emulated account, which the Pulumi CLI attaches instead of pulumi-aws.

PULUMI_DEBUG_PROVIDERS=aws:PORT attaches it. The engine owns the state, the order and the comparison of graphs; this
module implements the provider's side of proto/pulumi/provider.proto of github.com/pulumi/pulumi.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2  # type: ignore[import-untyped]
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, plugin_pb2, provider_pb2, provider_pb2_grpc

from rehearsal.adapter import property_codec
from rehearsal.adapter.account import EmulatedAccount, ResourceRequest
from rehearsal.adapter.errors import AdapterError, UnsupportedInputError
from rehearsal.adapter.handler import autoname
from rehearsal.adapter.input_diff import ChangeKind, diff_inputs, format_path
from rehearsal.adapter.peers import OwnUserOnly
from rehearsal.adapter.refresh import refresh_inputs, supported_inputs

VERSION = "7.51.1"  # version of the pulumi-aws plugin that this provider replaces
DEFAULTS = "__defaults"  # input that lists the names of the inputs that the provider set, as pulumi-aws does
_THREADS = 32
_KINDS = provider_pb2.PropertyDiff.Kind
_KIND_NAMES: dict[ChangeKind, str] = {"add": "ADD", "delete": "DELETE", "update": "UPDATE"}


class Provider(provider_pb2_grpc.ResourceProviderServicer):
    """Serves consecutive runs of the engine; each run starts with Configure, which sets the region.

    `folder`: the program's, in which commands run. In a preview, unknown values stay unknown and nothing is created.
    Secrets are not distinguished here: the engine itself keeps an output secret when its input is secret.
    """

    def __init__(self, folder: Path, region: str) -> None:
        self._folder = folder
        self._region = region
        self._account = EmulatedAccount(region)
        self._engine: Any = None

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        """Return the version of the plugin that this provider replaces."""
        return plugin_pb2.PluginInfo(version=VERSION)

    def GetSchema(self, request: Any, context: Any) -> Any:
        """Return an empty schema: the program's own SDK knows the types."""
        return provider_pb2.GetSchemaResponse(schema="{}")

    def Handshake(self, request: Any, context: Any) -> Any:
        """Accept the engine's handshake without optional features."""
        return provider_pb2.ProviderHandshakeResponse()

    def Attach(self, request: Any, context: Any) -> Any:
        """Connect to the engine, which receives the output of local commands."""
        self._engine = engine_pb2_grpc.EngineStub(grpc.insecure_channel(request.address))
        return empty_pb2.Empty()

    def CheckConfig(self, request: Any, context: Any) -> Any:
        """Accept every provider configuration."""
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Any) -> Any:
        """Replace the provider, and with it every resource, when the region changes."""
        old_config, new_config = property_codec.decode(request.olds), property_codec.decode(request.news)
        if old_config.get("region") == new_config.get("region"):
            return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_SOME, replaces=["region"])

    def Configure(self, request: Any, context: Any) -> Any:
        """Use the configured region."""
        config = property_codec.decode(request.args)
        self._account = EmulatedAccount(str(config.get("region", self._region)))
        return provider_pb2.ConfigureResponse(supportsPreview=True)

    def Check(self, request: Any, context: Any) -> Any:
        """Reject unsupported inputs, and set the physical name where the program sets none.

        A name that an earlier Check set is kept; otherwise the name is new.
        """
        with _reporting_errors(context):
            old_inputs, new_inputs = property_codec.decode(request.olds), property_codec.decode(request.news)
            new_inputs.pop(DEFAULTS, None)
            resource = _resource_request(request, new_inputs)
            try:
                name_input = self._account.handler(resource).name_input
            except UnsupportedInputError as error:
                failure = provider_pb2.CheckFailure(reason=str(error))
                return provider_pb2.CheckResponse(inputs=request.news, failures=[failure])
            defaults = {}
            if name_input and name_input not in new_inputs:
                kept = old_inputs.get(name_input) if name_input in old_inputs.get(DEFAULTS, []) else None
                defaults = {name_input: kept or autoname(resource.name)}
            inputs = {**new_inputs, **defaults, DEFAULTS: sorted(defaults)}
            return provider_pb2.CheckResponse(inputs=property_codec.encode(inputs))

    def Diff(self, request: Any, context: Any) -> Any:
        """Return the inputs that differ, and those whose change replaces the resource.

        The replacement is created before the old resource is deleted, unless both have the same name from the program.
        """
        with _reporting_errors(context):
            old_inputs, new_inputs = property_codec.decode(request.old_inputs), property_codec.decode(request.news)
            old_inputs.pop(DEFAULTS, None)
            defaults = new_inputs.pop(DEFAULTS, [])
            handler = self._account.handler(_resource_request(request, new_inputs))
            differences = diff_inputs(old_inputs, new_inputs)
            replacing = {path for path in differences if handler.requires_replacement(path, old_inputs, new_inputs)}
            name = new_inputs.get(handler.name_input)
            same_name = (
                name is not None and name == old_inputs.get(handler.name_input) and handler.name_input not in defaults
            )
            return provider_pb2.DiffResponse(
                changes=provider_pb2.DiffResponse.DIFF_SOME if differences else provider_pb2.DiffResponse.DIFF_NONE,
                diffs=sorted({str(path[0]) for path in differences}),
                replaces=sorted({format_path(path) for path in replacing}),
                deleteBeforeReplace=bool(replacing) and same_name,
                detailedDiff={
                    format_path(path): provider_pb2.PropertyDiff(
                        kind=_KINDS.Value(_KIND_NAMES[kind] + ("_REPLACE" if path in replacing else "")), inputDiff=True
                    )
                    for path, kind in differences.items()
                },
                hasDetailedDiff=True,
            )

    def Create(self, request: Any, context: Any) -> Any:
        """Create a resource; in a preview, only check its inputs."""
        with _reporting_errors(context):
            resource = _resource_request(request, property_codec.decode(request.properties))
            if request.preview:
                self._account.handler(resource)
                return provider_pb2.CreateResponse(properties=property_codec.encode(resource.inputs))
            resource_id, outputs = self._account.create(resource, self._folder, self._output_reporter(resource))
            properties = property_codec.encode({**resource.inputs, **outputs})
            return provider_pb2.CreateResponse(id=resource_id, properties=properties)

    def Read(self, request: Any, context: Any) -> Any:
        """Return the current state of a resource, for an import or a refresh. A resource without an id is deleted."""
        with _reporting_errors(context):
            inputs, outputs = property_codec.decode(request.inputs), property_codec.decode(request.properties)
            resource = _resource_request(request, inputs, id=request.id, outputs=outputs)
            current = self._account.read(resource, self._folder)
            if current is None:
                return provider_pb2.ReadResponse()
            handler = self._account.handler(resource)
            if inputs:
                refreshed = refresh_inputs(handler.keys, resource.inputs, current.inputs, handler.unreported)
            else:
                refreshed = supported_inputs(handler.keys, current.inputs)
            return provider_pb2.ReadResponse(
                id=request.id,
                properties=property_codec.encode({**outputs, **refreshed, **current.outputs}),
                inputs=property_codec.encode({**refreshed, DEFAULTS: inputs.get(DEFAULTS, [])}),
            )

    def Update(self, request: Any, context: Any) -> Any:
        """Update a resource; in a preview, return its state with the outputs that the update changes left unknown."""
        with _reporting_errors(context):
            state, old_inputs = property_codec.decode(request.olds), property_codec.decode(request.old_inputs)
            resource = _resource_request(
                request,
                property_codec.decode(request.news),
                id=request.id,
                outputs=state,
                old_inputs=_without_defaults(old_inputs),
            )
            outputs = {key: value for key, value in state.items() if key not in old_inputs}
            if request.preview:
                changed_keys = {str(path[0]) for path in diff_inputs(_without_defaults(old_inputs), resource.inputs)}
                unknown = self._account.handler(resource).outputs_changed_by(changed_keys)
                known = {key: value for key, value in outputs.items() if key not in unknown}
                return provider_pb2.UpdateResponse(properties=property_codec.encode({**known, **resource.inputs}))
            changed = self._account.update(resource, self._folder, self._output_reporter(resource))
            properties = property_codec.encode({**outputs, **resource.inputs, **changed})
            return provider_pb2.UpdateResponse(properties=properties)

    def Delete(self, request: Any, context: Any) -> Any:
        """Delete a resource."""
        with _reporting_errors(context):
            outputs = property_codec.decode(request.properties)
            old_inputs = property_codec.decode(request.old_inputs)
            resource = _resource_request(request, old_inputs, id=request.id, outputs=outputs)
            self._account.delete(resource, self._folder, self._output_reporter(resource))
            return empty_pb2.Empty()

    def Invoke(self, request: Any, context: Any) -> Any:
        """Return the result of a provider function."""
        with _reporting_errors(context):
            result = self._account.invoke(request.tok, property_codec.decode(request.args))
            return provider_pb2.InvokeResponse(**{"return": property_codec.encode(result)})

    def Cancel(self, request: Any, context: Any) -> Any:
        """Stop the local commands that are running."""
        self._account.stop()
        return empty_pb2.Empty()

    def _output_reporter(self, resource: ResourceRequest) -> Callable[[str], None]:
        """Return a function that sends a line of output to the engine, which displays it next to the resource."""

        def report(line: str) -> None:
            if self._engine is not None:
                self._engine.Log(
                    engine_pb2.LogRequest(severity=engine_pb2.INFO, message=line, urn=resource.urn, ephemeral=True)
                )

        return report


def _resource_request(request: Any, inputs: Mapping[str, Any], **fields: Any) -> ResourceRequest:
    types, _, name = request.urn.split("::", 2)[2].partition("::")
    type_ = types.rpartition("$")[2]
    return ResourceRequest(urn=request.urn, type=type_, name=name, inputs=_without_defaults(inputs), **fields)


def _without_defaults(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in inputs.items() if key != DEFAULTS}


@contextmanager
def _reporting_errors(context: Any) -> Iterator[None]:
    """Send an error to the engine as one message. The adapter's own errors already name the resource."""
    try:
        yield
    except AdapterError as error:
        context.abort(grpc.StatusCode.UNKNOWN, str(error))
    except Exception as error:
        context.abort(grpc.StatusCode.UNKNOWN, f"internal error of the adapter: {type(error).__name__}: {error}")


@contextmanager
def serve_provider(provider: Provider) -> Iterator[int]:
    """Serve the provider to the current user on a free loopback port, and yield the port.

    At exit, wait for the requests in progress.
    """
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="provider")
    own_user_only = OwnUserOnly()
    server = grpc.server(pool, interceptors=[own_user_only], options=[("grpc.max_receive_message_length", -1)])
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server)
    port: int = server.add_insecure_port("127.0.0.1:0")
    own_user_only.port = port
    server.start()
    try:
        yield port
    finally:
        server.stop(grace=None).wait()
        pool.shutdown()
