set -e
data=/var/lib/postgresql/18/docker
as_postgres() { setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; }
if [ ! -s "$data/PG_VERSION" ]; then
    install --directory --owner postgres --mode 700 "$data"
    printf %s "$POSTGRES_PASSWORD" >/tmp/password
    chmod 644 /tmp/password
    as_postgres initdb --pgdata "$data" --username "$POSTGRES_USER" --pwfile /tmp/password --encoding UTF8 --locale C.UTF-8 \
        --auth-local trust --auth-host scram-sha-256
    rm /tmp/password
    echo "host all all all scram-sha-256" >>"$data/pg_hba.conf"
    as_postgres pg_ctl --pgdata "$data" --options "-c listen_addresses= -k /tmp" --wait start
    as_postgres createdb --host /tmp --username "$POSTGRES_USER" "$POSTGRES_DB"
    as_postgres pg_ctl --pgdata "$data" --wait stop
fi
exec setpriv --reuid=postgres --regid=postgres --clear-groups postgres -D "$data" -c listen_addresses='*'
