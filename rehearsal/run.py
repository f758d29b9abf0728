"""Runs one rehearsal from the settings check to the report."""

from contextlib import ExitStack

from rehearsal.adapter.mocks import UpError
from rehearsal.aws.process import EmulatedAws
from rehearsal.context import Context
from rehearsal.disk_reserve import DiskReserve
from rehearsal.display import Display
from rehearsal.engine.base import Engine
from rehearsal.engine.registry import ENGINES
from rehearsal.faults import format_fault
from rehearsal.hypervisor.backend import Backend
from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.hypervisor.processes import find_processes
from rehearsal.hypervisor.registry import BACKENDS, check_account_addresses
from rehearsal.interrupts import INTERRUPTED, Interrupts
from rehearsal.kept.hold import Hold
from rehearsal.locks import address_block, stack_lock
from rehearsal.phases import PhaseClock
from rehearsal.preflight import check_machine
from rehearsal.profiles import profile_faults, profile_substitution, profile_timing
from rehearsal.result import RehearsalResult
from rehearsal.run_faults.job import RunFault
from rehearsal.run_progress import FollowError
from rehearsal.seed import create_existing_resources, quota_codes
from rehearsal.sources import folder_bytes, provide_sources
from rehearsal.stages import Stages
from rehearsal.teardown import Teardown
from rehearsal.timeline import Span, Timeline
from rehearsal.workspace import (
    DEFAULT_REGION,
    Options,
    attached_account,
    aws_environment,
    clear_folder,
    mark_child_processes,
    prepare_folder,
    read_stack,
)
from trainyard.config.settings import StackSettings
from trainyard.errors import InputError
from trainyard.models.report import Report, Substitution

COMMAND_ERROR = "trainyard: "  # prefix of the error message of a command, the last of its output


def rehearse(options: Options, display: Display, interrupts: Interrupts) -> tuple[Report, Timeline]:
    """Run the rehearsal. Returns its report and the timeline for the HTML page.

    Raises InputError for invalid input, before any resource is created.
    """
    clock = PhaseClock("account")
    config, settings, substitutions = read_stack(options)
    result = RehearsalResult(substitutions=substitutions)
    with ExitStack() as stack:
        account = attached_account()
        if account is not None:
            check_account_addresses(options.backend, account)
            display.print_line("account", f"uses the emulated AWS at {account.endpoint} (AWS_ENDPOINT_URL)")
        source_bytes = sum(map(folder_bytes, (options.sources.data, options.sources.model)))
        check_machine(options.folder, options.project.folder, settings, options.backend, source_bytes)
        addresses = stack.enter_context(address_block()) if options.backend == "process" else None
        killed_process = stack.enter_context(stack_lock(options.folder, options.stack))
        interrupts.require_cleanup(
            f"interrupted twice, exits without destroy: the next rehearsal of {options.stack} removes the leftovers"
        )
        try:
            with interrupts.raising_interrupts():
                prepare_folder(options.folder, display, killed_process)
                disk_reserve = stack.enter_context(DiskReserve(options.folder))
                stack.enter_context(mark_child_processes(options.folder))
                region = str(config.get("aws:region", DEFAULT_REGION))
                aws = stack.enter_context(account or EmulatedAws.start(options.folder / "aws", addresses, region))
                stack.enter_context(aws_environment(aws.environment()))
                substitutions += _prepare_account(aws, options, settings, display, is_shared=account is not None)
                for provided in provide_sources(options.sources, settings, config, options.stack, options.project):
                    display.print_line("account", f"{provided.original}: uploaded {provided.replacement}")
                    substitutions.append(provided)
            context = Context(options, config, settings, aws, display, clock, result, interrupts, disk_reserve)
            with ENGINES[options.engine](context) as engine:
                run_with_backend(context, engine)
        except KeyboardInterrupt:
            display.print_line("failed", INTERRUPTED)
        except InputError:
            clear_folder(options.folder)  # the program's lookups had to start an account to find this
            raise
        except Exception as error:
            message = str(error) if isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}"
            result.errors.append(message)
            display.print_line("failed", message)
    if interrupts.received:
        result.errors.insert(0, INTERRUPTED)
    return _report(options, settings, result, clock)


def _prepare_account(
    aws: EmulatedAws, options: Options, settings: StackSettings, display: Display, is_shared: bool
) -> list[Substitution]:
    """Set the profile of the account, and create what the stack expects to exist; return the substitutions."""
    if not is_shared:
        aws.set_timing(profile_timing(options.profile))
        aws.inject(*profile_faults(options.profile))
    # A shared account has the durations that it was started with: none.
    substitutions = [profile_substitution("instant" if is_shared else options.profile)]
    quotas = None if is_shared else quota_codes(settings, options.bake)
    for name in create_existing_resources(aws, settings, quotas, options.faults):
        display.print_line("account", f"{name} exists, as the stack expects")
        substitutions.append(
            Substitution(
                original=f"{name} in the real account",
                replacement="a resource created to match the stack",
                reason="only a preview on AWS can check that it exists",
            )
        )
    return substitutions


def _report(
    options: Options, settings: StackSettings, result: RehearsalResult, clock: PhaseClock
) -> tuple[Report, Timeline]:
    """Return the report and its timeline, with an error for processes that are still running."""
    if processes := find_processes(options.folder):
        result.errors.append(f"processes are still running: {[process.pid for process in processes]}")
    phases, per_node = clock.finish(), settings.processes_per_node
    report = result.build_report(options.stack, options.engine, options.backend, per_node, phases)
    result.timeline.phases = [Span(name=name, start=start, end=end) for name, (start, end) in clock.spans.items()]
    return report, result.timeline


def run_with_backend(context: Context, engine: Engine) -> None:
    """Run all stages with the backend of the options.

    Exceptions become errors of the report. Raises InputError only for problems that the Pulumi program's lookups find
    in the preview, before any resource is created.
    """

    def log(text: str) -> None:
        context.display.print_line("nodes", text)

    with BACKENDS[context.options.backend](context.options.folder, log) as backend:
        run_stages(context, engine, backend)


def run_all(stages: Stages, engine: Engine, hypervisor: Hypervisor) -> None:
    """Run all stages; bake an image only with the option --bake."""
    stages.reserve()
    stages.preview(engine)
    stages.deploy(engine)
    stages.train(hypervisor)
    stages.collect_results()
    if stages.context.options.bake:
        stages.bake_image()


def run_stages(context: Context, engine: Engine, backend: Backend) -> None:
    """Run all stages, or the preview only; then destroy and audit in any case."""
    teardown, stages = Teardown(context, backend, engine), Stages(context)
    context.aws.inject(*context.options.faults)
    for scheduled in context.options.run_faults:
        if isinstance(scheduled.fault, RunFault):
            scheduled.fault.prepare(backend)
    active = context.aws.faults()
    context.result.faults = tuple(map(format_fault, (*active, *context.options.run_faults)))
    of_profile = profile_faults(context.options.profile)  # the report has them
    for fault in (*(fault for fault in active if fault not in of_profile), *context.options.run_faults):
        context.display.print_line("fault", format_fault(fault))

    def stop_engine(text: str) -> None:
        context.display.print_line("nodes", text)
        engine.stop()  # otherwise the launch waits for nodes that the failed hypervisor does not boot

    with Hypervisor(context.aws, backend, context.options.stack_tag, stop_engine) as hypervisor:
        try:
            with context.interrupts.raising_interrupts():
                if context.options.preview_only:
                    stages.preview(engine)
                else:
                    run_all(stages, engine, hypervisor)
                    if context.options.keep is not None:
                        Hold(context, engine, hypervisor).run(teardown)
        except KeyboardInterrupt:
            context.display.print_line("failed", INTERRUPTED)
            teardown.save_node_logs()
        except UpError as error:
            _, prefix, message = str(error).rpartition(COMMAND_ERROR)
            if hypervisor.failure or not prefix:
                context.add_error(hypervisor.failure or str(error))
            else:  # of the launch, whose output is already on the terminal
                context.add_error(message, "the launch failed with the error above")
            teardown.save_node_logs()
        except Exception as error:
            if isinstance(error, InputError) and not stages.is_previewed:
                raise
            has_message = isinstance(error, FollowError | RuntimeError | InputError)
            context.add_error(str(error) if has_message else f"{type(error).__name__}: {error}")
            teardown.save_node_logs()
        finally:
            with context.recording_errors("destroy failed"):
                teardown.destroy(hypervisor)
            with context.recording_errors("cannot release the reserved capacity"):
                stages.release()
    with context.recording_errors("cannot audit the account"):
        teardown.audit_account()
