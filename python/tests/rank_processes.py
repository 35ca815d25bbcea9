"""Ranks as processes that stay: a test gives all of them a function, and gets what each returned."""

import multiprocessing
import multiprocessing.connection
import os
import sys
import threading
import time
import traceback

import torch.distributed as dist

SECONDS = 900  # that ranks may take for one function, on a machine that has other work


def short_timeout_s(at_least_s):
    """A timeout that a test waits for: a hundred times the longest time that a thread waited for its turn, measured here and
    now. So no rank that lives is taken for lost on a machine that is busy or slow."""
    late = []

    def turns(sleep_s=0.002):
        for _ in range(20):
            begin = time.monotonic()
            time.sleep(sleep_s)
            late.append(time.monotonic() - begin - sleep_s)

    threads = [threading.Thread(target=turns) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(at_least_s, 100 * max(late))


def _serve(pipe, rank, size, port, folders, environment):
    sys.path[:] = folders
    os.environ.clear()  # of when the server started
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    while (order := pipe.recv()) is not None:
        function, arguments = order
        try:
            pipe.send((True, function(*arguments)))
        except Exception as error:
            pipe.send((False, f"rank {rank}: {error}\n{traceback.format_exc()}"))
    dist.destroy_process_group()


class Ranks:
    """`size` processes with a Gloo process group. Use it in a `with` statement."""

    def __init__(self, size):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.size = size
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        server = multiprocessing.get_context("forkserver")  # which imports once what takes seconds
        server.set_forkserver_preload(["torch.distributed", "distca", "transformers.modeling_utils"])
        self.pipes, self.processes = [], []
        self.late = []  # ranks that had not answered when another one failed: their answers belong to no later test
        self.ended = ""  # why they were ended before their time
        for rank in range(size):
            ours, theirs = server.Pipe()
            process = server.Process(target=_serve, daemon=True,
                                     args=(theirs, rank, size, self.store.port, sys.path, dict(os.environ)))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def tell(self, function, *arguments):
        assert not self.ended, f"the ranks were ended by an earlier test: {self.ended}"
        while self.late:
            self.hear(self.late.pop())
        for pipe in self.pipes:
            pipe.send((function, arguments))

    def hear(self, rank):
        """(whether it returned, what it returned or the text of its error)."""
        if not self.pipes[rank].poll(SECONDS):
            self.end([rank])
        return self.pipes[rank].recv()

    def end(self, late):
        """Ends all: what these would still answer is no answer to what a later test asks."""
        self.ended = f"ranks {late} do not answer within {SECONDS} s"
        for process in self.processes:
            process.kill()
        raise AssertionError(self.ended)

    def run(self, function, *arguments):
        """What function(*arguments) returns on each rank. Fails with the first error, for which others may wait in vain."""
        self.tell(function, *arguments)
        self.late, answers = list(range(self.size)), {}
        while self.late:
            ready = multiprocessing.connection.wait([self.pipes[rank] for rank in self.late], SECONDS)
            if not ready:
                self.end(self.late)
            rank = self.pipes.index(ready[0])
            self.late.remove(rank)
            good, answers[rank] = self.hear(rank)
            assert good, answers[rank]
        return [answers[rank] for rank in range(self.size)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pipe, process in zip(self.pipes, self.processes):
            if process.is_alive():
                pipe.send(None)
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
