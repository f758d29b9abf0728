"""One rehearsal, top to bottom: the ground, the road, the clearing, the report."""

from contextlib import ExitStack

from rehearsal.adapter.mocks import UpFailed
from rehearsal.aws.process import EmulatedAws
from rehearsal.context import Scene
from rehearsal.disk_reserve import Reserve
from rehearsal.display import Show
from rehearsal.engine.base import Engine
from rehearsal.engine.registry import ENGINES
from rehearsal.faults import spec_of
from rehearsal.hypervisor.backend import Backend
from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.hypervisor.processes import marked
from rehearsal.hypervisor.registry import BACKENDS, suits
from rehearsal.interrupts import INTERRUPTED, Interrupts
from rehearsal.locks import address_block, stack_lock
from rehearsal.phases import PhaseClock
from rehearsal.preflight import check_machine
from rehearsal.result import Findings
from rehearsal.run_progress import FollowError
from rehearsal.seed import prepare
from rehearsal.stages import Road
from rehearsal.teardown import Clearing
from rehearsal.timeline import Span, Story
from rehearsal.workspace import Options, empty, environment, given_account, marking, prepare_folder, read_stack
from trainyard.base import InputError
from trainyard.models.report import Report, Scaled


def rehearse(options: Options, show: Show, interrupts: Interrupts) -> tuple[Report, Story]:
    """Run the whole road: its report, and what the page tells beside it.

    Raises InputError for what the user can mend, before anything is made.
    """
    clock = PhaseClock("account")
    config, settings, scaled = read_stack(options)
    found = Findings(scaled=scaled)
    with ExitStack() as stack:
        account = given_account()
        if account is not None:
            suits(options.backend, account)
            show.line("account", f"the one at {account.endpoint} (AWS_ENDPOINT_URL), which stays")
        check_machine(options.folder, options.root, settings, options.backend)
        addresses = stack.enter_context(address_block()) if options.backend == "process" else None
        cut = stack.enter_context(stack_lock(options.folder, options.stack))
        interrupts.keep(f"interrupted again, cut: the next rehearsal of {options.stack} sweeps up what is left")
        try:
            with interrupts.raised():
                prepare_folder(options.folder, show, cut)
                reserve = stack.enter_context(Reserve(options.folder))
                stack.enter_context(marking(options.folder))
                region = str(config.get("aws:region", "us-east-1"))
                aws = stack.enter_context(account or EmulatedAws.start(options.folder / "aws", addresses, region))
                stack.enter_context(environment(aws.environment()))
                for name in prepare(aws, settings):
                    show.line("account", f"{name}: put there, as the stack says that it exists")
                    by, why = "one made to suit the stack", "only the preview on AWS sees whether it is there"
                    scaled.append(Scaled(what=f"{name} as the account has it", by=by, why=why))
            scene = Scene(options, config, settings, aws, show, clock, found, interrupts, reserve)
            with ENGINES[options.engine](scene) as engine:
                go(scene, engine)
        except KeyboardInterrupt:
            show.line("failed", INTERRUPTED)
        except InputError:
            empty(options.folder)  # the program's look-ups needed an account
            raise
        except Exception as error:
            message = str(error) if isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}"
            found.errors.append(message)
            show.line("failed", message)
    if interrupts.seen:
        found.errors.insert(0, INTERRUPTED)
    if left := marked(options.folder):
        found.errors.append(f"processes still run: {[process.pid for process in left]}")
    report = found.report(options.stack, options.engine, options.backend, settings.processes_per_node, clock.done())
    found.story.phases = [Span(name=name, start=start, end=end) for name, (start, end) in clock.spans.items()]
    return report, found.story


def go(scene: Scene, engine: Engine) -> None:
    """Whatever breaks on the way ends as an error of the report, never as a report that is not there.

    Raises InputError for what only the program's look-ups can tell, when nothing is made yet.
    """
    with BACKENDS[scene.options.backend](scene.options.folder, lambda text: scene.show.line("nodes", text)) as backend:
        travel(scene, engine, backend)


def travel(scene: Scene, engine: Engine, backend: Backend) -> None:
    """The road on machines of this back-end, there and back."""
    clearing, road = Clearing(scene, backend, engine), Road(scene)
    scene.aws.inject(*scene.options.faults)
    scene.found.faults = tuple(spec_of(fault) for fault in scene.aws.faults())
    for spec in scene.found.faults:
        scene.show.line("fault", spec)

    def broken(text: str) -> None:
        scene.show.line("nodes", text)
        engine.stop()  # a launch would wait for nodes that nobody boots

    with Hypervisor(scene.aws, backend, scene.options.stack, broken) as hypervisor:
        try:
            with scene.interrupts.raised():
                road.bring_up(engine)
                road.train(hypervisor)
                road.bring_home()
                if scene.options.bake:
                    road.bake()
        except KeyboardInterrupt:
            scene.show.line("failed", INTERRUPTED)
        except UpFailed as error:
            # What the launch wrote was shown as it came: its last word is the error.
            told = str(error)
            scene.fail(hypervisor.failure or told[max(0, told.rfind("trainyard: ")) :])
            clearing.keep_node_logs()
        except Exception as error:
            if isinstance(error, InputError) and not road.previewed:
                raise
            known = isinstance(error, FollowError | RuntimeError | InputError)
            scene.fail(str(error) if known else f"{type(error).__name__}: {error}")
            clearing.keep_node_logs()
        finally:
            with scene.bearing("what was made can't be taken down"):
                clearing.take_down(hypervisor)
    with scene.bearing("the account can't be looked at"):
        clearing.examine()
