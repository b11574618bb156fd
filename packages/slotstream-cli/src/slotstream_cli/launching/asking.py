"""Asking the server on a loopback port who it is; nothing here goes through a proxy."""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from slotstream_cli.launching.plans import LOCAL_TOKEN, ServedModel

__all__ = ["Probe", "ServerPort"]

PROBE_S = 5.0
MOST_BYTES = 4 * 2**20
MODEL_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
OWNER = "slotstream"


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What answers on a port.

    Attributes:
        kind: `absent` nothing; `served` a Slotstream server; `stopping` or `busy` one that takes no requests; `locked`
            one that wants a key; `foreign` anything else.
        served: What it says of itself, when it is `served`.
        reason: What it answered instead.
    """

    kind: Literal["absent", "served", "stopping", "busy", "locked", "foreign"]
    served: ServedModel | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ServerPort:
    """A port of this machine where a server may listen.

    Attributes:
        port: Its number.
        api_key: What the server may ask for, or None.
    """

    port: int
    api_key: str | None = None

    @property
    def base_url(self) -> str:
        """Its address, without a path."""
        return f"http://127.0.0.1:{self.port}"

    def probe(self) -> Probe:
        """Return who answers."""
        try:
            status, body = self.request("GET", "/v1/models")
        except ConnectionRefusedError:
            return Probe(kind="absent")
        except (OSError, http.client.HTTPException) as error:
            return Probe(kind="foreign", reason=str(error) or type(error).__name__)
        if status == 503:
            text = json.dumps(body)
            return Probe(kind="stopping" if "stopping" in text else "busy", reason=text[:200])
        if status in (401, 403):
            return Probe(kind="locked", reason=f"HTTP {status}")
        served = self._served(body) if status == 200 else None
        if served is None:
            return Probe(kind="foreign", reason=f"HTTP {status} at /v1/models")
        return Probe(kind="served", served=served)

    def status(self) -> dict[str, Any] | None:
        """Return what the server says of its process and use, or None when it does not."""
        status, body = self._quietly("GET", "/slotstream/status")
        return body if status == 200 and isinstance(body, dict) and body.get("server") == OWNER else None

    def answers(self, path: str) -> bool:
        """Whether the server has a path among its own."""
        status, body = self._quietly("GET", "/openapi.json")
        return status == 200 and isinstance(body, dict) and path in body.get("paths", {})

    def register(self, pid: int) -> bool:
        """Keep the server running while a process runs; returns whether the server agreed."""
        return self._quietly("POST", "/slotstream/clients", {"pid": pid})[0] == 200

    def request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return a response's status and JSON value, None for a body that is no JSON.

        Raises:
            OSError: Nothing answers.
            http.client.HTTPException: What answers does not speak HTTP.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PROBE_S)
        headers = {"content-type": "application/json", "connection": "close"}
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read(MOST_BYTES)
        finally:
            connection.close()
        try:
            return response.status, json.loads(content)
        except (ValueError, RecursionError):
            return response.status, None

    def _quietly(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        try:
            return self.request(method, path, body)
        except (OSError, http.client.HTTPException):
            return 0, None

    def _served(self, body: object) -> ServedModel | None:
        listed = body.get("data") if isinstance(body, dict) else None
        card = listed[0] if isinstance(listed, list) and listed else None
        if not isinstance(card, dict) or card.get("owned_by") != OWNER:
            return None
        model, window, longest = card.get("id"), card.get("context_window"), card.get("max_output_tokens")
        if not isinstance(model, str) or not MODEL_ID.fullmatch(model) or not isinstance(window, int) or window < 2:
            return None
        abilities = card.get("capabilities")
        return ServedModel(
            base_url=self.base_url,
            model=model,
            window_tokens=window,
            max_output_tokens=max(1, min(longest if isinstance(longest, int) else window // 4, window - 1)),
            token=self.api_key or LOCAL_TOKEN,
            vision=isinstance(abilities, list) and "vision" in abilities,
        )
