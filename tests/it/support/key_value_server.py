"""Keeps values with versions, over HTTP: the least server that can keep ledgers.

GET /KEY      200, the value and its Version; 404 without one
PUT /KEY      with If-Match: VERSION (0 for none): 200 and the new Version, or 412
DELETE /KEY   204
GET /         200, the keys, one per line

Each reply has the server's clock in Time, in microseconds. It prints its port, and ends with its standard input.
"""

import itertools
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

values, versions, lock = {}, itertools.count(1), threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def reply(self, status, value=b"", version=0):
        self.send_response_only(status)
        self.send_header("Time", str(time.time_ns() // 1000))
        self.send_header("Version", str(version))
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)

    def do_GET(self):
        if self.path == "/":
            return self.reply(200, "\n".join(sorted(values)).encode())
        value, version = values.get(self.path, (b"", 0))
        self.reply(200 if version else 404, value, version)

    def do_PUT(self):
        value = self.rfile.read(int(self.headers["Content-Length"]))
        with lock:
            is_same = values.get(self.path, (b"", 0))[1] == int(self.headers["If-Match"])
            if is_same:
                values[self.path] = (value, next(versions))
            version = values.get(self.path, (b"", 0))[1]
        self.reply(200 if is_same else 412, version=version)

    def do_DELETE(self):
        values.pop(self.path, None)
        self.reply(204)


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
