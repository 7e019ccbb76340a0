"""An Iceberg REST catalog, as small as it may be: PyIceberg's SQLite catalog behind HTTP.

It can lose answers: a commit is made, and the client is told of an error.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, Table

STATUS = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


class RestCatalog:
    """What the server knows, and what a test may tell it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._catalog = SqlCatalog(
            "rest", uri=f"sqlite:///{directory / 'rest.db'}", warehouse=directory.as_uri()
        )
        self._lock = threading.Lock()  # one request at a time: SQLite's rows are not the point
        self.lost_answers = 0  # so many answers to commits will be lost
        self.commits = 0
        self.address = ""

    def answer(self, method: str, path: list[str], body: Any) -> tuple[int, Any]:
        """Return the status and the document for a request."""
        try:
            with self._lock:
                return 200, self._answer(method, path, body)
        except tuple(STATUS) as error:
            code = STATUS[type(error)]
            message = {"message": str(error), "type": type(error).__name__, "code": code}
            return code, {"error": message}

    def _answer(self, method: str, path: list[str], body: Any) -> Any:
        match method, path:
            case "GET", ["config"]:
                return {"defaults": {}, "overrides": {}}
            case "POST", ["namespaces"]:
                self._catalog.create_namespace(tuple(body["namespace"]))
                return {"namespace": body["namespace"], "properties": {}}
            case "GET" | "HEAD", ["namespaces", name]:
                return {
                    "namespace": [name],
                    "properties": self._catalog.load_namespace_properties(name),
                }
            case "GET", ["namespaces", name, "tables"]:
                found = self._catalog.list_tables(name)
                return {"identifiers": [{"namespace": [name], "name": each[-1]} for each in found]}
            case "POST", ["namespaces", name, "tables"]:
                wanted = CreateTableRequest.model_validate({"location": None} | body)
                return _document(
                    self._catalog.create_table(
                        (name, wanted.name),
                        wanted.table_schema,
                        partition_spec=wanted.partition_spec or UNPARTITIONED_PARTITION_SPEC,
                        properties=wanted.properties,
                    )
                )
            case "GET" | "HEAD", ["namespaces", name, "tables", table]:
                return _document(self._catalog.load_table((name, table)))
            case "POST", ["namespaces", name, "tables", table]:
                return self._commit((name, table), CommitTableRequest.model_validate(body))
        raise NoSuchTableError(f"{method} {path} is not served here")

    def _commit(self, table: tuple[str, str], wanted: CommitTableRequest) -> Any:
        found = self._catalog.load_table(table)
        self._catalog.commit_table(found, wanted.requirements, wanted.updates)
        self.commits += 1
        if self.lost_answers:
            self.lost_answers -= 1
            raise ConnectionAbortedError
        return _document(self._catalog.load_table(table))


def _document(table: Table) -> Any:
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
    }


class _Handler(BaseHTTPRequestHandler):
    catalog: RestCatalog

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(size)) if size else None
        path = self.path.partition("?")[0].removeprefix("/v1/").split("/")
        try:
            status, document = self.catalog.answer(self.command, path, body)
        except ConnectionAbortedError:
            status, document = 500, {"error": {"message": "lost", "type": "Lost", "code": 500}}
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_POST = do_HEAD = _serve  # noqa: N815  # the names are http.server's

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def serve(directory: Path) -> Iterator[RestCatalog]:
    """Run a catalog whose tables are in a directory."""
    catalog = RestCatalog(directory)
    handler = type("Handler", (_Handler,), {"catalog": catalog})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        catalog.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield catalog
        finally:
            server.shutdown()
            thread.join()
