"""The first program of a call of `Python`: shuts itself in, then becomes the interpreter that runs the model's code.

It runs as a script in a process of its own and imports nothing but the standard library. Its argument is a JSON
object, see `Settings`. What keeps it from shutting itself in is written to the descriptor `status`; nothing there
means that it went well.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import NoReturn, TypedDict

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_PIVOT_ROOT = 41 if os.uname().machine == "aarch64" else 155
_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID = 0x1, 0x2
_NOBODY = 65534

_libc = ctypes.CDLL(None, use_errno=True)


class Settings(TypedDict):
    """What `Python` asks for."""

    status: int
    root: str
    readable: list[str]
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
    """Namespaces of its own: mounts, network, processes, IPC; without root a user namespace permits that."""
    user, group = os.geteuid(), os.getegid()
    _checked("unshare", _libc.unshare(_NEWNS | _NEWIPC | _NEWPID | _NEWNET | (0 if user == 0 else _NEWUSER)))
    if user != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path(f"/proc/self/{name}").write_text(text, encoding="ascii")


def _sources(readable: list[str]) -> list[str]:
    """What may be read: the interpreter and its packages, the system's libraries, four devices."""
    wanted = [*readable, "/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime"]
    wanted += [f"/dev/{name}" for name in ("null", "zero", "random", "urandom")]
    found: list[str] = []
    for path in wanted:
        if os.path.lexists(path) and not any(path == other or path.startswith(f"{other}/") for other in found):
            found.append(path)
    return found


def _change_root(root: str, readable: list[str], files: int) -> None:
    """A file system of its own: what `_sources` names, to be read, and an empty folder `/tmp`, to be written."""
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
    Path(root, "tmp").mkdir(exist_ok=True)  # there, where the interpreter lies below it
    attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY | _ATTR_NOSUID, 0, 0, 0)
    _checked(
        "mount_setattr",
        _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(root), _AT_RECURSIVE, ctypes.byref(attributes), 32),
    )
    options = f"size={files},nr_inodes=10000,mode=1777"
    _mount("tmpfs", f"{root}/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, options)  # noqa: S108 -- the folder of its own
    os.chdir(root)
    _checked("pivot_root", _libc.syscall(_PIVOT_ROOT, b".", b"."))
    _checked("umount", _libc.umount2(b".", _MNT_DETACH))
    os.chdir("/tmp")  # noqa: S108 -- the folder of its own


def _become_nobody() -> None:
    """No longer root where it was, and in a user namespace that knows no user.

    By that namespace its processes are counted, and it can make no other: who has no name in one may not.
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


def _status_of(child: int) -> int:
    while True:
        found, status = os.wait()
        if found == child:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


def _run_shut_in(settings: Settings) -> NoReturn:
    _leave_namespaces()
    _die_with_parent()
    first = os.fork()  # the first process of the new namespace: when it ends, all others there are killed
    if first:
        os._exit(_status_of(first))
    _change_root(settings["root"], settings["readable"], settings["files"])
    _become_nobody()
    _die_with_parent()  # again: a change of user forgets it
    child = os.fork()
    if child:
        os._exit(_status_of(child))
    _run(settings)


def _run(limits: Settings) -> NoReturn:
    _checked("prctl", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, limits["seconds"])
    _limit(resource.RLIMIT_FSIZE, limits["files"])
    _limit(resource.RLIMIT_NOFILE, 64)
    _limit(resource.RLIMIT_NPROC, limits["processes"])
    _limit(resource.RLIMIT_AS, limits["memory"])
    os.set_inheritable(limits["status"], False)  # noqa: FBT003 -- it takes no name
    os.execv(  # noqa: S606 -- this interpreter
        sys.executable, [sys.executable, "-s", "-P", "-B", "-"]
    )


def _main() -> None:
    settings: Settings = json.loads(sys.argv[1])
    try:
        if settings["shut_in"]:
            _run_shut_in(settings)
        _run(settings)
    except OSError as error:
        os.write(settings["status"], str(error).encode())
        os._exit(1)


if __name__ == "__main__":
    _main()
