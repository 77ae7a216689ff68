"""Lets the host into a network namespace, by sockets that were made outside of it.

forward.py --listen FILE N COMMAND...  listens on N free ports of the loopback, writes their numbers to FILE, and becomes
                                       COMMAND, which has the sockets as descriptors 3 and up
forward.py FD=PORT...                  hands what comes in at each socket on to a port here
"""

import os
import pathlib
import socket
import sys
import threading


def listen(file, n, command):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    copies = [os.dup2(s.fileno(), 100 + i) for i, s in enumerate(sockets)]  # out of the way first
    for i, copy in enumerate(copies):
        os.dup2(copy, 3 + i, inheritable=True)
        os.close(copy)
    pathlib.Path(file).write_text(" ".join(map(str, ports)) + "\n")
    os.execvp(command[0], command)


def accept(server, port):
    while True:
        client, _ = server.accept()
        threading.Thread(target=serve, args=(client, port), daemon=True).start()


def serve(client, port):
    try:
        there = socket.create_connection(("127.0.0.1", port))
    except OSError:  # nobody listens: so it is for the client, too
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
        return
    threading.Thread(target=copy, args=(client, there), daemon=True).start()
    copy(there, client)


def copy(source, target):
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # either side is gone: so both are
        for s in (source, target):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def main():
    if sys.argv[1] == "--listen":
        listen(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    threads = []
    for pair in sys.argv[1:]:
        fd, port = map(int, pair.split("="))
        threads.append(threading.Thread(target=accept, args=(socket.socket(fileno=fd), port)))
        threads[-1].start()


if __name__ == "__main__":
    main()
