"""DynamoDB by its own rules, as far as dlock asks it: conditional writes of items, over HTTP.

dynamodb_server.py PORT JOURNAL [FAULT]    keeps its tables in the file, over a restart too

If there is a file server.pem beside the journal, with server.key, the server speaks TLS.

Signatures are not checked. A read that is not consistent returns the item before its last write. A scan has pages of two items.
The action Counts returns the number of requests of each kind, and the most of them over one connection.

FAULT   ignores-conditions   a write is carried out whatever its condition
        is-not-atomic        between the check of a condition and the write, another write may be checked
        repeats-writes       something in front of the server sends each write twice, and passes on the second reply
        is-busy              each third request is refused because there are too many
        fails-at-N           the write N fails with status 500, and is not carried out
        ledgers-ERROR        each write of a ledger beside its lock is refused with this error
        misdates-N           the reply to the write N is dated an hour ahead
        proxy-fails          a proxy replies to the first write with status 503 and a page, dated an hour ahead
        clock-jumps-N        from the reply to the write N on, the clock is 20 s ahead, as after a pause of the client's host
"""

import json
import math
import os
import re
import ssl
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LONGEST_ITEM = 400 << 10
PAGE = 2
fault = sys.argv[3] if sys.argv[3:] else None
tables, lock = {}, threading.Lock()
actions, connections = Counter(), Counter()


class Refused(Exception):
    def __init__(self, error, said="", **details):
        self.reply = {"__type": f"com.amazonaws.dynamodb.v20120810#{error}", "message": said, **details}


def table_of(body):
    if body["TableName"] not in tables:
        raise Refused("ResourceNotFoundException", "Requested resource not found")
    return tables[body["TableName"]]


def key_of(table, key):
    if list(key) != [table["key"]] or list(key[table["key"]]) != ["S"] or not key[table["key"]]["S"]:
        raise Refused("ValidationException", "The provided key element does not match the schema")
    return key[table["key"]]["S"]


class Expressions:
    """The expressions of one request; every name and value has to be used."""

    def __init__(self, body):
        self.names = body.get("ExpressionAttributeNames", {})
        self.values = body.get("ExpressionAttributeValues", {})
        self.used = set()

    def name(self, word):
        if not word.startswith("#"):
            return word
        self.used.add(word)
        return self.names[word]

    def value(self, word):
        self.used.add(word)
        return self.values[word]

    def holds(self, condition, item):
        words = re.findall(r"[()]|<?=|[#:\w]+", condition)
        result = self.any_of(words, item)
        if words:
            raise Refused("ValidationException", "Syntax error in ConditionExpression")
        return result

    def any_of(self, words, item):
        result = self.all_of(words, item)
        while words[:1] == ["OR"]:
            words.pop(0)
            # Both sides are evaluated, so that every name is read.
            result = self.all_of(words, item) or result
        return result

    def all_of(self, words, item):
        result = self.term(words, item)
        while words[:1] == ["AND"]:
            words.pop(0)
            result = self.term(words, item) and result
        return result

    def term(self, words, item):
        word = words.pop(0)
        if word == "(":
            result = self.any_of(words, item)
        elif word == "begins_with":
            words.pop(0)
            name, value = self.name(words.pop(0)), self.value(words.pop(0))
            result = item.get(name, {}).get("S", "").startswith(value["S"])
        elif word in ("attribute_exists", "attribute_not_exists"):
            words.pop(0)
            result = (self.name(words.pop(0)) in item) == (word == "attribute_exists")
        else:
            name, sign, value = self.name(word), words.pop(0), self.value(words.pop(0))
            if sign == "<=":
                # Between texts only.
                return "S" in item.get(name, {}) and item[name]["S"] <= value["S"]
            return item.get(name) == value
        words.pop(0)
        return result

    def updated(self, update, item):
        item = dict(item)
        sets, _, removed = update.partition(" REMOVE ")
        for part in sets.removeprefix("SET ").split(","):
            name, value = part.split("=")
            item[self.name(name.strip())] = self.value(value.strip())
        for name in filter(None, removed.split(",")):
            item.pop(self.name(name.strip()), None)
        return item

    def check(self):
        if self.used != set(self.names) | set(self.values):
            raise Refused("ValidationException", "Value provided in ExpressionAttribute... unused in expressions")


def write(body, change):
    table, expressions = table_of(body), Expressions(body)
    key = key_of(table, body["Key"])
    before = table["items"].get(key)
    is_met = expressions.holds(body["ConditionExpression"], before or {}) if "ConditionExpression" in body else True
    after = change(table, key, before, expressions)
    expressions.check()
    if fault == "is-not-atomic":
        lock.release()
        time.sleep(0.005)
        lock.acquire()
    if not is_met and fault != "ignores-conditions":
        shown = before is not None and body.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
        details = {"Item": before} if shown else {}
        raise Refused("ConditionalCheckFailedException", "The conditional request failed", **details)
    if after is not None and len(json.dumps(after)) > LONGEST_ITEM:
        raise Refused("ValidationException", "Item size to update has exceeded the maximum allowed size")
    note(body["TableName"], key, after)
    return {"Attributes": after} if body.get("ReturnValues") == "ALL_NEW" else {}


def update_item(body):
    def change(table, key, before, expressions):
        return expressions.updated(body["UpdateExpression"], before or {table["key"]: {"S": key}})

    return write(body, change)


def put_item(body):
    table = table_of(body)
    body["Key"] = {table["key"]: body["Item"].get(table["key"], {})}
    return write(body, lambda *_: body["Item"])


def delete_item(body):
    return write(body, lambda *_: None)


def get_item(body):
    table = table_of(body)
    key = key_of(table, body["Key"])
    item = (table["items"] if body.get("ConsistentRead") else table["stale"]).get(key)
    return {"Item": item} if item else {}


def scan(body):
    table = table_of(body)
    keys = sorted(table["items"])
    if "ExclusiveStartKey" in body:
        keys = [key for key in keys if key > key_of(table, body["ExclusiveStartKey"])]
    page = keys[:PAGE]
    last = {"LastEvaluatedKey": {table["key"]: {"S": page[-1]}}} if keys[PAGE:] else {}
    return {"Items": [table["items"][key] for key in page], "Count": len(page), **last}


def describe_table(body):
    return {"Table": table_of(body)["description"]}


def create_table(body):
    if body["TableName"] in tables:
        raise Refused("ResourceInUseException", "Table already exists")
    note(body["TableName"], None, {**body, "TableStatus": "ACTIVE"})
    # It is active a moment later.
    return {"TableDescription": {**body, "TableStatus": "CREATING"}}


def describe_time_to_live(body):
    status = {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"} if table_of(body)["ttl"] else {}
    return {"TimeToLiveDescription": status or {"TimeToLiveStatus": "DISABLED"}}


def counts(_):
    return {"actions": actions, "most": max(connections.values())}


def update_time_to_live(body):
    table_of(body)["ttl"] = body["TimeToLiveSpecification"]["Enabled"]
    return {}


def apply(name, key, value):
    if key is None:
        hash_key = value["KeySchema"][0]["AttributeName"]
        tables[name] = {"key": hash_key, "description": value, "ttl": False, "items": {}, "stale": {}}
        return
    table = tables[name]
    if key in table["items"]:
        table["stale"][key] = table["items"].pop(key)
    if value is not None:
        table["items"][key] = value


def note(name, key, value):
    apply(name, key, value)
    journal.write(json.dumps([name, key, value]) + "\n")
    journal.flush()


ACTIONS = {
    "UpdateItem": update_item,
    "PutItem": put_item,
    "DeleteItem": delete_item,
    "GetItem": get_item,
    "Scan": scan,
    "DescribeTable": describe_table,
    "CreateTable": create_table,
    "DescribeTimeToLive": describe_time_to_live,
    "UpdateTimeToLive": update_time_to_live,
    "Counts": counts,
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self):
        self.reply(200, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        action = self.headers["X-Amz-Target"].removeprefix("DynamoDB_20120810.")
        status = 200
        try:
            with lock:
                actions[action] += 1
                connections[self.client_address] += 1
                if fault == "is-busy" and sum(actions.values()) % 3 == 2:
                    raise Refused("ThrottlingException", "Rate exceeded")
                is_ledger = action == "UpdateItem" and next(iter(body["Key"].values()))["S"].endswith("%dlock")
                if fault and fault.startswith("ledgers-") and is_ledger:
                    raise Refused(fault.removeprefix("ledgers-"), "of a test")
                if fault == "proxy-fails" and action == "UpdateItem" and actions[action] == 1:
                    self.reply(503, "no server is available", is_write=True)
                    return
                if fault == f"fails-at-{actions['UpdateItem']}" and action == "UpdateItem":
                    status, reply = 500, {"__type": "InternalServerError", "message": "Internal server error"}
                else:
                    reply = ACTIONS[action](body)
                if fault == "repeats-writes" and action == "UpdateItem":
                    reply = ACTIONS[action](body)
        except Refused as refused:
            status, reply = 400, refused.reply
        self.reply(status, reply, action == "UpdateItem")

    def reply(self, status, reply, is_write=False):
        text = json.dumps(reply).encode()
        self.send_response_only(status)
        jump = int(fault.removeprefix("clock-jumps-")) if fault and fault.startswith("clock-jumps-") else math.inf
        ahead = 20 if actions["UpdateItem"] >= jump else 0
        is_misdated = fault == f"misdates-{actions['UpdateItem']}" or (fault == "proxy-fails" and status == 503)
        if is_misdated and is_write:
            ahead = 3600
        self.send_header("Date", self.date_time_string(time.time() + ahead))
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(text)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text)
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    request_queue_size = 512
    daemon_threads = True


journal = open(sys.argv[2], "a+", encoding="utf-8")
journal.seek(0)
for line in journal:
    apply(*json.loads(line))
server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
certificate, key = (os.path.join(os.path.dirname(sys.argv[2]), name) for name in ("server.pem", "server.key"))
if os.path.exists(certificate):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    # The handshake is that of the first read, in the thread of the connection: a client that does not begin it holds up nobody.
    server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
server.serve_forever()
