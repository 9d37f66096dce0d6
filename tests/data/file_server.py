"""A web server on this machine that drops connections, ignores ranges, changes or spoils files, as told."""

import re
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """Serves `files` by path; each request takes the next of `faults`, if there is one.

    Faults: `drop:N` closes the connection after N bytes, `status:N` answers with an error, `whole` ignores the range.
    """

    def __init__(self):
        self.files = {}
        self.faults = deque()
        self.asked = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def url(self, path):
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, request):
        wanted = request.headers.get("Range")
        self.asked.append((request.path, wanted))
        fault = self.faults.popleft() if self.faults else ""
        if fault.startswith("status:") or request.path not in self.files:
            request.send_error(int(fault.partition(":")[2] or 404))
            return
        body = self.files[request.path]
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and fault != "whole" else 0
        if start > len(body) or (wanted and start == len(body) > 0):
            request.send_error(416)
            return
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        request.send_header("Content-Length", str(len(body) - start))
        request.end_headers()
        cut = int(fault.partition(":")[2]) if fault.startswith("drop:") else None
        request.wfile.write(body[start:] if cut is None else body[start : start + cut])
        request.close_connection = True
