"""Commands that need not import torch again: a server that has, and forks, and clients that ask it to.

A shell that finds the clients first on its PATH starts `saccade` and `python` as always: each is a process of its own,
with the pipes, the folder, the environment and the exit status that the shell gives it and sees. Only the seconds in
which Python imports torch are not spent again.
"""

import array
import atexit
import gc
import json
import os
import runpy
import select
import shlex
import socket
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType

# What nearly every command imports.
IMPORTS = ("saccade.__main__", "saccade.api", "saccade.data.builtin", "torch._dynamo", "num2words", "babel.dates")
CLIENT = """
import array, json, os, socket, sys
python, address, *line = sys.argv[1:]
if line[0] == "python" and line[1:2] not in (["-"], ["-m"]):
    os.execv(python, [python, *line[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect(address)
    server.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    work = {"line": line, "folder": os.getcwd(), "environment": dict(os.environ)}
    server.sendall(json.dumps(work).encode() + b"\\n")
    status = server.recv(4)
sys.exit(int(status or b"70"))
"""


def write_clients(folder: Path, address: Path) -> None:
    """`saccade` and `python` in `folder`; what is not a command, a module or a program from stdin is left to Python."""
    folder.mkdir()
    client = folder / "client.py"
    client.write_text(CLIENT)
    for name in ("saccade", "python"):
        words = [sys.executable, "-SI", str(client), sys.executable, str(address), name]
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (folder / name).chmod(0o755)


def next_work(listener: socket.socket) -> list[str]:
    """Wait for clients until stdin ends; returns only in the process that is to do a client's work, as its own."""
    while True:
        if 0 in select.select([listener, 0], [], [])[0]:
            os._exit(0)
        connection = listener.accept()[0]
        if os.fork() == 0:
            break
        connection.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # those that have ended
                pass
    _, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(12))
    streams = array.array("i", ancillary[0][2])
    with connection.makefile("rb") as file:
        work = json.loads(file.readline())
    worker = os.fork()
    if worker:
        for stream in streams:
            os.close(stream)  # a reader at the other end of a pipe waits for all who could write
        status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        connection.sendall(str(status if status >= 0 else 128 - status).encode())
        os._exit(0)
    listener.close()
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(work["folder"])
    os.environ.clear()
    os.environ.update(work["environment"])
    return list(work["line"])


def run_line(line: list[str], clients: str) -> None:
    """As the script `saccade`, as `python -m module …` or as `python -`."""
    name, *arguments = line
    sys.executable = f"{clients}/python"  # what a command starts is started from here too
    sys.path[0] = clients if name == "saccade" else ""
    if name == "saccade":
        sys.argv = line
        from saccade.__main__ import main

        sys.exit(main())
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        program = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(sys.stdin.read(), "<stdin>", "exec"), vars(program))


def end_of(line: list[str], clients: str) -> int:
    """Run it, to the last thread and the last `atexit`; its exit status."""
    status: object = 0
    try:
        run_line(line, clients)
    except SystemExit as end:
        status = end.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # a reader went away; or it is closed
        status = status or 120
    return status if isinstance(status, int) else int(status is not None)


if __name__ == "__main__":
    for module in IMPORTS:
        __import__(module)
    gc.freeze()  # what is shared with the children is not touched by their collectors
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen()
    print("ready", flush=True)
    # Python's own end would take all of torch apart first, for a second.
    os._exit(end_of(next_work(listener), sys.argv[2]))
