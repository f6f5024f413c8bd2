"""The first program of a call of `Python`: sets up the sandbox, then becomes the interpreter of the model's code.

It runs as a script in a process of its own and imports nothing but the standard library. Its argument is a JSON object,
see `Settings`. Errors of the setup are written to the descriptor `status`; no output means success.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import NoReturn, TypedDict

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SECCOMP_MODE_FILTER = 2
_PIVOT_ROOT = 41 if os.uname().machine == "aarch64" else 155
_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID = 0x1, 0x2
_NOBODY = 65534
_WATCH_SECONDS, _LOOKS = 0.05, 3

# System calls that allocate memory outside of RLIMIT_AS, or reach unneeded parts of the kernel: by name, the numbers on
# x86-64 and on 64-bit ARM.
_REFUSED = {
    "memfd_create": (319, 279),
    "shmget": (29, 194), "shmctl": (31, 195), "shmat": (30, 196), "shmdt": (67, 197),
    "semget": (64, 190), "semctl": (66, 191), "semtimedop": (220, 192), "semop": (65, 193),
    "msgget": (68, 186), "msgctl": (71, 187), "msgrcv": (70, 188), "msgsnd": (69, 189),
    "mq_open": (240, 180), "mq_unlink": (241, 181),
    "io_setup": (206, 0),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "fanotify_init": (300, 262),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "syslog": (103, 116),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "acct": (163, 89), "quotactl": (179, 60), "ioprio_set": (251, 30),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "setpriority": (141, 140),
}  # fmt: skip
# System calls that a process may only use on itself (first argument 0), since the watching process has the same user.
_TO_ITSELF = {
    "prlimit64": (302, 261), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "sched_setaffinity": (203, 122),
}  # fmt: skip
# Calls of Linux 5.1 and later have the same number everywhere; only some of them are permitted: signals and waiting by
# descriptor, clone3, close_range, openat2, faccessat2, epoll_pwait2, futexes, cachestat, fchmodat2, mseal.
_FIRST_NEW = 424
_LET_THROUGH = (424, 434, 435, 436, 437, 439, 441, 449, 451, 452, 454, 455, 456, 462)
_SETSOCKOPT, _BUFFERS = (54, 208), (7, 8, 32, 33)  # larger buffers of sockets, which are memory of the kernel
_SOCKET = (41, 198)
_FAMILIES = (1, 2, 10)  # Unix, and the internet's two, which lead nowhere here
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_ENOSYS, _EAFNOSUPPORT = 38, 97

_libc = ctypes.CDLL(None, use_errno=True)


class Settings(TypedDict):
    """Settings of the sandbox, passed by `Python` as JSON."""

    status: int
    root: str
    readable: list[str]
    home: str
    memory: int
    files: int
    processes: int
    seconds: int
    shut_in: bool


def _checked(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _checked(f"mount {target}", _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]))


def _leave_namespaces() -> None:
    """Enter new namespaces: mounts, network, processes, IPC; without root, a user namespace permits that."""
    user, group = os.geteuid(), os.getegid()
    _checked("unshare", _libc.unshare(_NEWNS | _NEWIPC | _NEWPID | _NEWNET | (0 if user == 0 else _NEWUSER)))
    if user != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path(f"/proc/self/{name}").write_text(text, encoding="ascii")


def _sources(readable: list[str]) -> list[str]:
    """Return the readable paths: the interpreter's, /usr, /bin, /lib, /lib64, two files of /etc, and four devices."""
    candidates = [*readable, "/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime"]
    candidates += [f"/dev/{name}" for name in ("null", "zero", "random", "urandom")]
    sources: list[str] = []
    for path in candidates:
        if os.path.lexists(path) and not any(path == other or path.startswith(f"{other}/") for other in sources):
            sources.append(path)
    return sources


def _change_root(root: str, readable: list[str], home: str, files: int) -> int | None:
    """Change to a new file system: the paths of `_sources` read-only, and an empty writable folder."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,nr_inodes=1000,mode=755")
    for source in _sources(readable):
        target = root + source
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        if Path(source).is_symlink():
            Path(target).symlink_to(Path(source).readlink())
            continue
        if Path(source).is_dir():
            Path(target).mkdir(exist_ok=True)
        else:
            Path(target).touch()
        _mount(source, target, None, _MS_BIND | _MS_REC)
    processes = _own_processes(root)
    Path(root + home).mkdir(parents=True, exist_ok=True)
    attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY | _ATTR_NOSUID, 0, 0, 0)
    _checked(
        "mount_setattr",
        _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(root), _AT_RECURSIVE, ctypes.byref(attributes), 32),
    )
    options = f"size={files},nr_inodes=10000,mode=1777"
    _mount("tmpfs", root + home, "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    os.chdir(root)
    _checked("pivot_root", _libc.syscall(_PIVOT_ROOT, b".", b"."))
    _checked("umount", _libc.umount2(b".", _MNT_DETACH))
    os.chdir(home)
    return processes


def _drop_privileges() -> None:
    """Drop root privileges, and enter a user namespace without users.

    The namespace counts its processes. It cannot create another one, since it has no user name there.
    """
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    _checked("unshare", _libc.unshare(_NEWUSER))


def _limit(name: int, value: int) -> None:
    hard = resource.getrlimit(name)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(name, (value, value))


def _die_with_parent() -> None:
    _checked("prctl", _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def _filter() -> bytes:
    """Return the seccomp filter, a program for the kernel's packet filter that selects the permitted system calls."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise OSError(_ENOSYS, f"seccomp: system calls of {machine} are not known, only those of x86_64 and aarch64")
    column, architecture = _ARCHITECTURES[machine]

    def load(offset: int) -> bytes:
        return struct.pack("HBBI", 0x20, 0, 0, offset)

    def jump(value: int, then: int, otherwise: int, code: int = 0x15) -> bytes:
        return struct.pack("HBBI", code, then, otherwise, value)

    def give(value: int) -> bytes:
        return struct.pack("HBBI", 0x06, 0, 0, value)

    allow, missing = give(0x7FFF0000), give(0x00050000 | _ENOSYS)
    lines = [load(4), jump(architecture, 1, 0), give(0x80000000)]  # one of another architecture ends the process
    lines += [load(0), jump(_FIRST_NEW, 0, len(_LET_THROUGH) + 2, code=0x35)]  # at least
    lines += [jump(number, len(_LET_THROUGH) - place, 0) for place, number in enumerate(_LET_THROUGH)]
    lines += [missing, allow]
    for numbers in _REFUSED.values():
        lines += [jump(numbers[column], 0, 1), missing]
    for numbers in _TO_ITSELF.values():
        lines += [jump(numbers[column], 0, 4), load(16), jump(0, 1, 0), missing, allow]
    lines += [jump(_SETSOCKOPT[column], 0, len(_BUFFERS) + 5), load(24), jump(1, 0, len(_BUFFERS) + 1), load(32)]
    lines += [jump(option, len(_BUFFERS) - place, 0) for place, option in enumerate(_BUFFERS)]
    lines += [allow, missing]
    lines += [jump(_SOCKET[column], 0, len(_FAMILIES) + 2), load(16)]
    lines += [jump(family, len(_FAMILIES) - place, 0) for place, family in enumerate(_FAMILIES)]
    lines += [give(0x00050000 | _EAFNOSUPPORT), allow]
    return b"".join(lines)


def _filter_calls() -> None:
    """Install the seccomp filter for this process and all processes that it starts."""
    program = ctypes.create_string_buffer(_filter())
    lines = (len(program) - 1) // 8
    filter_program = struct.pack("HxxxxxxQ", lines, ctypes.addressof(program))
    _checked("seccomp", _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filter_program, 0, 0))


def _own_processes(root: str) -> int | None:
    """Open the sandbox's process list, hidden from the code; None if the system does not permit that."""
    place = f"{root}/proc"
    Path(place).mkdir()
    try:
        _mount("proc", place, "proc", _MS_NOSUID | _MS_NODEV)
    except OSError:
        return None
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    _checked("umount", _libc.umount2(os.fsencode(place), _MNT_DETACH))
    return descriptor


def _memory(processes: int) -> int:
    """Return the bytes of memory of all processes but this one; 0 for a single one, which has its own limit."""
    numbers = [name for name in os.listdir(processes) if name.isdigit() and name != "1"]
    total = 0
    for number in numbers if len(numbers) > 1 else ():
        try:
            with os.fdopen(os.open(f"{number}/smaps_rollup", os.O_RDONLY, dir_fd=processes)) as rows:
                # A page shared by several processes counts in part for each.
                total += next((int(row.split()[1]) << 10 for row in rows if row.startswith("Pss:")), 0)
        except OSError:  # it ended meanwhile
            continue
    return total


def _watched(child: int, processes: int | None, memory: int) -> int:
    """Wait for the code's process and return its status; kill all processes if they exceed the memory together."""
    beyond = 0
    while processes is not None and signal.sigtimedwait({signal.SIGCHLD}, _WATCH_SECONDS) is None:
        used = _memory(processes)
        # A process that starts another by vfork counts twice for a moment.
        beyond = beyond + 1 if used > memory else 0
        if used > 2 * memory or beyond == _LOOKS:
            os.kill(-1, signal.SIGKILL)
            os.write(2, f"\n[all processes together took more than {memory >> 20} MiB]\n".encode())
            return 1
    return _status_of(child)


def _status_of(child: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


def _run_isolated(settings: Settings) -> NoReturn:
    _leave_namespaces()
    _die_with_parent()
    first = os.fork()  # the first process of the new namespace: when it ends, all others there are killed
    if first:
        os._exit(_status_of(first))
    processes = _change_root(settings["root"], settings["readable"], settings["home"], settings["files"])
    _drop_privileges()
    _die_with_parent()  # again: a change of user forgets it
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    child = os.fork()
    if child:
        os._exit(_watched(child, processes, settings["memory"]))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    _run(settings)


def _run(limits: Settings) -> NoReturn:
    _checked("prctl", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, limits["seconds"])
    _limit(resource.RLIMIT_FSIZE, limits["files"])
    _limit(resource.RLIMIT_NOFILE, 64)
    _limit(resource.RLIMIT_NPROC, limits["processes"])
    _limit(resource.RLIMIT_MEMLOCK, 0)
    _limit(resource.RLIMIT_AS, limits["memory"])
    os.set_inheritable(limits["status"], False)  # noqa: FBT003 -- it takes no name
    if limits["shut_in"]:
        _filter_calls()
    try:
        os.execv(  # noqa: S606 -- this interpreter
            sys.executable, [sys.executable, "-s", "-P", "-B", "-"]
        )
    except OSError as error:
        raise OSError(error.errno, f"start {sys.executable}: {error.strerror}") from None


def _main() -> None:
    settings: Settings = json.loads(sys.argv[1])
    try:
        if settings["shut_in"]:
            _run_isolated(settings)
        _run(settings)
    except OSError as error:
        os.write(settings["status"], str(error).encode())
        os._exit(1)


if __name__ == "__main__":
    _main()
