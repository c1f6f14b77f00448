"""The extra `s3`: a bucket of S3 is tried, and a server that is not there is an error that names the bucket."""

from __future__ import annotations

import os

from loopline.errors import StoreError
from loopline.store.s3_blobs import S3Blobs, S3Place, S3Timeouts

os.environ |= {"AWS_ACCESS_KEY_ID": "ann", "AWS_SECRET_ACCESS_KEY": "secret"}
place = S3Place.parse("s3://tea/talk?endpoint=http://127.0.0.1:1&region=us-east-1")
try:
    text = S3Blobs(place, timeouts=S3Timeouts(retries=0, retry_seconds=1.0)).put(b"tea")
except StoreError as error:
    text = str(error)
assert "s3://tea/talk" in text, text
