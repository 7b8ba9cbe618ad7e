"""Worker processes of a study, in this process: their work is done when it is handed
in.
"""

from concurrent.futures import Future


class Inline:
    def __init__(self, count):
        assert count >= 1

    def submit(self, work, *args):
        future = Future()
        future.set_result(work(*args))
        return future

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass
