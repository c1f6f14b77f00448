"""An embedder that calls `POST /embeddings` of OpenAI or a compatible server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import urlsplit

import httpx2
import numpy as np
from pydantic import BaseModel, Field, ValidationError

from loopline.models import wait_seconds
from loopline.search.embedder import EmbeddingError, Vector

KEY_VARIABLE = "OPENAI_API_KEY"
URL_VARIABLE = "OPENAI_BASE_URL"
DEFAULT_URL = "https://api.openai.com/v1"
BATCH = 64
LONGEST_TEXT = 8_000
"""The characters of a text that are sent. A text above the token limit of the model would be an error."""
TIMEOUT_SECONDS = 60.0
ATTEMPTS = 4
LONGEST_PAUSE = 20.0
RESPONSE_BYTES = 2**26


class _Embedding(BaseModel):
    index: int
    embedding: Annotated[list[float], Field(min_length=1, max_length=20_000)]


class _Response(BaseModel):
    data: list[_Embedding]


class HttpEmbedder:
    """A model on a server. Any thread may use it."""

    batch: int = BATCH
    """The number of texts in one request."""

    def __init__(
        self, model: str, environment: Mapping[str, str], *, attempts: int = ATTEMPTS
    ) -> None:
        """Send one request to learn the number of coordinates.

        `environment` has the variables with the key and the base URL. A request to a busy or unreachable server is sent
        up to `attempts` times.

        Raises:
            EmbeddingError: the key is missing, or the request failed; the message names the variable or the server.
        """
        self._model = model
        self._attempts = attempts
        self._url = (environment.get(URL_VARIABLE, "").strip() or DEFAULT_URL).rstrip("/")
        key = environment.get(KEY_VARIABLE, "").strip()
        if not key and self._url == DEFAULT_URL:
            raise EmbeddingError(
                f"openai:{model} needs a key: set {KEY_VARIABLE}, or {URL_VARIABLE}"
            )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx2.Client(headers=headers, timeout=TIMEOUT_SECONDS)
        try:
            self.dimensions: int = len(self._embed(["dimensions"], attempts)[0]) // 4
        except EmbeddingError:
            self.close()
            raise
        self.key: str = f"openai/{self._url}/{model}/{LONGEST_TEXT}"

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vector of each text, in the same order; send one request for each batch."""
        vectors: list[Vector] = []
        for start in range(0, len(texts), BATCH):
            vectors += self._embed(texts[start : start + BATCH], self._attempts)
        return vectors

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query. The request is not retried, because a user is waiting."""
        return self._embed([text], attempts=1)[0]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _embed(self, texts: Sequence[str], attempts: int) -> list[Vector]:
        """Return the unit vector of each text in order, by one request; texts are truncated to 8,000 characters.

        Raises:
            EmbeddingError: the request failed, or the response does not have one vector for each text.
        """
        # The API rejects an empty input.
        inputs = [text[:LONGEST_TEXT].encode("utf-8", "replace").decode() or " " for text in texts]
        document = {"model": self._model, "input": inputs, "encoding_format": "float"}
        body = self._post(document, attempts)
        try:
            rows = sorted(_Response.model_validate_json(body).data, key=lambda row: row.index)
            matrix = np.asarray([row.embedding for row in rows], dtype="<f4")
        except (ValidationError, ValueError) as error:
            raise EmbeddingError(f"{self._host} did not answer with embeddings: {error}") from error
        if len(rows) != len(texts):
            raise EmbeddingError(f"{self._host} answered {len(rows)} of {len(texts)} texts")
        lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
        return [row.tobytes() for row in (matrix / np.maximum(lengths, 1e-12)).astype("<f4")]

    def _post(self, document: Mapping[str, object], attempts: int) -> bytearray:
        """Send the request, and return the body of a response of at most 64 MiB.

        Connection errors, 429 and 5xx are retried, up to `attempts` requests in all. The pause is that of the headers, or
        doubles from 2 s on; it is at most 20 s.

        Raises:
            EmbeddingError: the status is another, the response is larger, or the last attempt failed.
        """
        url = f"{self._url}/embeddings"
        problem = ""
        for attempt in range(1, attempts + 1):
            try:
                with self._client.stream("POST", url, json=document) as response:
                    if response.is_success:
                        return self._read(response)
            except httpx2.HTTPError as error:
                problem = f"{self._host} cannot be reached: {error}"
                wait = None
            else:
                problem = f"{self._host} answered {response.status_code} for {self._model}"
                if response.status_code != 429 and response.status_code < 500:
                    raise EmbeddingError(problem)
                wait = wait_seconds(response.headers, datetime.now(UTC))
            if attempt < attempts:
                time.sleep(min(2.0**attempt if wait is None else wait, LONGEST_PAUSE))
        raise EmbeddingError(problem)

    def _read(self, response: httpx2.Response) -> bytearray:
        """Return the body; raise an EmbeddingError as soon as it has more than `RESPONSE_BYTES`."""
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > RESPONSE_BYTES:
                raise EmbeddingError(f"{self._host} answered more than {RESPONSE_BYTES:,} bytes")
        return body

    @property
    def _host(self) -> str:
        return urlsplit(self._url).hostname or "the server of embeddings"
