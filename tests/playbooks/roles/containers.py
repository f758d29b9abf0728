"""Stand-ins for Docker and the NVIDIA Container Toolkit: packages whose programs implement the calls of the role."""

from tests.apt_repository import Package

# A daemon that reads its settings when it starts, and can validate a settings file.
DOCKERD = """#!/usr/bin/python3
import json, pathlib, sys, time
if "--help" in sys.argv:
    sys.exit(print("  --validate  Validate daemon configuration and exit"))
names = [word.split("=", 1)[1] for word in sys.argv if word.startswith("--config-file=")]
file = pathlib.Path(names[0] if names else "/etc/docker/daemon.json")
settings = json.loads(file.read_text()) if file.exists() else {}
known = {"bridge", "iptables", "ip6tables", "live-restore", "runtimes", "data-root", "mtu", "features"}
if unknown := set(settings) - known:
    sys.exit(f"the following directives don't match any configuration option: {', '.join(sorted(unknown))}")
if "--validate" not in sys.argv:
    data = pathlib.Path(settings.get("data-root", "/var/lib/docker"), "volumes")
    data.mkdir(parents=True, exist_ok=True)
    store = (data / "metadata.db").open("w")
    pathlib.Path("/run/docker-daemon").write_text(json.dumps(settings))
    while True:
        time.sleep(60)
"""
# A client that records its arguments in /run/docker-calls. Pulled images are words of a file in the data root. Their
# layers are stored by containerd, as in a new Docker 29, unless the daemon's settings disable that. Images have Python.
DOCKER = """#!/usr/bin/python3
import json, pathlib, subprocess, sys
calls = pathlib.Path("/run/docker-calls")
with calls.open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
daemon = pathlib.Path("/run/docker-daemon")
settings = json.loads(daemon.read_text()) if daemon.exists() else sys.exit("Cannot connect to the Docker daemon")
runtimes, folder = ["runc", *settings.get("runtimes", {})], settings.get("data-root", "/var/lib/docker")
images = pathlib.Path(folder, "images")
pulled = images.read_text().split() if images.exists() else []
match sys.argv[1:]:
    case ["info", "--format", "{{json .}}"]:
        print(json.dumps({"Runtimes": dict.fromkeys(runtimes), "DockerRootDir": folder}))
    case ["info", *_]:
        print(folder, *runtimes, "")
    case ["image", "inspect", "--format", _, image]:
        uses_data_root = settings.get("features", {}).get("containerd-snapshotter") is False
        print(f"{folder}/overlay2/1/diff" if uses_data_root else "")
    case ["image", "inspect", image]:
        sys.exit(image not in pulled)
    case ["pull", "--quiet", image]:
        fails = pathlib.Path("/run/fails")
        if fails.exists():
            fails.unlink()
            sys.exit("toomanyrequests")
        images.parent.mkdir(parents=True, exist_ok=True)
        images.write_text(" ".join([*pulled, image]))
        pathlib.Path(folder, "overlay2/1/diff").mkdir(parents=True, exist_ok=True)
    case ["run", *arguments]:
        for source in (word.split("source=")[1].split(",")[0] for word in arguments if word.startswith("--mount=")):
            if not pathlib.Path(source).exists():
                print("invalid mount config for type bind: bind source path does not exist:", source, file=sys.stderr)
                sys.exit(125)
        if "python" in arguments and not pathlib.Path("/run/no-python").exists():
            sys.exit(subprocess.run(["/usr/bin/python3", *arguments[arguments.index("python") + 1 :]]).returncode)
        sys.exit(7)
"""
UNIT = "[Service]\nExecStart=/usr/bin/dockerd\nExecStartPost=/bin/sleep 0.3\n[Install]\nWantedBy=multi-user.target\n"
IMAGE = "nvcr.io/nvidia/pytorch:26.10-py3"


def docker(name: str) -> Package:
    """Return a package with Docker's client, daemon and unit."""
    files = {"/usr/bin/docker": DOCKER, "/usr/bin/dockerd": DOCKERD, "/lib/systemd/system/docker.service": UNIT}
    return Package(name=name, fields={"Conflicts": "docker-ce" if name == "docker.io" else "docker.io"}, files=files)


def container_toolkit(version: str) -> list[Package]:
    """Return the packages of a version of the toolkit."""
    version_command = f"#!/bin/sh\necho 'NVIDIA Container Toolkit CLI version {version}'\n"
    files = {"/usr/bin/nvidia-ctk": version_command, "/usr/bin/nvidia-container-runtime": "#!/bin/sh\n"}
    names = ("libnvidia-container1", "libnvidia-container-tools", "nvidia-container-toolkit")
    base = Package(name="nvidia-container-toolkit-base", version=f"{version}-1", files=files)
    return [base, *(Package(name=name, version=f"{version}-1") for name in names)]
