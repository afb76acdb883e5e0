"""The API server of Kubernetes by its own rules, as far as dlock asks it: namespaces and Leases, over HTTP or TLS.

kubernetes_server.py PORT DIRECTORY [FAULT]    keeps its objects in DIRECTORY/journal, over a restart too, but no events

If DIRECTORY/tokens exists, it is read for each request: lines `TOKEN,USER,VERB...`, where no verbs are all verbs, in every
namespace; a certificate's common name is a user as well, with the verbs of a line `-,USER,VERB...`. Without it, everyone may do
everything. If DIRECTORY/server.pem exists, with server.key and ca.pem, the server speaks TLS.

GET /_/counts returns the number of requests by verb, and POST /_/expire forgets all events, which ends the watches.

FAULT   ignores-conditions   a resourceVersion is not compared
        is-not-atomic        between the check of a resourceVersion and the write, another write may be checked
        repeats-writes       something in front of the server sends each write twice, and passes on the second reply
        is-busy              each third request is refused because there are too many
        expires-lists        the state that a list began in is forgotten before it is continued
        clock-jumps-N        from the reply to the write N on, `Date` is 20 s ahead, as after a pause of the client's host
"""

import json
import math
import os
import re
import select
import socket
import ssl
import sys
import threading
import time
import uuid
from collections import Counter
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, SimpleQueue
from urllib.parse import parse_qsl, urlsplit

GROUP = "coordination.k8s.io"
LONGEST_ANNOTATIONS = 256 << 10
LONGEST_BODY = 3 << 20
# Go sends what is longer, and every stream, in chunks.
LONGEST_PLAIN = 2048
EVENTS = 1000
BOOKMARK = 5
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = re.compile(rf"{LABEL}(\.{LABEL})*")
QUALIFIED = re.compile(rf"({LABEL}(\.{LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
SPEC = {
    "holderIdentity": str,
    "leaseDurationSeconds": int,
    "acquireTime": datetime,
    "renewTime": datetime,
    "leaseTransitions": int,
    "strategy": str,
    "preferredHolder": str,
}
METADATA = ("labels", "annotations", "ownerReferences", "finalizers")

port, directory = int(sys.argv[1]), sys.argv[2]
fault = sys.argv[3] if sys.argv[3:] else None
lock = threading.RLock()
# By plural, namespace and name.
objects, events, watches, counts = {}, [], set(), Counter()
version, oldest = 1, 1


class Refused(Exception):
    def __init__(self, code, reason, message, **details):
        self.status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        self.status.update({"message": message, "code": code, **({"reason": reason} if reason else {})})
        if details:
            self.status["details"] = details


class Resource:
    def __init__(self, kind, plural, group):
        self.kind, self.plural, self.group = kind, plural, group
        self.qualified = f"{plural}.{group}" if group else plural
        self.api = f"{group}/v1" if group else "v1"

    def details(self, name, **more):
        group = {"group": self.group} if self.group else {}
        return {**({"name": name} if name else {}), **group, "kind": self.plural, **more}

    def not_found(self, name):
        return Refused(404, "NotFound", f'{self.qualified} "{name}" not found', **self.details(name))

    def conflict(self, name, why):
        message = f'Operation cannot be fulfilled on {self.qualified} "{name}": {why}'
        return Refused(409, "Conflict", message, **self.details(name))

    def invalid(self, name, field, value, why):
        body = f"Invalid value: {value}: {why}"
        causes = [{"reason": "FieldValueInvalid", "message": body, "field": field}]
        kind = f"{self.kind}.{self.group}" if self.group else self.kind
        details = {**self.details(name), "kind": self.kind, "causes": causes}
        return Refused(422, "Invalid", f'{kind} "{name}" is invalid: {field}: {body}', **details)

    def forbidden(self, name, why):
        named = f' "{name}"' if name else ""
        return Refused(403, "Forbidden", f"{self.qualified}{named} is forbidden: {why}", **self.details(name))


LEASES = Resource("Lease", "leases", GROUP)
NAMESPACES = Resource("Namespace", "namespaces", "")


def now():
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def bad_request(message):
    return Refused(400, "BadRequest", message)


def unreadable(resource, why):
    return bad_request(f'{resource.kind} in version "v1" cannot be handled as a {resource.kind}: {why}')


def spec_of(resource, given):
    """The specification with the fields that it has, in the types that they have."""
    spec = {}
    for field, kind in SPEC.items():
        value = given.get(field)
        if value is None:
            continue
        if not isinstance(value, str if kind is datetime else kind) or isinstance(value, bool):
            typed = {int: "int32", str: "string", datetime: "string"}[kind]
            found = {str: "string", int: "number", bool: "bool"}.get(type(value), "object")
            raise unreadable(
                resource,
                f"json: cannot unmarshal {found} into Go struct field LeaseSpec.spec.{field} of type {typed}",
            )
        if kind is datetime:
            if not MICRO_TIME.fullmatch(value):
                raise unreadable(resource, f'parsing time "{value}" as "2006-01-02T15:04:05.000000Z07:00"')
            moment = datetime.fromisoformat(value.replace("Z", "+00:00")).astimezone(timezone.utc)
            value = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec[field] = value
    return spec


def check(resource, name, given, spec):
    if not SUBDOMAIN.fullmatch(name) or len(name) > (253 if resource is LEASES else 63):
        why = (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
            "and end with an alphanumeric character"
        )
        raise resource.invalid(name, "metadata.name", json.dumps(name), why)
    annotations = given.get("annotations") or {}
    for key, value in annotations.items():
        if not isinstance(value, str):
            why = "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.annotations of type string"
            raise unreadable(resource, why)
        if not QUALIFIED.fullmatch(key):
            raise resource.invalid(name, "metadata.annotations", json.dumps(key), "name part must consist of ...")
    size = sum(len(text.encode()) for pair in annotations.items() for text in pair)
    if size > LONGEST_ANNOTATIONS:
        message = f'{resource.kind}.{resource.group} "{name}" is invalid: metadata.annotations: Too long: may not be more than '
        cause = {"reason": "FieldValueTooLong", "message": "Too long", "field": "metadata.annotations"}
        details = {**resource.details(name), "kind": resource.kind, "causes": [cause]}
        raise Refused(422, "Invalid", f"{message}{LONGEST_ANNOTATIONS} bytes", **details)
    if spec.get("leaseDurationSeconds", 1) <= 0:
        raise resource.invalid(
            name, "spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0"
        )
    if spec.get("leaseTransitions", 0) < 0:
        why = "must be greater than or equal to 0"
        raise resource.invalid(name, "spec.leaseTransitions", spec["leaseTransitions"], why)


def fields_of(thing):
    """The fields of an object, each as its path."""
    fields = {("spec", name): value for name, value in thing.get("spec", {}).items()}
    for part in ("labels", "annotations"):
        given = thing["metadata"].get(part) or {}
        fields.update({("metadata", part, name): value for name, value in given.items()})
    return fields


def managed(before, after, manager):
    """Who wrote which field last, and when: a time is that of the manager's last write that changed something."""
    old, new = fields_of(before) if before else {}, fields_of(after)
    changed = {path for path in new if old.get(path) != new[path]}
    entries = []
    own = set(changed)
    for entry in before["metadata"]["managedFields"] if before else []:
        paths = {tuple(name[2:] for name in path) for path in leaves(entry["fieldsV1"])} & set(new)
        if entry["manager"] == manager and changed:
            own |= paths
        elif paths - changed:
            entries.append({**entry, "fieldsV1": tree(paths - changed)})
    if changed:
        entries.append(
            {
                "manager": manager,
                "operation": "Update",
                "apiVersion": f"{GROUP}/v1" if "spec" in after else "v1",
                "time": now(),
                "fieldsType": "FieldsV1",
                "fieldsV1": tree(own),
            }
        )
    return entries


def leaves(node, path=()):
    children = [(name, child) for name, child in node.items() if name != "."]
    if not children:
        yield path
    for name, child in children:
        yield from leaves(child, (*path, name))


def tree(paths):
    root = {}
    for path in sorted(paths):
        node = root
        for name in path:
            node = node.setdefault("f:" + name, {})
    for part in (root.get("f:metadata") or {}).values():
        part["."] = {}
    return root


def store(resource, namespace, name, before, given, manager):
    """Writes an object, if it differs from the one before."""
    metadata = given.get("metadata") or {}
    spec = spec_of(resource, given.get("spec") or {}) if resource is LEASES else None
    check(resource, name, metadata, spec or {})
    old = before["metadata"] if before else {}
    kept = {part: metadata[part] for part in METADATA if metadata.get(part)}
    fixed = {
        "name": name,
        **({"namespace": namespace} if namespace else {}),
        "uid": old.get("uid") or str(uuid.uuid4()),
        "resourceVersion": old.get("resourceVersion"),
        "creationTimestamp": old.get("creationTimestamp") or now(),
    }
    after = {"kind": resource.kind, "apiVersion": resource.api, "metadata": {**fixed, **kept}}
    after.update({"spec": spec} if resource is LEASES else {"status": {"phase": "Active"}})
    if before and fields_of(before) == fields_of(after):
        return before
    after["metadata"]["managedFields"] = managed(before, after, manager)
    after["metadata"]["resourceVersion"] = str(version + 1)
    note([resource.plural, namespace, name], after, "MODIFIED" if before else "ADDED")
    return after


def note(key, thing, kind):
    global version
    last = apply(key, thing)
    journal.write(json.dumps([key, thing, version]) + "\n")
    journal.flush()
    if kind == "DELETED":
        last = {**last, "metadata": {**last["metadata"], "resourceVersion": str(version)}}
    event = (version, key, json.dumps({"type": kind, "object": thing or last}))
    events.append(event)
    while len(events) > EVENTS:
        forget(1)
    for watch in watches:
        if watch.wants(key):
            watch.queue.put(event)


def apply(key, thing):
    global version
    version += 1
    key = tuple(key)
    last = objects.pop(key, None)
    if thing is not None:
        objects[key] = thing
    return last


def forget(count):
    global oldest
    for number, _, _ in events[:count]:
        oldest = number + 1
    del events[:count]


class Watch:
    def __init__(self, resource, namespace, selected):
        self.plural, self.namespace, self.selected, self.queue = resource.plural, namespace, selected, SimpleQueue()

    def wants(self, key):
        plural, namespace, name = key
        return (
            plural == self.plural
            and self.namespace in (namespace, None)
            and self.selected.get("metadata.name", name) == name
        )


def users():
    """The users by their tokens, each with the verbs that they may use; `None` if everyone may do everything."""
    try:
        with open(os.path.join(directory, "tokens"), encoding="utf-8") as file:
            return [line.strip().split(",") for line in file if line.strip()]
    except FileNotFoundError:
        return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self):
        self.answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        try:
            if length > LONGEST_BODY:
                raise Refused(413, "RequestEntityTooLarge", f"limit is {LONGEST_BODY}")
            reply = self.respond(body)
            if reply is not None:
                self.send(*reply)
        except Refused as refused:
            self.send(refused.status["code"], refused.status)

    def respond(self, body):
        url = urlsplit(self.path)
        self.query = dict(parse_qsl(url.query, keep_blank_values=True))
        if url.path == "/_/counts":
            return 200, dict(counts)
        if url.path == "/_/expire":
            with lock:
                forget(len(events))
                for watch in watches:
                    watch.queue.put((0, None, json.dumps({"type": "ERROR", "object": expired(0).status})))
            return 200, {}
        if url.path == "/version":
            return 200, {"major": "1", "minor": "32", "gitVersion": "v1.32.0", "platform": "linux/amd64"}
        self.authenticate()
        try:
            body = json.loads(body) if body else {}
        except ValueError:
            raise bad_request("couldn't get version/kind; json parse error") from None
        parts = url.path.strip("/").split("/")
        match parts:
            case ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"] if self.command == "POST":
                counts["review"] += 1
                wanted = (body.get("spec") or {}).get("resourceAttributes") or {}
                allowed = self.verbs is None or wanted.get("verb") in self.verbs
                return 201, {**body, "status": {"allowed": allowed}}
            case ["apis", "coordination.k8s.io", "v1", "leases"]:
                return self.act(LEASES, None, None, body)
            case ["apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases", *name] if len(name) < 2:
                return self.act(LEASES, namespace, name[0] if name else None, body)
            case ["api", "v1", "namespaces", *name] if len(name) < 2:
                return self.act(NAMESPACES, None, name[0] if name else None, body)
        raise Refused(404, "NotFound", "the server could not find the requested resource")

    def authenticate(self):
        known = users()
        self.user, self.verbs = "admin", None
        if known is None:
            return
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        certificate = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
        names = [value for part in (certificate or {}).get("subject", ()) for key, value in part if key == "commonName"]
        self.user, self.verbs = "system:anonymous", []
        if scheme == "Bearer" or names:
            wanted = (names[-1], 1) if names else (token, 0)
            found = next((line for line in known if line[wanted[1]] == wanted[0]), None)
            if found is None:
                raise Refused(401, "Unauthorized", "Unauthorized")
            self.user, self.verbs = found[1], found[2:] or None

    def act(self, resource, namespace, name, body):
        verb = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[self.command]
        if verb == "get" and name is None:
            verb = "watch" if self.query.get("watch") in ("1", "true") else "list"
        with lock:
            counts[verb] += 1
            counts["all"] += 1
            if fault == "is-busy" and counts["all"] % 3 == 2:
                message = "the server has received too many requests and has asked us to try again later"
                raise Refused(429, "TooManyRequests", message, retryAfterSeconds=1)
        if self.verbs is not None and verb not in self.verbs:
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            what = f'resource "{resource.plural}" in API group "{resource.group}"'
            raise resource.forbidden(name, f'User "{self.user}" cannot {verb} {what} {where}')
        if verb == "watch":
            return self.watch(resource, namespace)
        action = {"get": get, "list": list_all, "create": create, "update": update, "delete": delete}.get(verb)
        if action is None or (name is None) != (verb in ("list", "create")):
            raise Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        with lock:
            reply = action(self, resource, namespace, name, body)
            if fault == "repeats-writes" and verb in ("create", "update"):
                reply = action(self, resource, namespace, name, body)
            return reply

    @property
    def manager(self):
        return self.query.get("fieldManager") or self.headers.get("User-Agent", "unknown").split("/")[0][:128]

    def selected(self):
        pairs = (part.split("=", 1) for part in self.query.get("fieldSelector", "").split(",") if part)
        return {key: value.removeprefix("=") for key, value in pairs}

    def watch(self, resource, namespace):
        since = self.query.get("resourceVersion") or "0"
        if not since.isdigit():
            raise bad_request(f'invalid resource version "{since}": must be an unsigned integer')
        until = time.monotonic() + float(self.query.get("timeoutSeconds") or 1800)
        watch = Watch(resource, namespace, self.selected())
        with lock:
            since = int(since)
            if since == 0:
                for key in sorted(key for key in objects if watch.wants(key)):
                    watch.queue.put((version, key, json.dumps({"type": "ADDED", "object": objects[key]})))
            elif since < oldest - 1:
                watch.queue.put((0, None, json.dumps({"type": "ERROR", "object": expired(since).status})))
            else:
                for event in events:
                    if event[0] > since and watch.wants(event[1]):
                        watch.queue.put(event)
            watches.add(watch)
        try:
            self.begin(200, chunked=True)
            self.wfile.flush()
            self.stream(resource, watch, until)
            self.chunk(b"")
        except OSError:
            self.close_connection = True
        finally:
            with lock:
                watches.discard(watch)

    def stream(self, resource, watch, until):
        while (left := until - time.monotonic()) > 0:
            try:
                _, key, text = watch.queue.get(timeout=min(left, BOOKMARK))
            except Empty:
                # The client says nothing while it watches, but that it is gone.
                if select.select([self.connection], [], [], 0)[0]:
                    raise ConnectionResetError from None
                if self.query.get("allowWatchBookmarks") not in ("1", "true"):
                    continue
                metadata = {"resourceVersion": str(version), "creationTimestamp": None}
                bookmark = {"kind": resource.kind, "apiVersion": resource.api, "metadata": metadata, "spec": {}}
                key, text = (), json.dumps({"type": "BOOKMARK", "object": bookmark})
            self.chunk(text.encode() + b"\n")
            if key is None:
                return

    def send(self, status, reply):
        text = json.dumps(reply).encode() + b"\n"
        is_long = len(text) > LONGEST_PLAIN
        wait = (reply.get("details") or {}).get("retryAfterSeconds") if status == 429 else None
        self.begin(status, chunked=is_long, length=len(text), wait=wait)
        if is_long:
            half = len(text) // 2
            self.chunk(text[:half])
            self.chunk(text[half:])
            self.chunk(b"")
        else:
            self.wfile.write(text)
            self.wfile.flush()

    def begin(self, status, chunked, length=0, wait=None):
        self.send_response_only(status)
        self.send_header("Cache-Control", "no-cache, private")
        self.send_header("Content-Type", "application/json")
        if wait is not None:
            self.send_header("Retry-After", str(wait))
        jump = int(fault.removeprefix("clock-jumps-")) if fault and fault.startswith("clock-jumps-") else math.inf
        ahead = 20 if counts["create"] + counts["update"] >= jump else 0
        # As of a proxy that writes its own.
        ahead += 5 if fault == "date-is-ahead" else 0
        self.send_header("Date", self.date_time_string(time.time() + ahead))
        self.send_header(*(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(length))))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


def expired(since):
    return Refused(410, "Expired", f"too old resource version: {since} ({oldest - 1})")


def get(_, resource, namespace, name, body):
    thing = objects.get((resource.plural, namespace, name))
    if thing is None:
        raise resource.not_found(name)
    return 200, thing


def list_all(handler, resource, namespace, name, body):
    wanted = Watch(resource, namespace, handler.selected())
    keys = sorted(key for key in objects if wanted.wants(key))
    after = json.loads(handler.query.get("continue") or "[]")
    if len(after) == 2 and fault == "expires-lists":
        message = "The provided continue parameter is too old to display a consistent list result. You can start a new list"
        refused = Refused(410, "Expired", message)
        # As of etcd, when the version of the first part was compacted (storage/etcd3/errors.go).
        refused.status["metadata"]["continue"] = json.dumps([*after, -1])
        raise refused
    if after:
        keys = [key for key in keys if key[1:] > tuple(after[:2])]
    limit = int(handler.query.get("limit") or 0) or len(keys)
    metadata = {"resourceVersion": str(version)}
    if keys[limit:]:
        metadata.update({"continue": json.dumps(keys[limit - 1][1:]), "remainingItemCount": len(keys) - limit})
    items = [{k: v for k, v in objects[key].items() if k not in ("kind", "apiVersion")} for key in keys[:limit]]
    return 200, {"kind": f"{resource.kind}List", "apiVersion": resource.api, "metadata": metadata, "items": items}


def admit(resource, namespace, name):
    if namespace is not None and ("namespaces", None, namespace) not in objects:
        raise NAMESPACES.not_found(namespace)
    if name is None:
        raise resource.invalid("", "metadata.name", '""', "name or generateName is required")


def matching(body, resource, namespace, name):
    metadata = body.get("metadata") or {}
    if body.get("kind", resource.kind) != resource.kind or body.get("apiVersion", resource.api) != resource.api:
        raise bad_request("the object provided is unrecognized (must be of type " + resource.kind + ")")
    if namespace is not None and metadata.get("namespace", namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if name is not None and metadata.get("name") != name:
        why = f"the name of the object ({metadata.get('name')}) does not match the name on the URL ({name})"
        raise bad_request("name must be provided" if not metadata.get("name") else why)
    return metadata


def create(handler, resource, namespace, _, body):
    metadata = matching(body, resource, namespace, None)
    name = metadata.get("name")
    admit(resource, namespace, name)
    if metadata.get("resourceVersion"):
        raise Refused(500, "", "resourceVersion should not be set on objects to be created")
    if (resource.plural, namespace, name) in objects and fault != "ignores-conditions":
        message = f'{resource.qualified} "{name}" already exists'
        raise Refused(409, "AlreadyExists", message, **resource.details(name))
    interrupt()
    before = objects.get((resource.plural, namespace, name))
    return 201, store(resource, namespace, name, before, body, handler.manager)


def update(handler, resource, namespace, name, body):
    metadata = matching(body, resource, namespace, name)
    before = objects.get((resource.plural, namespace, name))
    if before is None:
        admit(resource, namespace, name)
        if metadata.get("uid"):
            raise other_uid(resource, namespace, name, metadata["uid"], "")
    else:
        given = str(metadata.get("resourceVersion") or "")
        if not given:
            why = "must be specified for an update"
            refused = resource.invalid(name, "metadata.resourceVersion", "0x0", why)
            # The kind is the plural there (registry/generic/registry/store.go).
            refused.status["message"] = refused.status["message"].replace(resource.kind, resource.plural, 1)
            refused.status["details"]["kind"] = resource.plural
            raise refused
        if metadata.get("uid") and metadata["uid"] != before["metadata"]["uid"]:
            raise other_uid(resource, namespace, name, metadata["uid"], before["metadata"]["uid"])
        if given != before["metadata"]["resourceVersion"] and fault != "ignores-conditions":
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise resource.conflict(name, why)
    interrupt()
    before = objects.get((resource.plural, namespace, name)) if fault else before
    return 200 if before else 201, store(resource, namespace, name, before, body, handler.manager)


def other_uid(resource, namespace, name, given, found):
    key = f"/registry/{resource.plural}/{namespace}/{name}"
    storage = f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
    uids = f"UID in precondition: {given}, UID in object meta: {found}"
    return resource.conflict(name, f"{storage}Precondition failed: {uids}")


def interrupt():
    if fault == "is-not-atomic":
        lock.release()
        time.sleep(0.005)
        lock.acquire()


def delete(_, resource, namespace, name, body):
    thing = objects.get((resource.plural, namespace, name))
    if thing is None:
        raise resource.not_found(name)
    conditions = body.get("preconditions") or {}
    for field in ("uid", "resourceVersion"):
        if conditions.get(field) and conditions[field] != thing["metadata"][field]:
            why = f"Precondition failed: {field} in precondition: {conditions[field]}, "
            raise resource.conflict(name, f"{why}{field} in object meta: {thing['metadata'][field]}")
    if resource is NAMESPACES:
        for key in [key for key in objects if key[1] == name]:
            note(key, None, "DELETED")
    note((resource.plural, namespace, name), None, "DELETED")
    details = resource.details(name, uid=thing["metadata"]["uid"])
    return 200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


class Server(ThreadingHTTPServer):
    request_queue_size = 512
    daemon_threads = True
    tls = None

    def finish_request(self, request, client_address):
        # In the thread of the connection: a client that does not begin the handshake holds up nobody.
        if self.tls:
            try:
                request = self.tls.wrap_socket(request, server_side=True)
            except OSError:
                return
        super().finish_request(request, client_address)
        if self.tls:
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            request.close()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handle_error(request, client_address)


journal = open(os.path.join(directory, "journal"), "a+", encoding="utf-8")
journal.seek(0)
whole, _, torn = journal.read().rpartition("\n")
for line in whole.splitlines():
    key, thing, _ = json.loads(line)
    apply(key, thing)
if torn:
    # It was killed while it wrote this, which so was not acknowledged.
    journal.truncate(len(whole.encode()) + 1 if whole else 0)
oldest = version + 1
if not objects:
    for namespace in ("default", "kube-system"):
        given = {"metadata": {"name": namespace}}
        store(NAMESPACES, None, namespace, None, given, "kube-apiserver")
server = Server(("127.0.0.1", port), Handler)
if os.path.exists(os.path.join(directory, "server.pem")):
    server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.tls.load_cert_chain(os.path.join(directory, "server.pem"), os.path.join(directory, "server.key"))
    server.tls.load_verify_locations(os.path.join(directory, "ca.pem"))
    server.tls.verify_mode = ssl.CERT_OPTIONAL
server.serve_forever()
