# Redis of Debian, with the command of the image `redis:8`.
ARG BASE
FROM ${BASE}
RUN apt-get update && apt-get install --yes --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/*
USER redis
ENTRYPOINT []
