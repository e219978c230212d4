"""The tests on ARM64, emulated: `python tests/tools/run_arm64.py`, as root on Debian for x86-64.

    apt-get install mmdebstrap qemu-user-static binfmt-support

`--compiler gcc-12`, `gcc-14`, `clang-14` or `clang-19` selects the compiler. Other arguments are pytest's. By default
the script runs the tests of the kernels. It takes two minutes and 2 GB to make the system in build/arm64, and about ten
minutes for the first build. A second build compiles only what has changed. Tests take ten to thirty times as long as
without emulation: the kernels take an hour, all tests a day.

Design
------
(a) Debian's packages for ARM64 are unpacked into a folder. Wheels are unpacked, too. No script of a package runs. QEMU
    runs the programs in the folder, each with its processor and without a virtual machine.
(b) The compilers, and only they, run without emulation: their packages for x86-64 are unpacked over the packages for
    ARM64. The compiler chooses the release, because a Debian has one gcc, one clang and one Python.
(c) Folders are mounted for the processes of the tests alone, so nothing has to be unmounted.
(d) The emulation shows wrong results, crashes and differences between threads. It does not show speed, and it runs
    threads in an order of its own. It has 16-byte vectors (NEON), as every ARM64 has; no other loops are compiled.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # of the project, for what the tests share
from tests.conftest import copy_project

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "arm64"

# The releases with their Python, and the compilers that each has.
PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
RELEASES = {"gcc-12": "bookworm", "clang-14": "bookworm", "gcc-14": "trixie", "clang-19": "trixie"}

SYSTEM = ["base-files", "usr-is-merged", "bash", "coreutils", "findutils", "git", "grep", "make", "procps", "sed"]
SYSTEM += ["python3-dev", "python3-venv", "libc6-dev", "libgomp1", "libstdc++6"]
TOOLS = ["libc6-dev-arm64-cross", "libgomp1-arm64-cross"]
WHEELS = ["numpy>=2.0", "safetensors", "tqdm", "cython>=3.1", "setuptools>=77", "matplotlib>=3.7", "pytest>=8.2"]
WHEELS += ["pytest-xdist", "hypothesis", "joblib", "threadpoolctl"]
PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in (28, 27, 17)] + ["manylinux2014_aarch64"]

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONPATH": "/wheels",
    "OMP_WAIT_POLICY": "passive",
    "OPENBLAS_NUM_THREADS": "1",
}


def run(*command):
    subprocess.run([str(part) for part in command], check=True)


def unpack_system(system, release):
    """Make a folder with a release of Debian for ARM64, its compilers for x86-64, and wheels."""
    compilers = [compiler for compiler in RELEASES if RELEASES[compiler] == release]
    (gcc,) = [compiler for compiler in compilers if compiler.startswith("gcc")]
    (clang,) = [compiler for compiler in compilers if compiler.startswith("clang")]
    libraries = [f"lib{gcc}-dev", f"libomp-{clang.removeprefix('clang-')}-dev"]
    tools = system.with_name("tools")
    shutil.rmtree(tools, ignore_errors=True)
    for folder, architecture, packages in [
        (system, "arm64", SYSTEM + libraries),
        (tools, "amd64", [*TOOLS, f"{gcc}-aarch64-linux-gnu", clang]),
    ]:
        options = [f"--architectures={architecture}", "--variant=extract", f"--include={','.join(packages)}"]
        run("mmdebstrap", "--quiet", *options, release, folder)
    left_out = " ".join(f"--exclude=./{name}" for name in ("dev", "etc", "var", "usr/share"))
    over = f"tar -C {tools} {left_out} -c . | tar -C {system} -x --skip-old-files --keep-directory-symlink"
    run("bash", "-o", "pipefail", "-c", over)
    shutil.rmtree(tools)
    if not (system / "lib64").exists():  # programs for x86-64 have their loader there
        (system / "lib64").symlink_to("usr/lib64")
    for name, target in [("cc", f"aarch64-linux-gnu-{gcc}"), ("objdump", "aarch64-linux-gnu-objdump")]:
        (system / "usr/bin" / name).unlink(missing_ok=True)
        (system / "usr/bin" / name).symlink_to(target)
    version = PYTHONS[release]
    options = [f"--platform={platform}" for platform in PLATFORMS] + [f"--python-version={version}"]
    options += [f"--abi={abi}" for abi in (f"cp{version.replace('.', '')}", "abi3", "none")]
    options += ["--only-binary=:all:", "--quiet", f"--target={system / 'wheels'}"]
    run(sys.executable, "-m", "pip", "install", *options, *WHEELS)
    (system / "complete").touch()


def copy_sources(project):
    """Copy the project, and keep what was built there before."""
    built = project.with_name(f"{project.name}-built")
    if (project / "build").exists():
        (project / "build").rename(built)
    shutil.rmtree(project, ignore_errors=True)
    copy_project(project)
    if built.exists():
        built.rename(project / "build")


def run_inside(system, project, *command, **variables):
    """Run a command in the project's folder inside the system. Return its exit status."""
    mounts = f"mount -t proc proc {system}/proc && mount --bind /dev {system}/dev && mount -t tmpfs tmpfs {system}/tmp"
    inside = 'cd "$0" && exec "$@"'
    settings = [f"{name}={value}" for name, value in (ENVIRONMENT | variables).items()]
    chroot = ["chroot", system, "/usr/bin/env", "-i", *settings, "bash", "-c", inside, f"/{project.name}", *command]
    outside = ["unshare", "--mount", "bash", "-c", f'{mounts} && exec "$@"', "-", *chroot]
    return subprocess.run([str(part) for part in outside], check=False).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--compiler", choices=RELEASES, default="gcc-14")
    options, tests = parser.parse_known_args()
    if os.geteuid() != 0:
        sys.exit("run_arm64.py mounts folders and changes the root folder, so it has to run as root")
    if not Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists():
        sys.exit("Linux does not start QEMU for ARM64's programs: mount binfmt_misc, and run `update-binfmts --enable`")
    release = RELEASES[options.compiler]
    system = FOLDER / release / "system"
    if not (system / "complete").exists():
        shutil.rmtree(system, ignore_errors=True)
        system.parent.mkdir(parents=True, exist_ok=True)
        unpack_system(system, release)
    project = system / f"caffelite-{options.compiler}"
    copy_sources(project)
    gcc = options.compiler.startswith("gcc")
    compiler = f"aarch64-linux-gnu-{options.compiler}" if gcc else f"{options.compiler} --target=aarch64-linux-gnu"
    build = ["python3", "setup.py", "--quiet", "build_ext", "--inplace"]
    if run_inside(system, project, *build, CC=compiler, LDSHARED=f"{compiler} -shared") != 0:
        sys.exit(f"{options.compiler} does not compile caffelite for ARM64")
    pytest = ["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    sys.exit(run_inside(system, project, *pytest, *(tests or ["tests/kernels"]), PYTHONPATH=f"/wheels:/{project.name}"))


if __name__ == "__main__":
    main()
